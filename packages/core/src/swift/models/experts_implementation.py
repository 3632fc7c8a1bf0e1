"""Which function computes the experts of a mixture: transformers has several with the same results."""

from __future__ import annotations

from typing import Any

from swift.contracts import Decision
from swift.errors import ModelError

_REASONS = {
    "eager": "one expert after the other",
    "batched_mm": "a copy of an expert for each token",
    "grouped_mm": "all experts of a layer in one product",
}


def choose_experts(model: Any, requested: str) -> Decision | None:
    """Have the experts of a transformers model computed as requested; return the choice, or None without experts.

    `auto` leaves the choice to transformers: grouped_mm, where the model's code can be computed by it.
    """
    mixtures = [module for module in model.modules() if hasattr(module, "_is_expert_parallel")]  # by its decorator
    if not mixtures:
        if requested == "auto":
            return None
        raise ModelError(
            f"model.experts_impl {requested} has no effect on {type(model).__name__}: it has no experts, or computes "
            "them in its own way.",
            hint="Type --model.experts_impl auto",
        )
    if requested != "auto":
        model.set_experts_implementation(requested)
    chosen = mixtures[0].config._experts_implementation
    if requested not in ("auto", chosen):
        raise ModelError(
            f"model.experts_impl {requested} cannot be used: transformers computes the experts of "
            f"{type(model).__name__} by {chosen}.",
            hint=f"Type --model.experts_impl {chosen} (or auto)",
        )
    reason = _REASONS.get(chosen, "")
    return Decision(chosen, f"requested; {reason}" if requested != "auto" else reason)
