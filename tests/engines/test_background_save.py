"""What is copied beside the next forward and backward pass is the state of the step that is saved, on every engine."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from places import DEEPSPEED, FSDP, MEGATRON, TORCH, Place

from swift.checkpoint import open_checkpoint, staging
from swift.config.parse import config_from_mapping
from swift.testing import Layout, crew
from swift.testing.cases import CHATS
from swift.testing.subjects import Subject, shared_model
from swift.train.loop import Loop
from swift.train.prepare import opened

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
LATE = 0.5
"""Seconds, in which the next forward and backward pass is over."""


def train(place: Place, model: Path, output: Path, asynchronous: bool) -> float:
    """Four steps, saved after each; answers for how long updates waited for copies."""
    saved = {"train.max_steps": 4, "checkpoint.save_steps": 1, "checkpoint.asynchronous": asynchronous}
    settings = place.settings(model, output, "background" if asynchronous else "at once", **saved)
    copy = staging._copy

    def late(pairs: Any) -> None:
        time.sleep(LATE)
        copy(pairs)

    staging._copy = late
    waited = 0.0
    with opened(config_from_mapping(settings), rows=CHATS) as job:
        loop = Loop(job, [])
        settle = loop.keeper._settle

        def noted() -> None:
            nonlocal waited
            pending = loop.keeper._pending
            settle()
            waited += pending.waited if pending is not None else 0.0

        loop.keeper._settle = noted  # type: ignore[method-assign]
        loop.run()
    return waited


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_copy_that_is_late_holds_the_next_update_and_nothing_else(place: Place, tmp_path: Path) -> None:
    for module in ("torch._dynamo", *place.engine.preload):
        importlib.import_module(module)
    model = shared_model(Subject(blocks=2), tied=False)
    answers = crew.run_jobs(
        place.layout.world,
        [lambda: train(place, model, tmp_path, False), lambda: train(place, model, tmp_path, True)],
        environment={"CUDA_VISIBLE_DEVICES": "", **place.engine.environment},
        fresh=place.engine.fresh,
    )
    for waited in crew.succeeded(answers[1]):
        # Of each copy but the last, which no update follows, what the passes before the update have left of it.
        assert 0 < waited < 4 * LATE + 3
    (folder,) = tmp_path.glob("untied")
    for step in (1, 2, 3, 4):
        expected = open_checkpoint(folder / "at once" / f"checkpoint-{step}")
        found = open_checkpoint(folder / "background" / f"checkpoint-{step}")
        assert sorted(found.names()) == sorted(expected.names())
        for name in expected.names():
            assert torch.equal(found.read(name), expected.read(name)), f"step {step}: {name}"
