"""The engine vLLM, in process and on a server, under the kit of engines and fed by runs of real backends.

Two vLLMs are started for all of it. What happens in process happens in a process of its own: vLLM changes much of the
one that it is in.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm_server import ENVIRONMENT, vllm_server

from swift.cli.main import run
from swift.config.parse import config_from_mapping
from swift.contracts import InferenceEngine, Sampling
from swift.errors import UsageError
from swift.infer import open_engine
from swift.testing.crew import run_jobs, succeeded
from swift.testing.engine_checks import (
    CHECKS,
    NARROW,
    Check,
    TransformersReference,
    log_probabilities_are_the_model_s_own,
    sampled_log_probabilities_are_those_of_transformers,
)
from swift.testing.engine_conformance import request_of
from swift.testing.subjects import conversations, write_jsonl, write_model
from swift.train.loop import Loop
from swift.train.prepare import open_job

ANSWERS = {"colour?": "blue", "number?": "forty-two", "animal?": "otter", "a longer question?": "a dog"}
ROWS = [{"query": question, "response": answer} for question, answer in ANSWERS.items()]
GREEDY = Sampling(max_new_tokens=16)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TransformersReference:
    """A model with heads as vLLM has them on a CPU."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return TransformersReference(write_model(folder, head_dim=32), tolerance=2e-5)


# --- on a server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(reference: TransformersReference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_server(reference.folder, tmp_path_factory.mktemp("server") / "log.txt", name="tiny") as address:
        yield address


@pytest.fixture(scope="module")
def server(reference: TransformersReference, address: str) -> InferenceEngine:
    from swift_export_vllm.rollout import connect

    return connect(address, end_tokens=reference.end_tokens)


SERVED = [check for check in CHECKS if check.__name__ != "half_an_update_is_refused"]
"""A server reads what it is given, and says nothing of what it is not."""


@pytest.mark.full
@pytest.mark.parametrize("check", SERVED, ids=lambda check: check.__name__)
def test_server_returns_completion_tokens(
    check: Check, server: InferenceEngine, reference: TransformersReference
) -> None:
    check(server, reference)


@pytest.mark.full
def test_several_servers_sample_as_one(address: str, server: InferenceEngine, reference: TransformersReference) -> None:
    from swift_export_vllm.rollout import connect

    several: Any = connect([address, address, address], end_tokens=reference.end_tokens)
    opened = open_engine(f"{address}, {address}", reference.folder)
    asked: set[int] = set()
    chosen = several._server_of
    several._server_of = lambda number: asked.add(number % 3) or chosen(number)
    drawn = Sampling(max_new_tokens=8, temperature=1.0, seed=4, numbers=range(100, 112))
    assert dict(several.generate(reference.prompts * 2, drawn)) == dict(server.generate(reference.prompts * 2, drawn))
    assert asked == {0, 1, 2}
    first = Sampling(max_new_tokens=1, temperature=1.0)
    one, other = (dict(engine.generate(reference.prompts, first)) for engine in (opened, server))
    assert [one[place].token_ids for place in range(6)] == [other[place].token_ids for place in range(6)]
    several.update_weights(reference.weights())
    assert _tokens(several, reference.prompts) == _tokens(server, reference.prompts)


@pytest.mark.full
def test_server_with_other_log_probs_is_refused(server: InferenceEngine, reference: TransformersReference) -> None:
    """A server is refused that returns other log-probabilities."""
    with pytest.raises(UsageError, match="of the model itself, but those of the sampling distribution") as raised:
        list(server.generate(reference.prompts, NARROW))
    assert "--logprobs-mode processed_logprobs" in str(raised.value)
    plain = replace(NARROW, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)
    assert len(list(server.generate(reference.prompts, plain))) == len(reference.prompts)


@pytest.fixture(scope="module")
def fed(address: str, reference: TransformersReference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The server after a run of FSDP 2 on two processes has handed its weights over: what it says, and transformers."""
    output = tmp_path_factory.mktemp("fsdp")
    job = partial(_train_beside_a_server, address, reference, output)
    told: dict[str, Any] = succeeded(run_jobs(2, [job])[0])[0]
    return told


@pytest.mark.full
def test_a_run_on_two_processes_feeds_a_server(fed: dict[str, Any]) -> None:
    assert fed["versions"] == {60}
    assert fed["after"] == fed["expected"]
    assert fed["after"] != fed["before"]


@pytest.mark.full
def test_trained_model_is_queried_by_address(
    fed: dict[str, Any],
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fed
    data = write_jsonl(tmp_path / "questions.jsonl", [{**row, "id": number} for number, row in enumerate(ROWS)])
    result = tmp_path / "answers.jsonl"
    flags = ["--engine", address, "--max_new_tokens", "24"]
    assert run(["infer", *flags, "--dataset", str(data), "--result_path", str(result)]) == 0
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    assert [line["messages"][-1]["content"] for line in lines] == list(ANSWERS.values())
    assert [line["id"] for line in lines] == [0, 1, 2, 3]
    assert run(["eval", "tiny", *flags, "--dataset", str(data)]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    monkeypatch.setattr("sys.stdin", io.StringIO("colour?\n/clear\nanimal?\n"))
    assert run(["chat", *flags]) == 0
    assert capsys.readouterr().out == "blue\notter\n"
    assert run(["infer", "tini", *flags, "--prompt", "colour?"]) == 2
    assert "Did you mean 'tiny'?" in capsys.readouterr().err


# --- in process -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(reference: TransformersReference, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process with vLLM inside has found out."""
    job = partial(_everything_in_process, reference, tmp_path_factory.mktemp("in-process"))
    (found,) = succeeded(run_jobs(1, [job], environment=ENVIRONMENT)[0])
    assert isinstance(found, dict)
    return found


@pytest.mark.full
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_vllm_in_process_returns_completion_tokens(check: Check, told: dict[str, Any]) -> None:
    assert told[check.__name__] == ""


@pytest.mark.full
@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_a_run_feeds_the_vllm_in_its_process(tuner: str, told: dict[str, Any]) -> None:
    assert told[tuner]["after"] == told[tuner]["expected"]
    assert told[tuner]["after"] != told[tuner]["before"]
    assert told[tuner]["versions"] == {3}


@pytest.mark.full
def test_vllm_gives_only_sampling_log_probs(told: dict[str, Any]) -> None:
    assert (told["answered drawn"], told["drawn"]) == ("6", "")
    assert "log-probabilities of the model itself were requested" in told["model"]


@pytest.mark.full
def test_the_process_is_left_as_it_was(told: dict[str, Any]) -> None:
    assert told["left behind"] == []


@pytest.mark.full
def test_an_adapter_is_scored_as_transformers_scores_it(told: dict[str, Any]) -> None:
    assert told["score of vllm"] == pytest.approx(told["score of transformers"], rel=1e-4)
    assert told["answers of vllm"] == told["answers of transformers"]


# --- what the processes do ------------------------------------------------------------------------------------------


def _settings(model: Path, output: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model.path": str(model),
        "logging.output": str(output),
        "logging.report_to": [],
        "backend.device": "cpu",
        "data.workers": 1,
        "data.shuffle": False,
        "train.max_steps": 3,
        "train.global_batch": 4,
        "optim.lr": 5e-3,
        "optim.weight_decay": 0.0,
        "checkpoint.save_last": False,
        **changes,
    }


def _trained(
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    open_engine: Callable[[bool], InferenceEngine | None],
    reference: TransformersReference,
) -> dict[str, Any]:
    """What an engine says before and after a run has handed its weights over, and what transformers says with them."""
    prompts = reference.prompts
    with open_job(config_from_mapping(settings), rows=rows) as job:
        engine = open_engine(job.is_main)
        before = None if engine is None else _tokens(engine, prompts)
        Loop(job).run()
        assert job.run.send_weights is not None
        job.run.send_weights(engine)
        weights = {name: tensor.clone() for name, tensor in job.hooks.swift_iter_weights(job.run, job.state)}
        adapter = job.run.adapter_config
    if engine is None:
        return {}
    model = AutoModelForCausalLM.from_pretrained(settings["model.path"], dtype=torch.float32)
    if adapter is None:
        model.load_state_dict(weights)
    else:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

        model = get_peft_model(model, PeftConfig.from_peft_type(**adapter))
        assert not set_peft_model_state_dict(model, weights).unexpected_keys
    versions = {completion.version for _, completion in engine.generate(prompts, GREEDY)}
    answers = {"before": before, "after": _tokens(engine, prompts), "expected": _greedy(model, reference)}
    return {**answers, "versions": versions}


def _train_beside_a_server(address: str, reference: TransformersReference, output: Path) -> dict[str, Any]:
    from swift_export_vllm.rollout import connect

    changes = {"backend.name": "fsdp", "train.max_steps": 60, "tuner.kind": "full"}
    settings = _settings(reference.folder, output, **changes)

    def opened_by(is_main: bool) -> InferenceEngine | None:
        return connect(address, end_tokens=reference.end_tokens) if is_main else None

    return _trained(settings, ROWS, opened_by, reference)


def _everything_in_process(reference: TransformersReference, output: Path) -> dict[str, Any]:
    import os

    from swift.plugins.inference import open_inference
    from swift.plugins.load import load_engine

    before = dict(os.environ), torch.set_num_threads, torch.random.get_rng_state()
    engine = open_inference(load_engine("vllm"), request_of(reference, {}))
    found: dict[str, Any] = {"left behind": []}
    if not torch.equal(torch.random.get_rng_state(), before[2]):
        found["left behind"].append("the random state")
    for check in CHECKS[:-1]:
        found[check.__name__] = _complaint(check, engine, reference)
    for tuner, rate in (("full", 5e-3), ("lora", 2e-2)):
        engine.update_weights(reference.weights())
        settings = _settings(reference.folder, output, **{"tuner.kind": tuner, "optim.lr": rate})
        found[tuner] = _trained(settings, conversations(12), lambda _: engine, reference)
    found[CHECKS[-1].__name__] = _complaint(CHECKS[-1], engine, reference)
    found |= _drawn_in_process(reference)
    # torch's compiler leaves a mark of its own, whoever calls it first.
    mine = {name for name in {*before[0], *os.environ} if before[0].get(name) != os.environ.get(name)}
    found["left behind"] += sorted(name for name in mine if not name.startswith(("_TORCHINDUCTOR", "TORCHINDUCTOR")))
    if torch.distributed.is_initialized():
        found["left behind"].append("a process group")
    if torch.set_num_threads is not before[1]:
        found["left behind"].append("torch.set_num_threads")
    return found | _through_commands(reference.folder, output)


def _drawn_in_process(reference: TransformersReference) -> dict[str, str]:
    """The kit's check where vLLM is opened for it, and what it says where it is asked for the other kind."""
    from swift.plugins.inference import open_inference
    from swift.plugins.load import load_engine

    engine = open_inference(load_engine("vllm"), request_of(reference, {"logprobs_mode": "processed_logprobs"}))
    try:
        answered = len(list(engine.generate(reference.prompts, NARROW)))
        drawn = _complaint(sampled_log_probabilities_are_those_of_transformers, engine, reference)
        model = _complaint(log_probabilities_are_the_model_s_own, engine, reference)
    finally:
        engine.close()
    return {"answered drawn": str(answered), "drawn": drawn, "model": model}


def _through_commands(model: Path, output: Path) -> dict[str, Any]:
    """`swift infer` and `swift eval` with an adapter, by both engines."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(output / "adapter")
    data = write_jsonl(output / "questions.jsonl", ROWS)
    found: dict[str, Any] = {}
    for engine in ("vllm", "transformers"):
        flags = ["--adapters", str(output / "adapter"), "--engine", engine, "--torch_dtype", "float32"]
        flags += ["--max_length", "128", "--dataset", str(data)]
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert run(["eval", str(model), *flags, "--metric", "loss"]) == 0
        found[f"score of {engine}"] = json.loads(printed.getvalue())
        result = output / f"{engine}.jsonl"
        assert run(["infer", str(model), *flags, "--max_new_tokens", "12", "--result_path", str(result)]) == 0
        lines = [json.loads(line) for line in result.read_text().splitlines()]
        found[f"answers of {engine}"] = [line["messages"][-1]["content"] for line in lines]
    return found


def _complaint(check: Check, engine: InferenceEngine, reference: TransformersReference) -> str:
    try:
        check(engine, reference)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _tokens(engine: InferenceEngine, prompts: list[list[int]]) -> list[list[int]]:
    answers = dict(engine.generate(prompts, GREEDY))
    return [answers[place].token_ids for place in range(len(prompts))]


@torch.no_grad()
def _greedy(model: Any, reference: TransformersReference) -> list[list[int]]:
    """What transformers makes of each prompt, alone and without a cache."""
    model.eval()
    answers: list[list[int]] = []
    for prompt in reference.prompts:
        tokens = list(prompt)
        for _ in range(GREEDY.max_new_tokens):
            tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
            if tokens[-1] in reference.end_tokens:
                break
        answers.append(tokens[len(prompt) :])
    return answers
