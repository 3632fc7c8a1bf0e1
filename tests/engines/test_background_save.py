"""What is copied beside the next forward and backward pass is the state of the step that is saved, on every engine."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from places import DEEPSPEED, FSDP, MEGATRON, TORCH, Place
from tiers import tiered

from swift.checkpoint import host_copies, open_checkpoint
from swift.checkpoint.save import PendingSave
from swift.parsing import config_from_mapping
from swift.train.loop import Loop
from swift.train.prepare import open_job
from swift_testing import Layout, crew
from swift_testing.cases import CHATS
from swift_testing.subjects import Subject, shared_model

PLACES = (
    Place("torch", TORCH, Layout(1)),
    Place("DDP", TORCH, Layout(2)),
    Place("FSDP", FSDP, Layout(2, {"dp_shard": 2})),
    Place("ZeRO-0", DEEPSPEED, Layout(2, {"dp_replicate": 2}, {"backend.config": "zero0"})),
    Place("ZeRO-2", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero2"})),
    Place("ZeRO-3", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero3"})),
    Place("ZeRO-3 offload", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero3_offload"})),
    Place("Megatron TP2", MEGATRON, Layout(2, {"tp": 2})),
    Place("Megatron DP2", MEGATRON, Layout(2, {"dp_shard": 2}, {"backend.overlap": True})),
)
QUICK = [place for place in PLACES if place.name in ("FSDP", "ZeRO-2")]
PATIENCE = 120
"""Seconds, after which a copy that nothing waits for is an error."""


def train(place: Place, model: Path, output: Path, asynchronous: bool) -> int:
    """Four steps, saved after each; answers how many copies were made only when training had come to wait for them."""
    saved = {"train.max_steps": 4, "checkpoint.save_steps": 1, "checkpoint.asynchronous": asynchronous}
    saved["checkpoint.keep"] = None
    settings = place.settings(model, output, "background" if asynchronous else "at once", **saved)
    late = _late_copies() if asynchronous else []
    with open_job(config_from_mapping(settings), rows=CHATS) as job:
        Loop(job).run()
    return len(late)


def _late_copies() -> list[bool]:
    """From now on in this process, a copy begins when the update that would spoil it waits, or else the end of the run.

    If anything before that waited for the copy, such as the next forward pass, neither would ever go on.
    """
    made: list[bool] = []
    awaited: set[PendingSave] = set()
    asked = threading.Semaphore(0)
    copy = host_copies.copy_tensors

    def late(pairs: Any) -> None:
        made.append(asked.acquire(timeout=PATIENCE))
        assert made[-1], "nothing waited for the copy; or what did was no update"
        copy(pairs)

    def announced(method: Any) -> Any:
        def wait(self: PendingSave) -> Any:
            if self not in awaited:
                awaited.add(self)
                asked.release()
            return method(self)

        return wait

    host_copies.copy_tensors = late
    PendingSave.wait_for_copy = announced(PendingSave.wait_for_copy)  # type: ignore[method-assign]
    PendingSave.wait = announced(PendingSave.wait)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("place", tiered(PLACES, QUICK), ids=str)
def test_late_copy_delays_only_next_update(place: Place, tmp_path: Path) -> None:
    """A copy that is late holds the next update and nothing else."""
    for module in ("torch._dynamo", *place.engine.preload):
        importlib.import_module(module)
    model = shared_model(Subject(blocks=2), tied=False)
    answers = crew.run_jobs(
        place.layout.world,
        [lambda: train(place, model, tmp_path, False), lambda: train(place, model, tmp_path, True)],
        environment={"CUDA_VISIBLE_DEVICES": "", **place.engine.environment},
    )
    assert set(crew.succeeded(answers[1])) == {4}
    (folder,) = tmp_path.glob("untied")
    for step in (1, 2, 3, 4):
        expected = open_checkpoint(folder / "at once" / f"checkpoint-{step}")
        found = open_checkpoint(folder / "background" / f"checkpoint-{step}")
        assert sorted(found.names()) == sorted(expected.names())
        for name in expected.names():
            assert torch.equal(found.read(name), expected.read(name)), f"step {step}: {name}"
