"""What is known of the model in training as values: what MFU counts with, and what reference scores are kept under."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import conversations, pairs, run_training

from swift.contracts import Run
from swift.hookspecs import hookimpl
from swift.observers.jsonl import JsonlObserver
from swift.observers.lines import mfu_of
from swift.parsing import config_from_mapping
from swift.train.prepare import open_job

SCORING = "with the reference model, once"


@pytest.mark.parametrize("tuner", [{"tuner.kind": "lora"}, {"tuner.kind": "full"}])
def test_mfu_is_shown_for_adapters_as_for_whole_models(
    tiny: Path, tmp_path: Path, tuner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    settings = {"model.path": str(tiny), "model.dtype": "bfloat16", "backend.device": "cpu", "data.workers": 1, **tuner}
    settings["logging.output"] = str(tmp_path)
    with open_job(config_from_mapping(settings), rows=conversations(8)) as job:
        state: Any = job.state
        counts = [(parameter.numel(), parameter.requires_grad) for parameter in state.view.model.parameters()]
        share = mfu_of(replace(job.run, topology=replace(job.run.topology, device="cuda:0")))(1e6)
    flops = sum((6 if trained else 4) * count for count, trained in counts)
    assert share == pytest.approx(1e6 * flops / 989e12, rel=1e-9)


@pytest.fixture
def silent_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that says nothing about its model: its facts are taken away before training."""

    @hookimpl(wrapper=True)
    def swift_shard(_: JsonlObserver, run: Run) -> Iterator[None]:
        run.facts.model = None
        run.facts.clear()
        return (yield)

    monkeypatch.setattr(JsonlObserver, "swift_shard", swift_shard, raising=False)


def _said(tiny: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str], **model: str) -> str:
    changes = {
        "objective.name": "dpo", "data.cache": str(folder / "cache"), "train.max_steps": 1, "logging.run_name": name,
        **{f"model.{key}": value for key, value in model.items()},
    }  # fmt: skip
    run_training(tiny, folder, pairs(4), changes)
    return capsys.readouterr().out


def test_reference_scores_are_keyed_by_precision(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference scores are kept by precision and not by why it was chosen."""
    assert SCORING in _said(tiny, tmp_path, "auto", capsys)
    assert SCORING not in _said(tiny, tmp_path, "float32", capsys, dtype="float32")
    assert SCORING in _said(tiny, tmp_path, "bfloat16", capsys, dtype="bfloat16")


@pytest.mark.usefixtures("silent_backend")
def test_unknown_backend_precision_shares_no_scores(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backend that says nothing of its precision shares no scores across precisions."""
    assert SCORING in _said(tiny, tmp_path, "float32", capsys, dtype="float32")
    assert SCORING in _said(tiny, tmp_path, "bfloat16", capsys, dtype="bfloat16")
