"""Flags whose meaning depends on the rest of the configuration, settled once all of it is known."""

from __future__ import annotations

from typing import Any

from swift.config.draft import Assignment
from swift.config.values import quoted
from swift.errors import ConfigError

Merged = dict[str, Assignment]


def settle(merged: Merged) -> list[str]:
    """Replace requests (`@...`) by keys, in place; returns notes for the user."""
    notes: list[str] = []
    _model_type(merged, notes)
    _sequence_parallel_size(merged, notes)
    _min_lr(merged)
    return notes


def _value(merged: Merged, key: str, default: Any) -> Any:
    assignment = merged.get(key)
    return default if assignment is None else assignment.value


def _model_type(merged: Merged, notes: list[str]) -> None:
    """Let `--model_type` alone name the model; next to `--model` it is ms-swift's name of the architecture."""
    request = merged.pop("@model_type", None)
    if request is None:
        return
    if "model.path" in merged:
        notes.append(f"{request.source} {request.value} is not needed: the model's own config.json says what it is.")
    else:
        merged["model.path"] = request


def _sequence_parallel_size(merged: Merged, notes: list[str]) -> None:
    """Translate the size: Megatron ties it to tensor parallelism as a switch, other backends do not."""
    request = merged.pop("@sequence_parallel_size", None)
    if request is None:
        return
    size, tp = _whole(request), _whole(merged.get("parallel.tp", Assignment(1, "--tp")))
    if size == 1:
        return
    backend = _value(merged, "backend.name", "torch")
    if backend != "megatron":
        raise ConfigError(
            f"{request.source} {size} has no single meaning on the {backend} backend.",
            hint=f"Type --ulysses {size} to cut sequences over attention heads, or --cp {size} to cut their context.",
        )
    if tp == 1:
        raise ConfigError(
            f"{request.source} {size}: Megatron's sequence parallelism shards activations over the tensor parallel "
            "processes, and --tp is 1.",
            hint=f"Type --cp {size} to cut sequences without tensor parallelism (--ulysses is not Megatron's).",
        )
    merged["parallel.sequence_parallel"] = Assignment(True, request.source)
    other = f" (not over {size}; to cut sequences further: --cp {size})" if size != tp else ""
    notes.append(
        f"{request.source} {size}: with Megatron this is a switch; it is on, over the {tp} tensor parallel processes"
        f"{other}."
    )


def _min_lr(merged: Merged) -> None:
    """Refuse `cosine_with_min_lr` without a floor, as transformers does: it would be plain cosine."""
    request = merged.pop("@min_lr", None)
    if request is not None and not {"optim.min_lr", "optim.min_lr_ratio"} & merged.keys():
        raise ConfigError(f"{request.source} {request.value} needs the floor.", hint="For example: --min_lr 1e-6")


def _whole(assignment: Assignment) -> int:
    text = quoted(assignment.value).strip("'")
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise ConfigError(f"{assignment.source} takes a whole number from 1, not {quoted(assignment.value)}.")
    return int(text)
