"""The losses of `grpo` on every backend: over the same completions, ten steps have torch's numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
import torch
from processes import on_processes, succeeded
from stored_plugin import stored_installed
from tiny_runs import Trained, conversations, run_training, write_model

from swift.data import batch as batches

__all__ = ["stored_installed"]

ROWS = conversations(4)
SETTINGS: dict[str, Any] = {
    "objective.name": "stored_grpo", "train.max_steps": 10, "train.global_batch": 6, "train.micro_batch": 2,
    "optim.eps": 1e-6, "optim.lr": 5e-4,
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "dapo": {
        "objective.beta": 0.1, "objective.delta": 1.5, "objective.epsilon_high": 0.28, "objective.log_entropy": True,
        "objective.off_policy_sequence_mask_delta": 0.1,
    },
    "gspo": {"objective.loss_type": "gspo", "objective.epsilon": 0.05},
    "dr_grpo": {"objective.loss_type": "dr_grpo", "objective.max_completion_length": 20},
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
ZERO = {"backend.name": "deepspeed"}
MEGATRON = {"backend.name": "megatron"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "zero0": (2, {**ZERO, "backend.config": "zero0"}),
    "zero1": (2, {**ZERO, "backend.config": "zero1"}),
    "zero2": (2, {**ZERO, "backend.config": "zero2"}),
    "zero3": (2, {**ZERO, "backend.config": "zero3"}),
    "megatron tp 2 pp 2": (4, {**MEGATRON, "parallel.tp": 2, "parallel.pp": 2}),
    "megatron cp 2": (2, {**MEGATRON, "parallel.cp": 2}),
    "megatron ep 2": (2, {**MEGATRON, "parallel.ep": 2}),
}


def trained(model: Path, out: Path, name: str, changes: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, **LOSSES[name], **changes, "logging.run_name": name})


FIGURES = ("loss", "grad_norm", "ratio", "clip_ratio_low", "clip_ratio_high", "approx_kl", "kl", "entropy")  # fmt: skip


def assert_same(run: Trained, alone: Trained) -> None:
    for key in FIGURES:
        expected = [line[key] for line in alone.lines.values() if key in line]
        assert [line[key] for line in run.lines.values() if key in line] == pytest.approx(
            expected, rel=1e-4, abs=1e-6
        ), key
    assert len(run.lines) == 10


@pytest.mark.usefixtures("stored_installed")
def test_packing_changes_nothing_and_shifted_values_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches and packing change nothing and a value at the wrong token does."""
    model = write_model(tmp_path / "tiny")
    few = {"train.max_steps": 3}
    whole = trained(model, tmp_path / "whole", "dapo", {**few, "train.micro_batch": 6})
    line = whole.lines[3]
    assert line["clip_ratio_low"] > 0
    assert line["clip_ratio_high"] > 0
    assert line["kl"] > 0
    assert line["entropy"] > 0
    cut = trained(model, tmp_path / "cut", "dapo", {**few, "train.micro_batch": 1})
    assert cut.losses == pytest.approx(whole.losses, rel=1e-5)
    assert cut.grad_norms == pytest.approx(whole.grad_norms, rel=1e-5)

    def unshifted(arrays: Any, blank: Any, *, flat: bool) -> torch.Tensor:
        return torch.roll(laid_out(arrays, blank, flat=flat), 1, dims=-1)

    laid_out = batches._laid_out
    monkeypatch.setattr(batches, "_laid_out", unshifted)
    broken = trained(model, tmp_path / "broken", "dapo", few)
    assert broken.grad_norms != pytest.approx(whole.grad_norms, rel=1e-4)


OTHERS = ("gspo", "dr_grpo")
"""Losses that the conformance kit has no case of (`swift_rl.testing`)."""


@pytest.mark.full
@pytest.mark.usefixtures("stored_installed")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_numbers_of_one_process(tmp_path: Path, layout: str) -> None:
    processes, schedule = LAYOUTS[layout]
    model = write_model(
        tmp_path / "tiny", **({"architecture": "Qwen3Moe", **EXPERTS} if layout == "megatron ep 2" else {})
    )
    on_torch = [partial(trained, model, tmp_path / "torch", name, {}) for name in OTHERS]
    runs = [partial(trained, model, tmp_path / "runs", name, schedule) for name in OTHERS]
    alone = on_processes(1, *on_torch)
    for expected, completions in zip(alone, on_processes(processes, *runs), strict=True):
        assert_same(succeeded(completions)[0], succeeded(expected)[0])
