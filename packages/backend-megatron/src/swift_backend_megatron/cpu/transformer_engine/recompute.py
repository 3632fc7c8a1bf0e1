"""Activation recomputation, and the named generator states that make dropout repeat in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from swift_backend_megatron.cpu.unsupported import refuse_any


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,
    **kwargs: Any,
) -> Any:
    """Compute `function` once more in the backward pass, from the same states of all generators."""
    from torch.utils import checkpoint as torch_checkpoint

    refuse_any(distribute_saved_activations=distribute_saved_activations)
    tracker = None if get_rng_state_tracker is None else get_rng_state_tracker()
    before = None if tracker is None else tracker.get_states()

    @contextmanager
    def again() -> Iterator[None]:
        if tracker is None:
            yield
            return
        after = tracker.get_states()
        tracker.set_states(dict(before))  # type: ignore[arg-type]
        try:
            yield
        finally:
            tracker.set_states(after)

    return torch_checkpoint.checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), again()), **kwargs
    )


class CudaRNGStatesTracker:
    """Named states of the generator."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states_: dict[str, Tensor] = {}

    def get_states(self) -> dict[str, Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        if name in self.states_:
            raise ValueError(f"the state {name} exists already")
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)
