"""Tiny models, tiny data and short runs in this process, for tests of the training system as a whole."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from swift.config.parse import config_from_mapping
from swift.contracts import RunSummary
from swift.demo.tokenizer import byte_tokenizer
from swift.train.loop import train

# Worker processes are forked from tests, and threads do not survive that.
torch.set_num_threads(1)

SHAPE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.05,
    "tie_word_embeddings": False,
}
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
    "logging.steps": 1,
    "logging.report_to": ["jsonl"],
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
        return [line["loss"] for line in self.lines.values()]

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


def run_training(
    model: Path,
    output: Path,
    rows: Sequence[Any] | None,
    changes: Mapping[str, Any] | None = None,
    *,
    validation: Sequence[Any] | None = None,
) -> Trained:
    """Train in this process; `changes` are dotted keys over `BASE`."""
    settings = {**BASE, "model.path": str(model), "logging.output": str(output), **(changes or {})}
    summary = train(config_from_mapping(settings), rows=rows, validation_rows=validation)
    return Trained(summary, output / model.name / settings["logging.run_name"])


def write_model(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A Qwen3-shaped model and its tokenizer; norms are given values that matter."""
    config = Qwen3Config(**{**SHAPE, **changes})
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions and answers of very different lengths."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        number = draw.randint(100, 999)
        answer = "".join(draw.choices("abcdefgh", k=draw.randint(1, 40))) + str(number)
        rows.append({"messages": [_said("user", f"Write {number}"), _said("assistant", answer)]})
    return rows


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A chosen and a rejected answer to each question."""
    rows = []
    for row in conversations(count, seed):
        question, answer = (message["content"] for message in row["messages"])
        rows.append({"query": question, "response": answer[::-1], "rejected_response": answer.upper() + "!"})
    return rows


def verdicts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Answers marked good and bad in turn."""
    return [
        {"query": row["query"], "response": row["response"], "label": index % 3 != 0}
        for index, row in enumerate(pairs(count, seed))
    ]


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
