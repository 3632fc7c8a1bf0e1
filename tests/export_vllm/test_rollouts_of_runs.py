"""Whole runs of online learning whose answers vLLM draws: in the process that trains, and on two servers by address.

A run whose answers the engine `transformers` draws is what they are compared with: the same tokens in every round, and
the same steps. vLLM is started once in a process of its own, and `swift rollout` twice, for everything here. What an
engine in process does with an update that is not whole, and on episodes, is in its kit and in the tests of servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from commands import started
from imported import interpreter
from safetensors.torch import load_file
from served import ENGINE_WORKS, ENVIRONMENT, READY, Served
from tiny_runs import Trained, run_training, write_model

from swift.contracts import Sampling
from swift.errors import SwiftError
from swift_export_vllm import rollout, weights_folder
from swift_infer import OpenAiServer, open_engine
from swift_rl.rounds.files import read_round
from swift_testing.crew import free_port, run_jobs, succeeded

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}]} for word in "abcdefghijkl"]
ROUNDS = 2
SETTINGS: dict[str, Any] = {
    "objective.name": "grpo",
    "objective.num_generations": 4,
    "objective.max_completion_length": 12,
    # The steps are compared with those of a run that needs none.
    "objective.rollout_importance_sampling_mode": "off",
    "train.global_batch": 8,
    "train.micro_batch": 8,
    "train.max_steps": ROUNDS,
    "optim.lr": 2e-3,
    "optim.eps": 1e-6,
    "optim.warmup_steps": 0,
}
TUNED: dict[str, dict[str, Any]] = {"full": {}, "lora": {"tuner.kind": "lora", "tuner.rank": 4}}
PLAYING = '''
from swift.contracts import Observation


class Playing:
    """Three turns, whose words the answers and the seed decide."""

    def reset(self, start):
        self.seed = start.seed % 10

    def step(self, turn):
        told = {"role": "user", "content": f"{self.seed} {len(turn.text)}"}
        return Observation([told], float(len(set(turn.text))), turn.number == 3)
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM has attention on the CPU for heads of 32 and more."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", head_dim=32)


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rewards") / "rewards.py"
    file.write_text(
        "def evens(completion_ids, **columns):\n"
        "    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]\n"
    )
    return file


Train = Callable[..., Trained]


@pytest.fixture(scope="module")
def train(model: Path, rewards: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    return partial(trained, model, rewards, tmp_path_factory.mktemp("runs"))


def trained(model: Path, rewards: Path, out: Path, name: str, tuner: str, **changes: Any) -> Trained:
    more = {f"objective.{key}": value for key, value in changes.items()}
    settings = {**SETTINGS, **TUNED[tuner], "objective.reward_funcs": [f"{rewards}:evens"], **more}
    return run_training(model, out, ROWS, {**settings, "logging.run_name": name})


def answers(run: Trained) -> list[list[list[int]]]:
    made = [read_round(run.folder / "rollouts", number) for number in range(ROUNDS)]
    return [[answer.token_ids.tolist() for answer in each.completions] for each in made if each is not None]


@pytest.fixture(scope="module")
def alone(train: Train) -> dict[str, Trained]:
    """The engine `transformers` draws."""
    return {tuner: train(f"alone-{tuner}", tuner) for tuner in TUNED} | {"playing": playing(train, "alone-playing")}


def playing(train: Train, name: str, **changes: Any) -> Trained:
    """Train on episodes, whose completions end with any of some letters."""
    folder = train.args[2]  # type: ignore[attr-defined]  # it is a partial
    (folder / "playing.py").write_text(PLAYING)
    limits = {"max_completion_length": 6, "completion_length_limit_scope": "per_round", "reward_workers": 1}
    world = {"environment": f"{folder / 'playing.py'}:Playing", "reward_funcs": [], "stop_words": list(ascii_letters)}
    return train(name, "full", **limits, **world, **changes)


def assert_same(run: Trained, alone: Trained) -> None:
    drawn = answers(alone)
    assert len(drawn) == ROUNDS
    assert len({tuple(tokens) for each in drawn for tokens in each}) > 12, "completions that are alike prove nothing"
    assert answers(run) == drawn
    assert run.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
    assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)
    assert max(line["mismatch/mean"] for line in run.lines.values()) < 1e-5


# --- in process -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_vllm_in_process_samples_as_transformers(alone: dict[str, Trained], train: Train) -> None:
    environment = {**ENVIRONMENT, "HF_HUB_OFFLINE": "1"}
    (found,) = succeeded(run_jobs(1, [partial(in_process, train)], environment=environment)[0])
    for tuner in TUNED:
        assert_same(found[tuner], alone[tuner])
    assert found["sent"] == ["update_weights"] * ROUNDS + ["update_adapter"] * ROUNDS


def in_process(train: Train) -> dict[str, Any]:
    from swift_export_vllm.engine import VllmInProcess

    sent: list[str] = []
    for method in ("update_weights", "update_adapter"):
        update = getattr(VllmInProcess, method)

        def noted(*arguments: Any, update: Any = update, method: str = method) -> None:
            sent.append(method)
            update(*arguments)

        setattr(VllmInProcess, method, noted)
    vllm = {"rollout_engine": "vllm", "rollout_options": {"max_model_len": 128}}
    return {tuner: train(f"vllm-{tuner}", tuner, **vllm) for tuner in TUNED} | {"sent": sent}


# --- on servers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def addresses(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two servers of `swift rollout`, which take adapters."""
    command = [str(interpreter()), "-m", "swift", "rollout", str(model), "--runtime-adapters"]
    command += ["--dtype", "float32", "--max-length", "128", "--port"]
    with ExitStack() as stack:
        runs = []
        for number in range(2):  # one after the other: each has the machine to itself
            folder = tmp_path_factory.mktemp(f"server-{number}")
            runs.append(stack.enter_context(started([*command, str(free_port())], folder, ENVIRONMENT | ENGINE_WORKS)))
            runs[-1].until(READY)
        yield [Served(run).url.removesuffix("/v1") for run in runs]


@pytest.fixture(scope="module")
def lora(addresses: list[str], train: Train) -> tuple[Trained, list[list[str]]]:
    """A run that sends adapters to both servers, and what these serve then."""
    run = train("two-lora", "lora", rollout_engine=",".join(addresses))
    return run, [OpenAiServer(address).models() for address in addresses]


@pytest.mark.full
def test_two_servers_use_current_adapters(lora: tuple[Trained, list[list[str]]], alone: dict[str, Trained]) -> None:
    run, served = lora
    assert_same(run, alone["lora"])
    for models in served:
        assert [name.rpartition("-")[2] for name in models[:-1]] == [str(ROUNDS)], "only the last version is left"


@pytest.mark.full
def test_servers_sample_as_transformers(
    addresses: list[str], lora: object, alone: dict[str, Trained], train: Train
) -> None:
    """They have adapters, and then get whole weights."""
    assert lora
    assert_same(train("servers", "full", rollout_engine=",".join(addresses)), alone["full"])


@pytest.mark.full
def test_episodes_are_played_on_servers_as_in_process(
    addresses: list[str], lora: object, alone: dict[str, Trained], train: Train
) -> None:
    assert lora
    run = playing(train, "servers-playing", rollout_engine=",".join(addresses))
    assert_same(run, alone["playing"])
    first, expected = (read_round(each.folder / "rollouts", 0) for each in (run, alone["playing"]))
    assert first is not None
    assert expected is not None
    episodes = [each.episode for each in first.completions]
    assert episodes == [each.episode for each in expected.completions]
    assert {each.turns for each in episodes if each is not None} == {1, 2, 3}


@pytest.mark.full
def test_a_weight_that_was_not_sent_is_named(addresses: list[str], lora: object, model: Path) -> None:
    assert lora
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    with pytest.raises(SwiftError, match=r"did not receive all weights.*model\.norm\.weight"):
        open_engine(addresses[0], model).update_weights(iter(weights.items()))


@pytest.mark.full
def test_a_weight_of_another_step_stops_the_run(
    addresses: list[str], lora: object, model: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lora
    write, name = weights_folder.write_weights, "model.layers.1.mlp.down_proj.weight"
    first = load_file(model / "model.safetensors")[name]

    def stale(weights: Any, to: Path) -> None:
        write(((each, first if each == name else tensor) for each, tensor in weights), to)

    monkeypatch.setattr(rollout, "write_weights", stale)
    with pytest.raises(SwiftError, match="scores of known sequences"):
        train("stale", "full", rollout_engine=addresses[0], rollout_tolerance=1e-5)


@pytest.mark.full
def test_weights_of_another_run_are_detected(addresses: list[str], lora: object, model: Path) -> None:
    assert lora
    weights = load_file(model / "model.safetensors")
    ours, theirs = (open_engine(addresses[0], model) for _ in range(2))
    ours.update_weights(iter(weights.items()))
    assert len(list(ours.generate([[5, 6]], Sampling(max_new_tokens=2)))) == 1
    theirs.update_weights(iter(weights.items()))
    with pytest.raises(SwiftError, match="another run has sent its own"):
        list(ours.generate([[5, 6]], Sampling(max_new_tokens=2)))
    adapter = open_engine(addresses[0], model, trained_adapter={"peft_type": "LORA", "r": 4})
    with pytest.raises(SwiftError, match="has whole weights of another run"):
        adapter.update_adapter(iter({}.items()), {"peft_type": "LORA", "r": 4})  # type: ignore[attr-defined]


@pytest.mark.full
def test_adapters_that_vllm_cannot_put_on_are_sent_merged(addresses: list[str], model: Path) -> None:
    said: list[str] = []
    config = {"peft_type": "LORA", "r": 4, "use_dora": True}
    engine: Any = open_engine(addresses[0], model, trained_adapter=config, say=said.append)
    assert not engine.takes_adapters
    assert json.dumps(said).count("DoRA") == 1


@pytest.mark.full
def test_server_teacher_matches_in_process_teacher(addresses: list[str], model: Path, tmp_path: Path) -> None:
    """A teacher on a server teaches what it teaches in the process."""
    open_engine(addresses[1], model).update_weights(iter(load_file(model / "model.safetensors").items()))
    student = write_model(tmp_path / "student", seed=1, head_dim=32)
    left_out = ("objective.num_generations", "objective.rollout_importance_sampling_mode")
    settings = {name: value for name, value in SETTINGS.items() if name not in left_out}
    settings |= {"objective.name": "gkd", "objective.gkd_logits_topk": 16, "objective.lmbda": 1.0}
    teachers = {"process": {}, "server": {"objective.teacher_model_server": addresses[1]}}
    local, served = (
        run_training(student, tmp_path / name, ROWS, {**settings, "objective.teacher_model": str(model), **teacher})
        for name, teacher in teachers.items()
    )
    assert min(line["kl"] for line in local.lines.values()) > 1e-2, "a teacher that agrees with the student"
    for name in ("kl", "loss", "grad_norm"):
        ours, expected = ([line[name] for line in run.lines.values()] for run in (served, local))
        assert ours == pytest.approx(expected, rel=1e-4 if name == "grad_norm" else 1e-5, abs=1e-5), name
