"""Compare what two models return for the same prompts, the training state's and an export's.

The training state is compared in log-probabilities, token by token, and in the tokens that it would go on with. Where
its two most likely tokens are closer to each other than the stated tolerance lets log-probabilities move, either is
right, and the rest of that completion is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swift.errors import ExportError

if TYPE_CHECKING:
    from swift.export.verify.seeing import Perceived

Prompt = list[int]

TOLERANCES = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
"""Largest difference of a token's log-probability that rounding the weights can explain. Tensors are compared bit for
bit before, so that this only has to notice a model that is put together wrongly."""


@dataclass(frozen=True)
class Outputs:
    """What a model returns, one of each per prompt; empty where it returns no such thing, or was not asked for it."""

    logps: list[list[float]] = field(default_factory=list)
    """Log-probabilities of a prompt's tokens."""
    greedy: list[list[int]] = field(default_factory=list)
    """The most likely tokens after a prompt, one after the other; fewer where an engine ends the text."""
    greedy_logps: list[list[float]] = field(default_factory=list)
    margins: list[list[float]] = field(default_factory=list)
    """By how much the log-probability of each of them is above that of the next most likely."""
    vectors: list[list[float]] = field(default_factory=list)
    """The scores of a prompt, or its vector, of a model that is not trained to go on with text."""


@dataclass(frozen=True)
class Reference:
    """Prompts, and the training state's outputs for them."""

    prompts: list[Prompt]
    outputs: Outputs
    perceived: Perceived | None = None
    """What it says about a fixed image and audio."""


@dataclass(frozen=True)
class Tolerance:
    """How far outputs may be from the reference."""

    largest: float
    """Of any token's log-probability; inf where single tokens may be far off."""
    mean: float = float("inf")
    """Of all of them."""

    @property
    def margin(self) -> float:
        """Two tokens this close to each other may change places: each moves by so much at most."""
        return 2 * min(self.largest, self.mean * 10)


def tolerance_of(dtype: str) -> Tolerance:
    """For an export in this precision."""
    return Tolerance(TOLERANCES.get(dtype, TOLERANCES["bfloat16"]))


def compare(reference: Reference, got: Outputs, tolerance: Tolerance, *, who: str, cause: str) -> dict[str, Any]:
    """Compare what `who` returned, and return the report.

    `ExportError` names the first token that differs; `cause` is its hint.
    """
    expected = reference.outputs
    try:
        if expected.vectors:
            return {"outputs": _compare_vectors(expected, got, tolerance, who)}
        report = {"log_probabilities": _compare_logps(reference, got, tolerance, who)}
        if expected.greedy:
            report["greedy"] = _compare_greedy(expected, got, tolerance, who)
    except _Different as difference:
        raise ExportError(f"The export differs from the training state: {difference}", hint=cause) from None
    return report


class _Different(Exception):
    """What differs, and by how much."""


def _compare_vectors(expected: Outputs, got: Outputs, tolerance: Tolerance, who: str) -> dict[str, Any]:
    largest = 0.0
    for number, (before, after) in enumerate(zip(expected.vectors, got.vectors, strict=True), 1):
        for index, (one, other) in enumerate(zip(before, after, strict=True), 1):
            difference = abs(one - other) / (1 + abs(one))
            if not difference <= tolerance.largest:
                raise _Different(
                    f"output {index} of test prompt {number} is {other:.4f} by {who} instead of {one:.4f}, "
                    f"more than {tolerance.largest:g} apart."
                )
            largest = max(largest, difference)
    return {
        "prompts": len(expected.vectors),
        "values": sum(map(len, expected.vectors)),
        "largest_difference": largest,
        "tolerance": tolerance.largest,
    }


def _compare_logps(reference: Reference, got: Outputs, tolerance: Tolerance, who: str) -> dict[str, Any]:
    differences = []
    for number, (expected, logps) in enumerate(zip(reference.outputs.logps, got.logps, strict=True)):
        for position, (before, after) in enumerate(zip(expected, logps, strict=True), 1):
            difference = abs(before - after)
            if not difference <= tolerance.largest:
                token = reference.prompts[number][position]
                raise _Different(
                    f"token {position} ({token}) of test prompt {number + 1} has log-probability {after:.4f} "
                    f"by {who} instead of {before:.4f}, more than {tolerance.largest:g} apart."
                )
            differences.append(difference)
    mean = sum(differences) / len(differences)
    if not mean <= tolerance.mean:
        raise _Different(
            f"log-probabilities by {who} differ by {mean:.4f} on average, more than the {tolerance.mean:g} that "
            "rounding explains."
        )
    return {
        "prompts": len(reference.prompts),
        "tokens": len(differences),
        "largest_difference": max(differences),
        "mean_difference": mean,
        "tolerance": min(tolerance.largest, tolerance.mean),
    }


def _compare_greedy(expected: Outputs, got: Outputs, tolerance: Tolerance, who: str) -> dict[str, Any]:
    compared = near_ties = 0
    for number, (ours, theirs) in enumerate(zip(expected.greedy, got.greedy, strict=True)):
        logps, margins = expected.greedy_logps[number], expected.margins[number]
        for position, (before, after) in enumerate(zip(ours, theirs, strict=False)):
            if before == after:
                compared += 1
                continue
            if margins[position] <= tolerance.margin:
                near_ties += 1
                break  # from here on it is another text
            raise _Different(
                f"token {position + 1} of the completion of test prompt {number + 1} is {after} "
                f"({got.greedy_logps[number][position]:.4f}) by {who} instead of {before} ({logps[position]:.4f}, "
                f"which is {margins[position]:.4f} above any other token)."
            )
    return {
        "completions": len(expected.greedy),
        "tokens_equal": compared,
        "near_ties": near_ties,
        "margin": tolerance.margin,
    }
