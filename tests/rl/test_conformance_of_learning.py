"""Toy tasks that take minutes, beside controls in which there is nothing to be learned: `make conformance`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from commands import typed
from kit_cases import WHOLE_KIT

from swift_demo import online_demo
from swift_demo.model import write_model
from swift_testing.tokenizer import byte_tokenizer

pytestmark = pytest.mark.skipif(not WHOLE_KIT, reason="takes minutes: make conformance")

CONTROL = '''

def noise(completions, **columns):
    """0 or 1 by the letters of a completion, whatever the prompt."""
    return [sum(map(ord, text)) % 2 for text in completions]


digits.batched = noise.batched = True
'''
PPO = (
    "--critic shared --vf_coef 0.5 --kl_coef 0 --num_ppo_epochs 2 --max_completion_length 32 --train_type full "
    "--per_device_train_batch_size 128 --padding_free true --weight_decay 0 --learning_rate 5e-4 "
    "--lr_scheduler_type cosine --eval_on_start true --eval_strategy steps --eval_steps 25 --eval_temperature 1 "
    "--num_generations_eval 4 --backend.cpu_threads 1"
)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `swift demo --task grpo`, whose model goes on talking after the number seven times in ten."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online_demo, "REWARD_STEPS", 1)
        patch.setattr(online_demo, "GOAL", 0.0)
        ended = typed(["demo", "--task", "grpo", "--out", str(out / "demo")], out)
    assert ended.code == 0, ended.output
    file = out / "demo" / "reward.py"
    file.write_text(file.read_text() + CONTROL)
    return out / "demo"


@pytest.mark.full
@pytest.mark.parametrize(("reward", "steps", "least", "most"), [("digits", 75, 0.9, 1.0), ("noise", 25, 0.0, 0.5)])
def test_ppo_learns_rewarded_numbers_not_noise(
    talker: Path, tmp_path: Path, reward: str, steps: int, least: float, most: float
) -> None:
    """PPO learns the numbers that are rewarded, and none from noise."""
    (learned,) = (talker / "runs").glob(f"*/examples/checkpoint-{online_demo.EXAMPLE_STEPS}")
    told = (
        f"ppo --model {learned} --dataset {talker}/prompts.jsonl --val_dataset {talker}/held_out.jsonl --reward_funcs "
        f"{talker}/reward.py:digits {talker}/reward.py:noise --reward_weights {int(reward == 'digits')} "
        f"{int(reward == 'noise')} --max_steps {steps} --output_dir {tmp_path} --run_name {reward} {PPO}"
    )
    ended = typed(told.split(), tmp_path)
    assert ended.code == 0, ended.output
    (file,) = tmp_path.glob(f"*/{reward}/logging.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    right = [line["eval_rewards/digits"] for line in lines if "eval_reward" in line]
    assert 0.2 < right[0] < 0.4
    assert least <= right[-1] <= most


NUMBERS, GUESSES = 10, 4
"""Four guesses find any of ten numbers, and of fifteen, if each halves what is left: a first guess beside the middle
costs nothing. Of seven numbers and three guesses it costs a number, and who has learned the rest for it stays there.
Without being told where it is, four guesses find 4 of 10."""
GAMES = f"""
import random

from swift.contracts import Observation


class Guessing:
    def reset(self, start):
        self.random = random.Random(start.seed)
        self.number = self.random.randrange({NUMBERS})

    def where(self, guess):
        return '>' if self.number > guess else '<'

    def step(self, turn):
        if len(turn.text) != 1 or not turn.text.isdigit():
            return Observation(reward=0.0, done=True)
        if int(turn.text) == self.number:
            return Observation(reward=1.0, done=True)
        return Observation([{{'role': 'user', 'content': self.where(int(turn.text))}}], reward=0.0)


class Guesswork(Guessing):
    # The control: what is told says nothing.
    def where(self, guess):
        return self.random.choice('<>')
"""
TERSE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
)
LEARN = "--train_type full --padding_free true --weight_decay 0 --lr_scheduler_type cosine --backend.cpu_threads 1"
PLAY = (
    f"--max_turns {GUESSES} --completion_length_limit_scope per_round --max_completion_length 2 --num_generations 8 "
    "--per_device_train_batch_size 256 --warmup_steps 4 --learning_rate 2e-3 --eval_on_start true "
    f"--eval_strategy steps --eval_steps 50 --eval_temperature 1 --num_generations_eval 4 {LEARN}"
)


def played_anyhow(rng: random.Random) -> list[dict[str, str]]:
    """A game of someone who listens, and guesses anywhere in what is left."""
    number, messages, low, high = rng.randrange(NUMBERS), [{"role": "user", "content": "?"}], 0, NUMBERS - 1
    for left in reversed(range(GUESSES)):
        guess = rng.randint(low, high)
        messages.append({"role": "assistant", "content": str(guess)})
        if guess == number or not left:
            break
        low, high = (guess + 1, high) if number > guess else (low, guess - 1)
        messages.append({"role": "user", "content": ">" if number > guess else "<"})
    return messages


@pytest.fixture(scope="module")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the game and a model that learned from examples to guess within the known bounds."""
    out = tmp_path_factory.mktemp("guesser")
    (out / "game.py").write_text(GAMES)
    rng = random.Random(0)
    rows = {
        "examples": [played_anyhow(rng) for _ in range(2000)],
        "games": [[{"role": "user", "content": "?"}]] * 32,
        "held_out": [[{"role": "user", "content": "?"}]] * 64,
    }
    for name, games in rows.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in games))
    model = write_model(out / "model", hidden=64, spread=0.06)
    byte_tokenizer(chat_template=TERSE).save_pretrained(model)
    told = f"sft --model {model} --dataset {out}/examples.jsonl --per_device_train_batch_size 128 --max_steps 200 "
    told += f"--output_dir {out} --run_name examples --learning_rate 4e-3 {LEARN}"
    ended = typed(told.split(), out)
    assert ended.code == 0, ended.output
    return out


# Seed 5 finds 0.70 before the first step, 0.95 after 50 and 0.97 after 100.
@pytest.mark.full
@pytest.mark.parametrize(
    ("game", "seed", "steps", "least", "most"),
    [("Guessing", 5, 100, 0.9, 1.0), ("Guesswork", 4, 50, 0.0, 0.55)],
)
def test_environment_feedback_is_learned_if_meaningful(
    guesser: Path, tmp_path: Path, game: str, seed: int, steps: int, least: float, most: float
) -> None:
    """Numbers are found from the feedback of the environment, and not where it means nothing."""
    (model,) = guesser.glob("*/examples/checkpoint-200")
    told = (
        f"rlhf --rlhf_type grpo --model {model} --dataset {guesser}/games.jsonl --val_dataset {guesser}/held_out.jsonl "
        f"--environment {guesser}/game.py:{game} --max_steps {steps} --seed {seed} --output_dir {tmp_path} "
        f"--run_name play {PLAY}"
    )
    ended = typed(told.split(), tmp_path)
    assert ended.code == 0, ended.output
    (file,) = tmp_path.glob("*/play/logging.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [line["eval_reward"] for line in lines if "eval_reward" in line]
    assert 0.2 < found[0] < 0.8
    assert least <= found[-1] <= most
