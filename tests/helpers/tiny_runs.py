"""Tiny models, tiny data and short runs in this process, for tests of the training system as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swift.contracts import RunSummary
from swift.parsing import config_from_mapping
from swift.train.loop import train
from swift_testing.subjects import conversations, pairs, verdicts, write_jsonl, write_model

__all__ = [
    "BASE",
    "Trained",
    "conversations",
    "pairs",
    "run_training",
    "verdicts",
    "write_jsonl",
    "write_model",
    "write_unreached",
]

# Worker processes are forked from tests, and threads do not survive that.
torch.set_num_threads(1)

BASE: dict[str, Any] = {
    "backend.device": "cpu",
    "data.shuffle": False,
    "data.workers": 1,
    "tuner.kind": "full",
    "optim.lr": 1e-3,
    "optim.warmup_steps": 2,
    "train.micro_batch": 4,
    "train.max_steps": 8,
    "checkpoint.save_last": False,
    "checkpoint.keep": None,
    "logging.steps": 1,
    "logging.report_to": ["jsonl"],
    # What measures a step takes longer than the step.
    "logging.time_breakdown": 0,
    "logging.run_name": "run",
}
"""What most runs of these tests share; a test states what it changes."""


@dataclass(frozen=True)
class Trained:
    """What a run left behind."""

    summary: RunSummary
    folder: Path

    @property
    def lines(self) -> dict[int, dict[str, Any]]:
        """`logging.jsonl` by step."""
        lines = map(json.loads, (self.folder / "logging.jsonl").read_text().splitlines())
        return {line["step"]: line for line in lines if "step" in line}

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        return [line["loss"] for line in self.lines.values() if "loss" in line]  # not one of an evaluation alone

    @property
    def grad_norms(self) -> list[float]:
        """The gradient norm of every step."""
        return [line["grad_norm"] for line in self.lines.values()]

    def samples(self, processes: int = 1) -> dict[int, list[int]]:
        """Which samples each step took, in order; with the observer `recorder`."""
        steps: dict[int, list[int]] = {}
        for rank in range(processes):
            for line in (self.folder / f"samples-{rank}.jsonl").read_text().splitlines():
                step, samples = json.loads(line)
                steps.setdefault(step, []).extend(samples)
        return dict(sorted(steps.items()))


def write_unreached(folder: Path) -> Path:
    """A decoder of an encoder-decoder model, whose cross-attention has nothing to attend to: no gradient gets there."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48}
    heads = {"decoder_attention_heads": 4, "encoder_attention_heads": 4}
    return write_model(folder, architecture="Bart", is_decoder=True, is_encoder_decoder=False, **sizes, **heads)


def run_training(
    model: Path,
    output: Path,
    rows: Sequence[Any] | None,
    changes: Mapping[str, Any] | None = None,
    *,
    validation: Sequence[Any] | None = None,
) -> Trained:
    """Train in this process; `changes` are dotted keys over `BASE`. Epochs are saved, which are short."""
    settings = {**BASE, "model.path": str(model), "logging.output": str(output), **(changes or {})}
    if not any(name.endswith(("save_steps", "save_strategy")) for name in settings):
        settings["checkpoint.save_strategy"] = "epoch"
    summary = train(config_from_mapping(settings), rows=rows, validation_rows=validation)
    return Trained(summary, output / model.name / settings["logging.run_name"])
