"""Compare two accounts of the same prompts, the training state's and an export's.

The training state is compared in log-probabilities, token by token, and in the tokens that it would go on with. Where
its two most likely tokens are closer to each other than the stated tolerance lets log-probabilities move, either is
right, and the rest of that completion is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swift.errors import ExportError
from swift.export.verify.reference import Continuation, Prompt, Reference

TOLERANCES = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.5}
"""Largest difference of a token's log-probability that rounding the weights can explain. Tensors are compared bit for
bit before, so that this only has to notice a model that is put together wrongly."""


@dataclass(frozen=True)
class Account:
    """Outputs of a library that loaded the export."""

    who: str
    logps: list[list[float]]
    greedy: list[list[int]]
    """Tokens of each completion; it may be shorter if it ended."""
    greedy_logps: list[list[float]] = field(default_factory=list)
    vectors: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Tolerance:
    """How far an account may be from the reference."""

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


def compare(reference: Reference, account: Account, tolerance: Tolerance, *, cause: str) -> dict[str, Any]:
    """Compare and return the report. `ExportError` names the first token that differs; `cause` is its hint."""
    if reference.vectors is not None:
        return {"outputs": _compare_vectors(reference.vectors, account, tolerance, cause)}
    report = {"log_probabilities": _compare_logps(reference, account, tolerance, cause)}
    if reference.greedy is not None:
        report["greedy"] = _compare_greedy(reference.greedy, account, tolerance, cause)
    return report


def _compare_vectors(
    expected: Sequence[Sequence[float]], account: Account, tolerance: Tolerance, cause: str
) -> dict[str, Any]:
    largest = 0.0
    for number, (before, after) in enumerate(zip(expected, account.vectors, strict=True), 1):
        for index, (one, other) in enumerate(zip(before, after, strict=True), 1):
            difference = abs(one - other) / (1 + abs(one))
            if not difference <= tolerance.largest:
                raise ExportError(
                    f"The export differs from the training state: output {index} of test prompt {number} is "
                    f"{other:.4f} by {account.who} instead of {one:.4f}, more than {tolerance.largest:g} apart.",
                    hint=cause,
                )
            largest = max(largest, difference)
    values = sum(map(len, expected))
    return {"prompts": len(expected), "values": values, "largest_difference": largest, "tolerance": tolerance.largest}


def _compare_logps(reference: Reference, account: Account, tolerance: Tolerance, cause: str) -> dict[str, Any]:
    differences = []
    for number, (expected, got) in enumerate(zip(reference.logps, account.logps, strict=True)):
        for position, (before, after) in enumerate(zip(expected, got, strict=True), 1):
            difference = abs(before - after)
            if not difference <= tolerance.largest:
                raise ExportError(
                    f"The export differs from the training state: token {position} "
                    f"({reference.prompts[number][position]}) of test prompt {number + 1} has log-probability "
                    f"{after:.4f} by {account.who} instead "
                    f"of {before:.4f}, more than {tolerance.largest:g} apart.",
                    hint=cause,
                )
            differences.append(difference)
    mean = sum(differences) / len(differences)
    if not mean <= tolerance.mean:
        raise ExportError(
            f"The export differs from the training state: log-probabilities by {account.who} differ by {mean:.4f} on "
            f"average, more than the {tolerance.mean:g} that rounding explains.",
            hint=cause,
        )
    return {
        "prompts": len(reference.prompts),
        "tokens": len(differences),
        "largest_difference": max(differences),
        "mean_difference": mean,
        "tolerance": min(tolerance.largest, tolerance.mean),
    }


def _compare_greedy(
    expected: Sequence[Continuation], account: Account, tolerance: Tolerance, cause: str
) -> dict[str, Any]:
    compared = near_ties = 0
    for number, (ours, got) in enumerate(zip(expected, account.greedy, strict=True), 1):
        for position, (before, after) in enumerate(zip(ours.tokens, got, strict=False)):
            if before == after:
                compared += 1
                continue
            if ours.margins[position] <= tolerance.margin:
                near_ties += 1
                break  # from here on it is another text
            logps = account.greedy_logps[number - 1] if account.greedy_logps else []
            logp = f" ({logps[position]:.4f})" if position < len(logps) else ""
            raise ExportError(
                f"The export differs from the training state: token {position + 1} of the completion of test prompt "
                f"{number} is {after}{logp} by {account.who} instead of {before} ({ours.logps[position]:.4f}, which is "
                f"{ours.margins[position]:.4f} above any other token).",
                hint=cause,
            )
    return {"completions": len(expected), "tokens_equal": compared, "near_ties": near_ties, "margin": tolerance.margin}


def account_of_module(model: Any, prompts: list[Prompt], *, greedy: bool) -> Account:
    """Return the outputs of a transformers module."""
    from swift.export.verify.reference import module_greedy, module_logps

    greedy_completions = module_greedy(model, prompts) if greedy else []
    return Account(
        "transformers",
        module_logps(model, prompts),
        [each.tokens for each in greedy_completions],
        [each.logps for each in greedy_completions],
    )
