"""Environments of several turns: what is learned, which sampled tokens stay, and how failures are handled."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from pathlib import Path
from string import printable
from typing import Any

import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.contracts import EpisodeStart, Observation, Turn
from swift.errors import ConfigError, DataError, SwiftError
from swift_rl.environments.hosted import HostedEpisodes
from swift_rl.environments.observed import plain
from swift_rl.environments.pool import EnvironmentPool, EpisodeCall
from swift_rl.environments.select import select_environment
from swift_rl.environments.turns import TemplateDrift, TurnRenderer
from swift_rl.options import GrpoOptions
from swift_rl.rewards.process import WorkerProcess
from swift_rl.rounds.data import Round
from swift_rl.rounds.files import read_round

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}], "word": word} for word in "abcdefghijkl"]
COUNTING = '''
import os
import time

from swift.contracts import Observation


class Counting:
    """Three turns; each has a reward that anyone can compute again from the text, and a word that the seed decides."""

    wants = ("word",)

    def reset(self, start):
        if start.columns.get("trap") == "begin":
            raise ValueError("no game")
        self.start = start
        self.total = 0

    def step(self, turn):
        trap = self.start.columns.get("trap")
        if trap and turn.number == 2:
            {"hang": lambda: time.sleep(99), "exit": lambda: os._exit(3), "raise": lambda: 1 / 0}[trap]()
        self.total += len(turn.text)
        told = f"{self.start.columns['word']} {self.total} {self.start.seed % 10}"
        return Observation([{"role": "user", "content": told}], float(len(turn.text)), turn.number == 3)
'''


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of an environment in a file."""
    file = tmp_path_factory.mktemp("environment") / "counting.py"
    file.write_text(COUNTING)
    return f"{file}:Counting"


def settings(environment: str, **changes: Any) -> dict[str, Any]:
    """Four episodes of each of two prompts per step."""
    return {
        "objective.name": "grpo",
        "objective.environment": environment,
        "objective.num_generations": 4,
        "objective.max_completion_length": 5,
        "objective.completion_length_limit_scope": "per_round",
        "objective.stop_words": list(printable),
        "objective.reward_workers": 2,
        "train.global_batch": 8,
        "train.micro_batch": 4,
        "train.max_steps": 1,
        "checkpoint.save_steps": 1,
        **changes,
    }


def rounds(run: Trained) -> list[Round]:
    folder = run.folder / "rollouts"
    found = [read_round(folder, number) for number in range(len(list(folder.glob("round-*.safetensors"))))]
    assert all(found)
    return [each for each in found if each is not None]


def told(made: Round) -> list[Any]:
    return [(each.token_ids.tolist(), each.episode, each.rewards) for each in made.completions]


def test_episode_is_one_sample_with_learned_completions(tied: Path, counting: str, tmp_path: Path) -> None:
    """An episode is one sample of which the completions are learned."""
    run = run_training(tied, tmp_path, ROWS, settings(counting))
    (made,) = rounds(run)
    assert {completion.episode.turns for completion in made.completions if completion.episode} >= {1, 2, 3}
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tied)
    loss, tokens = torch.zeros(()), 0
    for group in (made.group(prompt) for prompt in range(len(made.prompts))):
        scores = []
        for completion in group:
            episode = completion.episode
            assert episode is not None
            said = [message["content"] for message in episode.messages if message["role"] == "assistant"]
            assert len(said) == episode.turns
            scores.append(sum(episode.rewards))
        advantages = (np.array(scores) - np.mean(scores)) / (np.std(scores, ddof=1) + 1e-4)
        for completion, advantage in zip(group, advantages, strict=True):
            episode = completion.episode
            assert completion.reward == completion.rewards["environment"] == sum(episode.rewards)
            prompt = made.prompts[completion.prompt]
            ids = torch.tensor([[*prompt.token_ids.tolist(), *episode.token_ids]])
            own = torch.tensor(episode.written)
            assert ids[0, len(prompt.token_ids) :][own].tolist() == completion.token_ids.tolist()
            whole = tokenizer.decode(ids[0])
            for message in episode.messages[len(prompt.messages) :]:
                assert message["content"] in whole
            logps = (
                model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(prompt.token_ids) - 1 :, 0]
            )
            # What the engine sampled from is what training sees: every turn began with the tokens before it.
            assert completion.logps == pytest.approx(logps[own].detach().numpy(), abs=1e-5)
            loss = loss - (logps[own] * float(advantage)).sum()
            tokens += int(own.sum())
    (loss / tokens).backward()
    norm = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]).norm()
    assert run.grad_norms == [pytest.approx(float(norm), rel=1e-4)]
    assert run.lines[1]["turns"] == pytest.approx(
        np.mean([completion.episode.turns for completion in made.completions])
    )


def test_environment_cannot_affect_other_episodes(tied: Path, counting: str, tmp_path: Path) -> None:
    """What an environment does to its process harms no other episode."""
    options = GrpoOptions(environment=counting, environment_timeout=2.0, reward_workers=2)
    selected = select_environment(options, ["word"], tied)
    assert selected is not None
    calls = [
        EpisodeCall(str(number), EpisodeStart([], {"word": "x", "trap": trap}, seed=number))
        for number, trap in enumerate(("hang", "", "exit", "", "raise", ""))
    ]
    pool = EnvironmentPool(selected, options)
    try:
        pool.advance(calls)
        for number in range(1, 4):
            live = [call for call in calls if not call.over]
            for call in live:
                call.turns.append(Turn("abc", number))
            pool.advance(live)
    finally:
        pool.close()
    assert [call.failure.split(":")[0] for call in calls] == [
        "a step took longer than 2 s",
        "",
        "the process of the environment ended itself with the exit code 3",
        "",
        "ZeroDivisionError",
        "",
    ]
    for number in (1, 3, 5):  # begun again in another process, whose completions are the same
        assert [seen.messages[0]["content"] for seen in calls[number].seen] == [
            f"x {total} {number}" for total in (3, 6, 9)
        ]
        assert [seen.done for seen in calls[number].seen] == [False, False, True]


CLOSINGS = {
    "hang": "import time; time.sleep(99)",
    "swallow": "import time\n        while True:\n            try:\n                time.sleep(1)\n"
    "            except Exception:\n                time.sleep(0.01); raise SystemExit(4) from None",
    "exit": "raise SystemExit(4)",
    "raise": "1 / 0",
    "await": "import asyncio; return asyncio.sleep(99)",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how == "exit" else pytest.mark.full) for how in CLOSINGS]
)
def test_environment_failing_to_close_is_named(how: str, tied: Path, tmp_path: Path) -> None:
    """An environment that does not close is named and blocks no other."""
    file = tmp_path / "closing.py"
    file.write_text(f"{COUNTING}\n    def close(self):\n        {CLOSINGS[how]}\n")
    options = GrpoOptions(environment=f"{file}:Counting", environment_timeout=3, reward_workers=1)
    selected = select_environment(options, ["word"], tied)
    assert selected is not None
    calls = [EpisodeCall(str(number), EpisodeStart([], {"word": "x"}, seed=number)) for number in range(3)]
    said: list[str] = []
    pool = EnvironmentPool(selected, options, say=said.append)
    try:
        pool.advance(calls)
        pool.forget(calls[1:2])  # as where an episode ends by a limit
        for number in range(1, 4):
            live = [calls[0], calls[2]]
            for call in live:
                call.turns.append(Turn("abc", number))
            pool.advance(live)
        assert pool._workers.started == 1
    finally:
        pool.close()
    assert [call.failure for call in calls] == ["", "", ""]
    assert [len(call.seen) for call in calls] == [3, 0, 3]
    (line,) = said
    assert line.startswith(f"The environment {file}:Counting failed in close: ")


@pytest.mark.full
def test_a_failed_episode_is_left_out_and_too_many_end_the_run(tied: Path, counting: str, tmp_path: Path) -> None:
    rows = [{**row, "trap": {"a": "raise", "b": "begin"}.get(str(row["word"]), "")} for row in ROWS]
    more = {"objective.reward_max_failed": 0.8, "train.global_batch": 12, "objective.beta": 0.1, "tuner.kind": "lora"}
    (made,) = rounds(run_training(tied, tmp_path / "some", rows, settings(counting, **more)))
    failed = [completion for completion in made.completions if completion.episode and completion.episode.failure]
    assert {completion.prompt for completion in failed} == {0, 1}
    for completion in failed:
        assert not completion.learned
        assert completion.rewards["environment"] is None
        assert ("no game" if completion.prompt else "ZeroDivisionError") in completion.remarks["environment"]
    assert {completion.prompt for completion in made.completions if completion.learned} >= {2}
    with pytest.raises(SwiftError, match=r"environment failed for .* of 8 episodes.*ZeroDivisionError"):
        run_training(tied, tmp_path / "none", rows, settings(counting, **{"objective.reward_on_error": "stop"}))


@pytest.mark.full
def test_stale_episodes_use_weights_of_previous_round(tied: Path, counting: str, tmp_path: Path) -> None:
    """Stale episodes use the weights of the previous round."""
    changes = {"objective.rollout_staleness": 1, "train.max_steps": 3, "optim.lr": 1e-2, "optim.warmup_steps": 0}
    whole = run_training(tied, tmp_path, ROWS, settings(counting, **changes))
    gaps = []
    for made in rounds(whole):
        assert made.version == max(0, made.number - 1)
        writers = [tied if not step else whole.folder / f"checkpoint-{step}" for step in (made.version, made.number)]
        wrote, learns = (logps_of(folder, made) for folder in writers)
        assert np.concatenate([completion.logps for completion in made.completions]) == pytest.approx(wrote, abs=1e-5)
        gaps.append(np.abs(wrote - learns).max())
    assert gaps[0] == 0
    assert min(gaps[1:]) > 1e-3
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-1"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, settings(counting, **changes, **resume))
    assert (rest.losses, rest.grad_norms) == (whole.losses[1:], whole.grad_norms[1:])


def logps_of(folder: Path, made: Round) -> np.ndarray:
    """Return the log-probabilities of all tokens that the model wrote in a round, by a plain model of a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for completion in made.completions:
        assert completion.episode is not None
        before = made.prompts[completion.prompt].token_ids.tolist()
        ids = torch.tensor([[*before, *completion.episode.token_ids]])
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(before) - 1 :, 0]
        found.append(logps[torch.tensor(completion.episode.written)].detach().numpy())
    return np.concatenate(found)


@pytest.mark.full
def test_episode_length_includes_observations(tied: Path, counting: str, tmp_path: Path) -> None:
    """The length limit of an episode counts the observations."""
    limits = {
        "objective.completion_length_limit_scope": "total",
        "objective.max_completion_length": 40,
        "objective.max_turns": 2,
        "objective.stop_words": list("abcdefghij"),
    }
    (made,) = rounds(run_training(tied, tmp_path, ROWS, settings(counting, **limits)))
    lengths, turns, reasons = [], [], set()
    for completion in made.completions:
        episode = completion.episode
        assert episode is not None
        assert episode.written[-1], "nothing is told after the last completion"
        assert completion.token_ids.tolist() == [
            token for token, own in zip(episode.token_ids, episode.written, strict=True) if own
        ]
        lengths.append(len(episode.token_ids))
        turns.append(episode.turns)
        reasons.add((episode.turns, completion.finish_reason))
    assert max(lengths) == 40
    assert max(turns) == 2
    assert {(1, "length"), (2, "length")} <= reasons


@pytest.mark.full
def test_too_long_initial_observation_is_refused(tied: Path, counting: str, tmp_path: Path) -> None:
    """An episode that begins with more than the model can read says so."""
    file = tmp_path / "long.py"
    begin = "        return [{'role': 'user', 'content': 'word ' * 400}]\n\n    def step"
    file.write_text(COUNTING.replace("\n    def step", begin))
    with pytest.raises(SwiftError, match=r"its prompt has \d+ tokens, which leaves no room .* the 512 positions"):
        run_training(tied, tmp_path, ROWS, settings(f"{file}:Counting"))


@pytest.mark.full
def test_the_steps_of_an_episode_may_take_so_long_together(tied: Path, tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(COUNTING.replace("        trap =", "        time.sleep(1.2)\n        trap ="))
    options = GrpoOptions(environment=f"{file}:Counting", environment_timeout=60, episode_timeout=2, reward_workers=1)
    selected = select_environment(options, ["word"], tied)
    assert selected is not None
    call, pool = EpisodeCall("0", EpisodeStart([], {"word": "x"})), EnvironmentPool(selected, options)
    try:
        pool.advance([call])
        while not call.over:
            call.turns.append(Turn("abc", len(call.turns) + 1))
            pool.advance([call])
    finally:
        pool.close()
    assert call.failure == "the episode took longer than 2 s"
    assert len(call.seen) < 3


def evaluated(model: Path, counting: str, out: Path) -> Trained:
    changes = {"train.max_steps": 2, "train.eval_steps": 2, "train.micro_batch": 2, "objective.eval_temperature": 1.0}
    return run_training(model, out, ROWS, settings(counting, **changes), validation=ROWS[:3])


@pytest.mark.full
def test_episodes_are_the_same_on_one_process_and_on_two(tied: Path, counting: str, tmp_path: Path) -> None:
    alone = succeeded(on_processes(1, partial(evaluated, tied, counting, tmp_path / "alone"))[0])[0]
    together = succeeded(on_processes(2, partial(evaluated, tied, counting, tmp_path / "together"))[0])[0]
    assert [told(made) for made in rounds(together)] == [told(made) for made in rounds(alone)]
    assert together.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
    assert together.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    scored = [run.lines[2]["eval_rewards/environment"] for run in (together, alone)]
    assert scored[0] == scored[1] > 0


THINKING = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{{ message.content.split('</think>')[-1] if not loop.last else message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRIMMING = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def following(tied: Path, template: str, completion: str, *, keep: bool = False) -> str:
    tokenizer = AutoTokenizer.from_pretrained(tied)
    tokenizer.chat_template = template
    turns = TurnRenderer(tokenizer, {}, keep=keep)
    turns.check()
    asked = [{"role": "user", "content": "How much?"}]
    before = turns.first(asked, (), "row 1").text
    rendering = turns.following(before, asked, completion, [{"role": "user", "content": "More."}], (), "row 1, turn 1")
    return str(tokenizer.decode(rendering.token_ids))


def test_template_rewriting_completions_shows_difference(tied: Path) -> None:
    """A template that rewrites earlier completions is refused with the piece."""
    expected = "<|end|><|user|>More.<|end|><|assistant|>"
    assert following(tied, TRIMMING, " four\n") == expected
    with pytest.raises(TemplateDrift, match=r"Before the first episode: .* instead of '<think>"):
        following(tied, THINKING, "four")
    unaware = THINKING.replace("'</think>'", "('</' ~ 'think>')")
    with pytest.raises(TemplateDrift, match=r"row 1, turn 1: .*'four<.end.>.* instead of '<think>hm</think>four'"):
        following(tied, unaware, "<think>hm</think>four")
    assert following(tied, THINKING, "<think>hm</think>four", keep=True) == expected
    with pytest.raises(SwiftError, match="Before the first episode"):
        following(tied, "{{ messages[-1].content }}{{ messages | length }}", "four")


MS_SWIFT = """
import re
from typing import Any, Dict, List, Tuple

from swift.infer_engine.protocol import ChatCompletionResponseChoice, RolloutInferRequest
from swift.rewards import ORM, orms
from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns
from swift.template import Messages
from swift.utils import get_logger

logger = get_logger()


class Calculator(MultiTurnScheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def check_finished(self, infer_request: 'RolloutInferRequest', response_choice, current_turn: int) -> bool:
        if 'Action' not in response_choice.message.content:
            return True
        return super().check_finished(infer_request, response_choice, current_turn)

    def step(self, infer_request: 'RolloutInferRequest', response_choice, current_turn: int) -> Dict:
        token_ids = response_choice.token_ids
        result = ' = ' + str(eval(re.findall(r'Action: (.*)', response_choice.message.content)[-1]))
        infer_request.messages[-1]['content'] += result
        more = self.tokenizer.encode(result, add_special_tokens=False)
        loss_mask = [1] * len(token_ids) + [0] * len(more)
        token_ids.extend(more)
        return {'infer_request': infer_request, 'response_token_ids': token_ids, 'response_loss_mask': loss_mask,
                'rollout_infos': {'tool': result}}


class Tips(MultiTurnScheduler):
    def step(self, infer_request, response_choice, current_turn):
        again = f'Again, {infer_request.data_dict["who"]}.'
        again = self.tokenizer.decode(self.tokenizer.encode(again, add_special_tokens=False))
        infer_request.messages.append({'role': 'user', 'content': again})
        return {'infer_request': infer_request}


class Own(MultiTurnScheduler):
    async def run(self, infer_request, request_config, **kwargs):
        return None


class Door(Env):
    async def reset(self, config: RolloutInferRequest) -> Tuple[str, Dict[str, Any], str]:
        self.code = self.env_config['code']
        return 'Which code?', {}, 'You open doors.'

    async def step(self, action: Messages) -> Tuple[str, float, bool, Dict[str, Any]]:
        right = action[-1]['content'] == self.code
        return 'No.', float(right), right, {'tries': len(action)}

    async def close(self):
        pass


multi_turns['calculator'] = Calculator
multi_turns['tips'] = Tips
multi_turns['own'] = Own
envs['door'] = Door
"""


def played(
    tied: Path, folder: Path, name: str, *completions: str, source: str | None = MS_SWIFT, **columns: Any
) -> EpisodeCall:
    plugin = folder / "plugin.py"
    plugin.write_text(source or "")
    files = (plugin,) if source else ()
    options = GrpoOptions(environment=name, external_plugins=files, max_turns=3, reward_workers=1)
    selected = select_environment(options, list(columns), tied)
    assert selected is not None
    call = EpisodeCall("0", EpisodeStart([{"role": "user", "content": "Hello"}], columns))
    pool = EnvironmentPool(selected, options)
    try:
        pool.advance([call])
        for number, completion in enumerate(completions, 1):
            call.turns.append(Turn(completion, number, [1, 2]))
            pool.advance([call])
    finally:
        pool.close()
    assert not call.failure, call.failure
    return call


def test_ms_swift_schedulers_and_gym_environments_run(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedulers and Gym environments of ms-swift run as they are."""
    door = played(tied, tmp_path, "door", "11", "42", env_config={"code": "42"})
    assert door.first == [
        {"role": "system", "content": "You open doors."},
        {"role": "user", "content": "Which code?"},
    ]
    assert door.seen == [
        Observation([{"role": "user", "content": "No."}], 0.0, info={"tries": 3}),
        Observation([], 1.0, done=True, info={"tries": 5}),
    ]
    monkeypatch.chdir(tied.parent)  # the tokenizer is named from where the command was typed
    tips = played(Path(tied.name), tmp_path, "tips", "four", "five", "six", who="Ann")
    assert tips.first is None
    assert [seen.messages for seen in tips.seen] == [[{"role": "user", "content": "Again, Ann."}]] * 2 + [[]]
    assert [seen.done for seen in tips.seen] == [False, False, True]


@pytest.mark.full
def test_scheduler_continues_within_completion(tied: Path, tmp_path: Path) -> None:
    call = played(tied, tmp_path, "calculator", "I ask. Action: 2 + 2", ", so it is four.")
    assert call.seen[0] == Observation([], info={"tool": " = 4"}, text=" = 4")
    assert call.seen[1].done
    with pytest.raises(ConfigError, match="overrides run"):
        played(tied, tmp_path, "own")
    with pytest.raises(ConfigError, match=r"there are .*calculator, tips, own, .*door"):
        played(tied, tmp_path, "dor")


TIP = "But wait... It seems I made a mistake,"


@pytest.mark.full
def test_schedulers_that_ms_swift_brings_with_it_have_its_names(tied: Path, tmp_path: Path) -> None:
    wrong = "<think>2 + 2 is 5</think><answer>5</answer>"
    doubted = played(tied, tmp_path, "math_tip_trick", wrong, " 4</think>", source=None, solution="$4$")
    assert doubted.seen[0] == Observation([], text=TIP, keep=len("<think>2 + 2 is 5"))
    assert doubted.seen[1].done
    assert played(tied, tmp_path, "math_tip_trick", "<answer>4</answer>", source=None, solution="$4$").seen[0].done
    with pytest.raises(DataError, match="needs the column 'solution'"):
        played(tied, tmp_path, "math_tip_trick", source=None)

    asked = {"env_config": {"name": "math_env"}, "problem": "2 + 2?", "solution": "$4$"}
    for name in ("gym_scheduler", "math_env"):  # the row's, and by --gym_env
        solved = played(tied, tmp_path, name, "<answer>5</answer>", "<answer>4</answer>", source=None, **asked)
        assert solved.first is not None
        assert solved.first[0]["content"].startswith("A conversation between User and Assistant.")
        assert solved.first[1:] == [{"role": "user", "content": "2 + 2?"}]
        (again,) = solved.seen[0].messages
        assert again["content"].startswith("The answer is not correct")
        assert [(seen.reward, seen.done) for seen in solved.seen] == [(0.0, False), (1.0, True)]


@pytest.mark.parametrize("name", ["base_scheduler", "math_tip_trick_multi_turn", "thinking_tips_scheduler"])
def test_unsupported_schedulers_are_refused(tied: Path, name: str) -> None:
    """Other schedulers of ms-swift are refused with what to type."""
    with pytest.raises(ConfigError, match=f"'{name}' of ms-swift is not available") as refused:
        select_environment(GrpoOptions(environment=name), [], tied)
    assert refused.value.hint


DERIVED = """
import sys
from types import ModuleType, SimpleNamespace

from swift.rollout.gym_env import Env, SimpleMathEnv, envs
from swift.rollout.multi_turn import GYMScheduler, MathTipsScheduler, OpenEnvScheduler, multi_turns


class Server:
    # Stands for openenv's client: counts down, and says when it is over.
    def __init__(self, base_url):
        self.url = base_url

    def sync(self):
        return self

    def __enter__(self):
        print('open', self.url)
        return self

    def __exit__(self, *_):
        print('closed', self.url)

    def reset(self, start):
        self.left = start
        return SimpleNamespace(observation={'left': start})

    def step(self, action):
        self.left -= action['take']
        return SimpleNamespace(observation={'left': self.left}, reward=action['take'] / 2, done=self.left <= 0)


for name in ('openenv', 'openenv.core', 'openenv.core.generic_client'):
    sys.modules[name] = ModuleType(name)
sys.modules['openenv.core.generic_client'].GenericEnvClient = Server


class Taking(OpenEnvScheduler):
    def format_observation(self, observation):
        return f"{observation['left']} left"

    async def on_turn_end(self, infer_request, response_choice, current_turn):
        told = await super().on_turn_end(infer_request, response_choice, current_turn)
        if infer_request.uuid in self._total_rewards:
            self._total_rewards[infer_request.uuid] += 10
        return told


class Hint(MathTipsScheduler):
    tips_prompt = ' Hm,'


class Doors(GYMScheduler):
    def _create_env(self, env_config):
        return Always()


class Always(SimpleMathEnv):
    def __init__(self):
        super().__init__({})


multi_turns['taking'] = Taking
multi_turns['hint'] = Hint
multi_turns['doors'] = Doors
"""


@pytest.mark.full
def test_plugin_files_derive_from_the_schedulers_of_ms_swift(tied: Path, tmp_path: Path) -> None:
    config = {"base_url": "http://there", "reset_kwargs": {"start": 3}, "system_message": "Take."}
    turns = ('```json\n{"take": 2}\n```', '{"take": 1}')
    taken = played(tied, tmp_path, "taking", *turns, source=DERIVED, env_config=config)
    assert taken.first == [{"role": "system", "content": "Take."}, {"role": "user", "content": "3 left"}]
    assert taken.seen[0].messages == [{"role": "user", "content": "1 left"}]
    assert [(seen.reward, seen.done) for seen in taken.seen] == [(1.0, False), (10.5, True)]
    left = played(tied, tmp_path, "taking", '{"take": 1}', source=DERIVED, env_config=config)
    assert not left.seen[0].done
    hint = played(tied, tmp_path, "hint", "<answer>5</answer>", source=DERIVED, solution="$4$")
    assert hint.seen[0].text == " Hm,"
    doors = played(tied, tmp_path, "doors", "<answer>4</answer>", source=DERIVED, problem="?", solution="$4$")
    assert doors.seen[0].done
    assert doors.seen[0].reward == 1.0
    with pytest.raises(ConfigError, match="there are math_tip_trick, gym_scheduler, openenv_scheduler, taking"):
        played(tied, tmp_path, "dor", source=DERIVED)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("Observation([], float('nan'))", "the reward nan. Expected: a finite number"),
        ("Observation([], 'much')", "the reward 'much'. Expected: a finite number"),
        ("Observation([5], 1.0)", "messages that are not mappings"),
        ("Observation(text=5)", "text=5. Expected: a string"),
        ("Observation([], 10**400)", "Expected: a finite number"),
        ("Observation([], [1.0])", "the reward [1.0]. Expected: a finite number"),
        ("Observation(None)", "returned NoneType as messages"),
        ("Observation([{'role': 'user', 'content': b'a'}])", "messages that cannot be written as JSON"),
        ("Observation([{'role': 'user', 'content': chr(0xD800)}])", "messages with an unpaired surrogate"),
        ("Observation(text=chr(0xD800))", "text with an unpaired surrogate"),
        ("Observation(text='a', keep=-1)", "keep=-1. Expected: a whole number"),
        ("Observation(text='a', keep='b')", "keep='b'. Expected: a whole number"),
        ("Observation([], done='no')", "done='no'. Expected: True or False"),
        ("Observation([], info='a')", "info='a'. Expected: a mapping"),
        ("Observation([], info={(1, 2): 3})", "info={(1, 2): 3}. Expected: a mapping with string keys"),
        ("1 / 0", "ZeroDivisionError: division by zero (in step)"),
    ],
)
def test_untrainable_observation_fails_its_episode(returned: str, message: str) -> None:
    """An observation that nothing can be learned from fails its episode."""
    episodes = HostedEpisodes()
    scope: dict[str, Any] = {}
    exec(f"def step(self, turn):\n    return {returned}", {"Observation": Observation}, scope)
    environment = type("Odd", (), {"reset": lambda self, start: None, **scope})
    task = {"key": "0", "turns": [asdict(Turn("a", 1))], "environment": {}, "start": asdict(EpisodeStart([], {}))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swift_rl.environments.hosted.new_episode", lambda _: environment())
        assert episodes.reply({**task, "turns": []}, lambda: None) == {"first": None}
        assert message in episodes.reply(task, lambda: None)["failure"]


def test_a_reward_of_another_kind_of_number_is_that_number() -> None:
    said = [plain(Observation([], reward))["reward"] for reward in (np.float32(1.5), Decimal("1.5"), True, None)]
    assert said == [1.5, 1.5, 1.0, None]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("wants = None", "has wants that are not column names"),
        ("wants = 'word'", "has wants that are not column names"),
        ("wants = [5]", "has wants that are not column names"),
        ("options_model = dict", "has an options_model that is not a pydantic model"),
        ("raise KeyError('wheel')", "failed in its constructor: KeyError: 'wheel'."),
    ],
)
def test_class_attributes_are_checked_before_weights_load(source: str, said: str, tied: Path, tmp_path: Path) -> None:
    """What a class says of itself is looked at before weights are loaded."""
    (tmp_path / "odd.py").write_text(f"class Odd:\n    {source}\n    def reset(self, start): ...\n    step = reset\n")
    with pytest.raises(ConfigError) as refused:
        select_environment(GrpoOptions(environment=f"{tmp_path / 'odd.py'}:Odd"), ["word"], tied)
    assert said in refused.value.message
    assert "Traceback" not in refused.value.message


def test_failing_environment_is_named_with_traceback_file(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed environment that fails is named with a traceback in a file."""
    broken = COUNTING.replace("def step(self, turn):", "def step(self, turn):\n        1 / 0\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "hostile_turns.py").write_text(broken)
    info = tmp_path / "site" / "hostile_turns-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-turns\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[swift.environments]\nhostile = hostile_turns:Counting\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(SwiftError) as refused:
        run_training(tied, tmp_path, ROWS, settings("hostile"))
    message = refused.value.message
    assert "environment 'hostile' (hostile-turns 1.2) failed for 8 of 8 episodes" in message
    assert "ZeroDivisionError: division by zero (in step)" in message
    assert "Traceback" not in message
    (kept,) = re.findall(r"The traceback is in (\S+)\.$", message)
    assert "ZeroDivisionError" in Path(kept).read_text()


@pytest.mark.parametrize("words", [b"garbage" * 9, struct.pack("!Q", 3) + b"[1]", struct.pack("!Q", 9) + b"{"])
def test_what_user_code_writes_into_the_channel_ends_its_process(words: bytes, tmp_path: Path) -> None:
    worker: WorkerProcess[str] = WorkerProcess(tmp_path / "home", memory=0)
    theirs, ours = socket.socketpair()
    worker.channel.close()
    worker.channel = ours
    with theirs, contextlib.suppress(OSError):
        theirs.sendall(words)
        theirs.shutdown(socket.SHUT_WR)
        assert worker.reply() is None
    worker.kill()
