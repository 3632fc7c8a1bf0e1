"""Cost of quantising: the same texts through the model before and after, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from swift.errors import ExportError
from swift_export_vllm.quantise.schemes import Scheme


@dataclass
class Cost:
    """Sums over the tokens that count."""

    before: float = 0.0
    after: float = 0.0
    weight: float = 0.0
    differences: float = 0.0
    largest: float = 0.0
    agreed: int = 0
    tokens: int = 0
    logps: dict[int, list[float]] = field(default_factory=dict)
    """Text → log-probabilities afterwards, of every token after the first."""
    changes: dict[int, list[float]] = field(default_factory=dict)
    """Text → by how much they changed."""

    def add(
        self, text: int, tokens: torch.Tensor, weights: Sequence[float], before: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Add one text; `before` and `after` are the logits at its positions."""
        targets = tokens[1:, None]
        was = torch.log_softmax(before[:-1], -1)
        now = torch.log_softmax(after[:-1], -1)
        before_logps, after_logps = was.gather(1, targets)[:, 0], now.gather(1, targets)[:, 0]
        apart = (before_logps - after_logps).abs()
        self.logps[text], self.changes[text] = after_logps.tolist(), apart.tolist()
        counts = torch.tensor(weights[1:], device=tokens.device, dtype=torch.float32)
        if not counts.any():
            return
        learned = counts > 0
        self.before -= float((before_logps * counts).sum())
        self.after -= float((after_logps * counts).sum())
        self.weight += float(counts.sum())
        apart = apart[learned]
        self.differences += float(apart.sum())
        self.largest = max(self.largest, float(apart.max()))
        self.agreed += int((was.argmax(-1) == now.argmax(-1))[learned].sum())
        self.tokens += int(learned.sum())

    def report(self, scheme: Scheme, *, bytes_before: int, bytes_after: int, tolerance: float) -> dict[str, Any]:
        """JSON values."""
        return {
            "scheme": scheme.name,
            "described": scheme.described,
            "loss": {
                "before": self.before / self.weight,
                "after": self.after / self.weight,
                "rise": (self.after - self.before) / self.weight,
                "tolerance": tolerance,
            },
            "greedy_agreement_percent": 100 * self.agreed / self.tokens,
            "log_probabilities": {"mean_difference": self.differences / self.tokens, "largest": self.largest},
            "tokens": self.tokens,
            "bytes": {"before": bytes_before, "after": bytes_after},
        }


def table(report: dict[str, Any]) -> list[str]:
    """Format the report for people."""
    loss, size, apart = report["loss"], report["bytes"], report["log_probabilities"]
    share = 100 * size["after"] / size["before"]
    return [
        f"{'':26}{'before':>12}{'after':>12}",
        f"{'loss per token':26}{loss['before']:>12.4f}{loss['after']:>12.4f}   "
        f"({loss['rise']:+.4f}; at most {loss['tolerance']:+g})",
        f"{'size':26}{_size(size['before']):>12}{_size(size['after']):>12}   ({share:.0f} %)",
        f"{'same most likely token':26}{'':12}{report['greedy_agreement_percent']:>10.2f} %   "
        f"(of {report['tokens']} tokens)",
        f"{'log-probabilities differ':26}{'':12}{apart['mean_difference']:>12.4f}   "
        f"(in the mean; {apart['largest']:.4f} at most)",
    ]


def check(report: dict[str, Any]) -> None:
    """Refuse a model that has lost more than it may."""
    loss = report["loss"]
    if math.isnan(loss["rise"]) or loss["rise"] > loss["tolerance"]:
        raise ExportError(
            f"Quantising ({report['scheme']}) raises the loss per token from {loss['before']:.4f} to "
            f"{loss['after']:.4f}, by {loss['rise']:.4f}; {loss['tolerance']:g} is accepted.",
            hint="Take more bits (--quant w8a8), more samples (--calibration-samples), or accept it: "
            f"--quant-tolerance {math.ceil(loss['rise'] * 100 + 1) / 100 if math.isfinite(loss['rise']) else 1:g}",
        )


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.1f} {unit}" if unit != "B" else f"{count} B"
        count = count / 1000  # type: ignore[assignment]
    raise AssertionError
