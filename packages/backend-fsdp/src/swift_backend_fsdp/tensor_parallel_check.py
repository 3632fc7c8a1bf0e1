"""Which plan of tensor parallel holds for a model: gradients of a small copy, sharded, are those of the whole one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from swift.errors import UnsupportedLayout
from swift.toolkit import (
    TensorParallelPlan,
    TensorParallelSpec,
    ViewModule,
    base_model,
    derived_plans,
    own_plan,
    tensor_parallel_spec,
)

Apply = Callable[[nn.Module, TensorParallelSpec, DeviceMesh], None]
_TOKENS = 24
_FAR = 1e-3
"""Largest difference of a gradient, relative to the largest element of the whole one."""
_ROUNDING = 1e-6
"""And relative to the largest of all: some gradients are nothing but rounding."""


def checked_plan(view: ViewModule, mesh: DeviceMesh, apply: Apply) -> TensorParallelPlan:
    """Return the model's own plan, or what can be cut where it has none or that computes something else."""
    model, ways = view.model, mesh.size()
    probe = _probe(view, mesh, apply)
    own = own_plan(model)
    if own and (probe is None or probe.holds(own)):
        return own
    found: dict[str, str] = {}
    for plan in derived_plans(model):
        if probe is not None and _fits(model, plan, ways) and probe.holds(plan):
            found |= plan
    if not found:
        name = type(base_model(model)).__name__
        why = "" if probe is not None else ": no small copy can be built, on which to check what may be cut"
        raise UnsupportedLayout(f"{name} does not support tensor parallelism{why}.", hint="Type --parallel.tp 1")
    return found


def _probe(view: ViewModule, mesh: DeviceMesh, apply: Apply) -> PlanCheck | None:
    """Return a small copy to try plans on; None where none can be built and trained."""
    small = view.small_copy(ways=mesh.size())
    if small is None:
        return None
    try:
        return PlanCheck(small, mesh, apply)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # code that cannot be differentiated in evaluation
        return None


def _fits(model: nn.Module, plan: TensorParallelPlan, ways: int) -> bool:
    try:
        tensor_parallel_spec(model, ways=ways, plan=plan)
    except UnsupportedLayout:
        return False
    return True


class PlanCheck:
    """A small copy of the model, the same on all processes, and its own numbers."""

    def __init__(self, small: Any, mesh: DeviceMesh, apply: Apply) -> None:
        device = torch.device(mesh.device_type)  # the current one
        self.small, self.mesh, self.apply = small.to(device), mesh, apply
        vocabulary = self.small.get_input_embeddings().weight.shape[0]
        self.ids = torch.arange(1, _TOKENS + 1, device=device)[None] * 7919 % vocabulary
        self.expected = dict(self._numbers(copy.deepcopy(small), frozenset()))
        self.largest = max(float(each.abs().max()) for each in self.expected.values())

    def holds(self, plan: TensorParallelPlan) -> bool:
        """Return whether outputs and gradients are the same when the copy is cut."""
        sharded = copy.deepcopy(self.small)
        try:
            spec = tensor_parallel_spec(sharded, ways=self.mesh.size(), plan=plan)
        except UnsupportedLayout:
            return False
        self.apply(sharded, spec, self.mesh)
        try:
            with _quiet():
                same = self._agrees(sharded, spec.partial)
        except (torch.OutOfMemoryError, dist.DistError):
            raise
        except Exception:  # whatever code raises that counts its own heads
            same = False
        votes = torch.tensor(float(same), device=self.ids.device)
        dist.all_reduce(votes, dist.ReduceOp.MIN, group=self.mesh.get_group())
        return bool(votes)

    def _agrees(self, sharded: nn.Module, partial: frozenset[str]) -> bool:
        parts = {name for name, parameter in sharded.named_parameters() if isinstance(parameter, DTensor)}
        found = dict(self._numbers(sharded, partial))
        takes_part = not parts.isdisjoint(self.expected)
        return takes_part and all(self._close(found.get(name), expected) for name, expected in self.expected.items())

    @torch.enable_grad()
    def _numbers(self, model: Any, partial: frozenset[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what the model computes, and the whole gradient of each parameter."""
        returned = model(input_ids=self.ids, use_cache=False)
        output = returned.logits if hasattr(returned, "logits") else returned.last_hidden_state
        yield "output", output.detach()
        weights = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).view_as(output)
        (output * weights.cos()).sum().backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            if name in partial:
                dist.all_reduce(whole, group=self.mesh.get_group())
            yield name, whole

    def _close(self, found: torch.Tensor | None, expected: torch.Tensor) -> bool:
        if found is None:
            return False
        most = _FAR * expected.abs().max() + _ROUNDING * self.largest
        return bool(((found.view_as(expected) - expected).abs() <= most).all())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging what fails: the check reports it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
