"""Canonical names: what a tensor is called in a checkpoint, whichever backend wrote it."""

from __future__ import annotations

import re

MODEL = "model."
OPTIMIZER = "optim."
_OWNED = re.compile(rf"([a-z][a-z0-9_]*)/(?={re.escape(MODEL)}|{re.escape(OPTIMIZER)})")


def model_name(hf: str) -> str:
    """`model.<HF name>`: the fp32 weight that the optimizer updates. Adapters go by their PEFT names on disk."""
    return f"{MODEL}{hf}"


def optim_name(hf: str, slot: str) -> str:
    """`optim.<HF name>.<slot>`: optimizer state next to the weight: exp_avg, exp_avg_sq, step, ..."""
    return f"{OPTIMIZER}{hf}.{slot}"


def weight_name(canonical: str) -> str | None:
    """Return the Hugging Face (or PEFT) name of a canonical weight; None for optimizer state."""
    return canonical.removeprefix(MODEL) if canonical.startswith(MODEL) else None


def slot_owner(canonical: str) -> str | None:
    """Return the Hugging Face (or PEFT) name of the weight that an optimizer's state belongs to; None for weights."""
    return canonical.removeprefix(OPTIMIZER).rpartition(".")[0] if canonical.startswith(OPTIMIZER) else None


def owned_name(owner: str, canonical: str) -> str:
    """Return the name in a checkpoint of a tensor of a role: `critic/model.<HF name>`. The policy's, '', stay bare."""
    return f"{owner}/{canonical}" if owner else canonical


def owner_of(name: str) -> str:
    """Return the role that a name in a checkpoint belongs to; '' is the policy."""
    found = _OWNED.match(name)
    return found[1] if found else ""
