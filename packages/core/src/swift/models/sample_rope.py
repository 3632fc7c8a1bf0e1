"""Rotary positions that depend on the length of a sample, computed for each sample as if it were alone.

Under `longrope` and `dynamic` scaling, transformers chooses the frequencies of a whole micro-batch by its longest
sample, dynamic ones by the longest so far. A sample would have another loss beside a long neighbour than alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from swift.models.positions import DYNAMIC, LONGROPE


def use_sample_rope(model: torch.nn.Module) -> bool:
    """Choose rotary frequencies sample by sample from now on; return whether the model has such frequencies.

    The model must be given `position_ids` that begin at zero with every sample, in padding too.
    """
    found = [module for module in model.modules() if getattr(module, "rope_type", None) in (LONGROPE, DYNAMIC)]
    for module in found:
        module.forward = _by_sample(module, module.forward)
    return bool(found)


def _by_sample(module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    limit: int = module.config.rope_parameters.get("original_max_position_embeddings") or module.original_max_seq_len

    def chosen(hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = _lengths(position_ids)
        if module.rope_type == LONGROPE:
            lengths = lengths.clamp(max=limit + 1)  # all longer samples have the same frequencies
        lengths = lengths.clamp(min=limit)
        kinds = sorted(set(lengths.flatten().tolist()))
        cos = sin = None
        for kind in kinds:
            ours = lengths == kind
            if module.rope_type == DYNAMIC:  # forget how long others were
                module.register_buffer("inv_freq", module.original_inv_freq.to(position_ids.device), persistent=False)
                module.max_seq_len_cached = limit
            found = forward(hidden, position_ids.where(ours, 0) if len(kinds) > 1 else position_ids)
            if cos is None or sin is None:
                cos, sin = found
            else:
                cos, sin = (new.where(ours[..., None], old) for new, old in zip(found, (cos, sin), strict=True))
        assert cos is not None
        assert sin is not None
        return cos, sin

    return chosen


def _lengths(position_ids: torch.Tensor) -> torch.Tensor:
    """Return the length of the sample that each position belongs to."""
    samples = (position_ids == 0).cumsum(-1)
    longest = position_ids.new_zeros((len(position_ids), position_ids.shape[-1] + 1))
    longest = longest.scatter_reduce(-1, samples, position_ids + 1, "amax")
    return longest.gather(-1, samples)
