"""In which precision each tensor of an export is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from swift.contracts import ModelSource


def export_dtypes(source: ModelSource, choice: str) -> dict[str, torch.dtype]:
    """Return the dtype of every weight of the model, by name.

    `auto` is the model's own dtype, tensor by tensor: fp32 weights among bf16 ones stay fp32. Integers and fp8 are kept
    only under `auto`.
    """
    if choice != "auto":
        return dict.fromkeys(source.names(), getattr(torch, choice))
    # Reading maps the file and touches no data.
    return {name: source.read(name).dtype for name in source.names()}


def main_dtype(dtypes: Iterable[torch.dtype]) -> str:
    """Return the one that most tensors have, as configurations spell it."""
    return str(Counter(dtypes).most_common(1)[0][0]).removeprefix("torch.")
