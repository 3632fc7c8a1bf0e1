"""What tests of adapters share: what a run has saved, beside PEFT's own and beside runs in other layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from peft import PeftModel
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory
from safetensors.torch import load_file
from tiny_runs import Trained, conversations

from swift.config.sections import ExportSection
from swift.export.run import export_checkpoint
from swift.models.quiet import without_bitsandbytes

STEPS = 5
ROWS = conversations(16)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapter_of(run: Trained, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(run.folder / f"checkpoint-{step}" / "adapter_model.safetensors")


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=torch.arange(5, 25)[None]).logits
    return found


def first_loss(model: Path) -> float:
    """Of the model before training."""
    batches = batches_of(conversation_tokens(model, ROWS), 8, 1)
    return likelihood_trajectory(plain_torch.load_model(model), batches, steps=1)[0][0]


def assert_follows(run: Trained, tuned: Any, model: Path, *, falls: float) -> None:
    """Compare a run with plain torch on PEFT's model, which is trained by it."""
    batches = batches_of(conversation_tokens(model, ROWS), 8, STEPS)
    losses, norms = likelihood_trajectory(tuned, batches, steps=STEPS, lr=5e-3)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-5)
    assert run.losses[0] == pytest.approx(first_loss(model), rel=1e-5)
    assert losses[-1] < losses[0] - falls


def assert_leaves(
    run: Trained, model: Path, expected: torch.Tensor, folder: Path, *, step: int = STEPS, adapter: bool = False
) -> None:
    """Compare what PEFT loads of a checkpoint, and its exports, with expected logits, on the model as it is on disk."""
    checkpoint = run.folder / f"checkpoint-{step}"

    def exported(to: str) -> Path:
        options = ExportSection(out=folder / f"export-{to}")
        return export_checkpoint(checkpoint, to=to, options=options, say=lambda _: None)

    for each in (checkpoint, exported("adapter")) if adapter else (checkpoint,):
        with without_bitsandbytes():  # and without torchao, whose newest version PEFT's MiSS does not know
            loaded = PeftModel.from_pretrained(plain_torch.load_model(model), each)
        torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(plain_torch.load_model(exported("hf"))), expected, rtol=1e-4, atol=1e-4)


def assert_same(run: Trained, expected: Trained, name: str, step: int = STEPS) -> None:
    """Compare a run of some layout with that of one process, by its steps and by the adapter."""
    assert run.losses == pytest.approx(expected.losses, rel=1e-4), name
    assert run.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4), name
    found, whole = adapter_of(run, step), adapter_of(expected, step)
    assert found.keys() == whole.keys(), name
    for key, value in whole.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")
