"""Canonical names: what a tensor is called in a checkpoint, whichever backend wrote it."""

from __future__ import annotations

MODEL = "model."
OPTIMIZER = "optim."


def model_name(hf: str) -> str:
    """`model.<HF name>`: the fp32 weight that the optimizer updates. Adapters go by their PEFT names on disk."""
    return f"{MODEL}{hf}"


def optim_name(hf: str, slot: str) -> str:
    """`optim.<HF name>.<slot>`: optimizer state beside the weight: exp_avg, exp_avg_sq, step, ..."""
    return f"{OPTIMIZER}{hf}.{slot}"


def weight_name(canonical: str) -> str | None:
    """The Hugging Face (or PEFT) name of a canonical weight; None for optimizer state."""
    return canonical.removeprefix(MODEL) if canonical.startswith(MODEL) else None
