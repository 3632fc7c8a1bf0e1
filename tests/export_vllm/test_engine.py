"""The engine vLLM, in process and on a server, under the kit of engines and fed by a run of a real backend.

What happens in process happens in a process of its own: vLLM changes much of the one that it is in. Runs that feed it
there are in `test_rollouts_of_runs.py`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm_server import ENVIRONMENT, vllm_server

from swift.cli.main import run
from swift.contracts import InferenceEngine, Sampling
from swift.errors import UsageError
from swift.parsing import config_from_mapping
from swift.train.loop import Loop
from swift.train.prepare import open_job
from swift_infer import open_engine
from swift_testing.crew import run_jobs, succeeded
from swift_testing.engine_checks import (
    CHECKS,
    NARROW,
    Check,
    TransformersReference,
    log_probabilities_are_the_model_s_own,
    sampled_log_probabilities_are_those_of_transformers,
)
from swift_testing.engine_conformance import request_of
from swift_testing.subjects import write_jsonl, write_model

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
def test_vllm_gives_only_sampling_log_probs(told: dict[str, Any]) -> None:
    assert (told["answered drawn"], told["drawn"]) == ("6", "")
    assert "log-probabilities of the model itself were requested" in told["model"]


@pytest.mark.full
def test_the_process_is_left_as_it_was(told: dict[str, Any]) -> None:
    assert told["left behind"] == []


@pytest.mark.full
def test_an_adapter_is_scored_as_transformers_scores_it(told: dict[str, Any]) -> None:
    assert told["scores of vllm"] == pytest.approx(told["scores of transformers"], abs=1e-4)
    assert told["completions of vllm"] == told["completions of transformers"]


# --- what the processes do ------------------------------------------------------------------------------------------


def _train_beside_a_server(address: str, reference: TransformersReference, output: Path) -> dict[str, Any]:
    """What a server says before and after a run has sent it weights, and what transformers says with them."""
    from swift_export_vllm.rollout import connect

    settings = {
        "model.path": str(reference.folder),
        "tuner.kind": "full",
        "backend.name": "fsdp",
        "backend.device": "cpu",
        "data.workers": 1,
        "data.shuffle": False,
        "train.max_steps": 60,
        "train.global_batch": 4,
        "optim.lr": 5e-3,
        "optim.weight_decay": 0.0,
        "checkpoint.save_last": False,
        "logging.output": str(output),
        "logging.report_to": [],
    }
    prompts = reference.prompts
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        engine = connect(address, end_tokens=reference.end_tokens) if job.is_main else None
        before = None if engine is None else _tokens(engine, prompts)
        Loop(job).run()
        assert job.run.send_weights is not None
        job.run.send_weights(engine)
        weights = {name: tensor.clone() for name, tensor in job.hooks.swift_iter_weights(job.run, job.state)}
    if engine is None:
        return {}
    model = AutoModelForCausalLM.from_pretrained(reference.folder, dtype=torch.float32)
    model.load_state_dict(weights)
    versions = {completion.version for _, completion in engine.generate(prompts, GREEDY)}
    after, expected = _tokens(engine, prompts), _greedy(model, reference)
    return {"before": before, "after": after, "expected": expected, "versions": versions}


def _everything_in_process(reference: TransformersReference, output: Path) -> dict[str, Any]:
    import os

    from swift.plugins.inference import open_inference
    from swift.plugins.load import load_engine

    before = dict(os.environ), torch.set_num_threads, torch.random.get_rng_state()
    engine = open_inference(load_engine("vllm"), request_of(reference, {}))
    found: dict[str, Any] = {"left behind": []}
    if not torch.equal(torch.random.get_rng_state(), before[2]):
        found["left behind"].append("the random state")
    for check in CHECKS:
        found[check.__name__] = _complaint(check, engine, reference)
    found |= _drawn_in_process(reference)
    # torch's compiler leaves a mark of its own, whoever calls it first.
    mine = {name for name in {*before[0], *os.environ} if before[0].get(name) != os.environ.get(name)}
    found["left behind"] += sorted(name for name in mine if not name.startswith(("_TORCHINDUCTOR", "TORCHINDUCTOR")))
    if torch.distributed.is_initialized():
        found["left behind"].append("a process group")
    if torch.set_num_threads is not before[1]:
        found["left behind"].append("torch.set_num_threads")
    return found | _with_an_adapter(reference, output)


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


def _with_an_adapter(reference: TransformersReference, output: Path) -> dict[str, Any]:
    """The scores and completions of both engines."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(reference.folder, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(output / "adapter")
    found: dict[str, Any] = {}
    for name in ("vllm", "transformers"):
        engine = open_engine(name, reference.folder, adapter=output / "adapter", dtype="float32", max_length=128)
        scores = dict(engine.score(reference.prompts))
        found[f"scores of {name}"] = [value for index in sorted(scores) for value in scores[index].logprobs]
        found[f"completions of {name}"] = _tokens(engine, reference.prompts)
        engine.close()
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
