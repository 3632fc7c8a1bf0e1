"""Expert parallel: every process has some experts of each layer; tokens go to theirs and come back, by all-to-all.

transformers stacks the experts of a layer into parameters whose first dimension counts them, and calls them with
tokens, and with indices and weights of the experts that each token was routed to. Here each process calls the same
function with the experts that it has, and with the tokens that all processes of its group route to these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from swift.errors import UnsupportedLayout
from swift.toolkit import base_model, exchanged

_HINT = "Type --parallel.ep 1: FSDP shards experts like all other weights."


def shard_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Leave each process its part of the experts of every layer; return the modules that hold them."""
    found = dict(_experts(model))
    if not found:
        raise UnsupportedLayout(
            f"{type(base_model(model)).__name__} has no experts that are stacked into one tensor per matrix, which "
            "expert parallel could distribute.",
            hint=_HINT,
        )
    for name, module in found.items():
        _check(name, module, mesh.size())
        ExpertParallel(module, mesh)
    return [*found.values()]


def _experts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield modules with 3-D parameters that are called with three arguments: tokens, indices and weights."""
    for name, module in model.named_modules():
        stacked = any(each.ndim == 3 for each in module.parameters(recurse=False))
        if stacked and len(inspect.signature(module.forward).parameters) == 3:
            yield name, module


def _check(name: str, module: nn.Module, ways: int) -> None:
    """Refuse a module that is not a stack of experts, in all that it holds."""
    if {"base_layer", "original_module", "modules_to_save"} & {*name.split(".")}:
        raise UnsupportedLayout(
            f"{name} has adapters or a copy that is trained, which expert parallel does not distribute.",
            hint=f"{_HINT} Or remove the experts from tuner.targets.",
        )
    count = getattr(module, "num_experts", None)
    if not isinstance(count, int):
        raise UnsupportedLayout(f"{name} does not tell how many experts it has.", hint=_HINT)
    for part, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.ndim == 0 or tensor.shape[0] != count:
            raise UnsupportedLayout(
                f"{name}.{part} of shape {tuple(tensor.shape)} is not a stack of {count} experts, which expert "
                "parallel could distribute.",
                hint=_HINT,
            )
    if count % ways:
        raise UnsupportedLayout(
            f"{count} experts of {name} are not divisible by ep {ways}.", hint=f"Choose a divisor of {count}."
        )


class ExpertParallel:
    """The forward pass of one layer's experts, of which this process has a part."""

    def __init__(self, module: Any, mesh: DeviceMesh) -> None:
        self.module, self.group = module, mesh.get_group()
        self.count, self.ways = module.num_experts, mesh.size()
        self.signature = inspect.signature(module.forward)
        self.compute = module.forward
        module.num_experts = self.count // self.ways
        self.names = [name for name, _ in module.named_parameters()]
        for name, parameter in module.named_parameters():
            part = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
            setattr(module, name, nn.Parameter(part, requires_grad=parameter.requires_grad))
        # How many tokens come is known only when they do, and compiled code is made for sizes.
        module.forward = torch.compiler.disable(self.forward)  # type: ignore[no-untyped-call]  # as torch declares it

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        """Return what all experts make of these tokens, wherever the experts are."""
        tokens, indices, weights = self.signature.bind(*given, **named).args
        if weights.shape != indices.shape or tokens.shape[:-1].numel() != indices.shape[:-1].numel():
            raise UnsupportedLayout(
                f"{type(self.module).__name__} is called with weights of shape {tuple(weights.shape)} for experts of "
                f"shape {tuple(indices.shape)}, which expert parallel cannot deal out.",
                hint=_HINT,
            )
        chosen = indices.flatten()
        order = chosen.argsort(stable=True)
        loads = torch.bincount(chosen, minlength=self.count)[: self.count].view(self.ways, -1)
        incoming = torch.empty_like(loads)
        dist.all_to_all_single(incoming, loads, group=self.group)
        send, receive = torch.stack((loads.sum(1), incoming.sum(1))).tolist()
        # What stands behind the last expert is routed to none, and comes back as nothing.
        order = order[: sum(send)]
        own = torch.arange(loads.shape[1], device=order.device).repeat(self.ways)
        own = own.repeat_interleave(incoming.flatten(), output_size=sum(receive))
        rows, scales = exchanged(
            (tokens.flatten(0, -2)[order // indices.shape[-1]], weights.flatten()[order]), send, receive, self.group
        )
        (results,) = exchanged((self._computed(rows, own, scales),), receive, send, self.group)
        blank = results.new_zeros(chosen.shape[0], results.shape[-1])
        summed = blank.index_put((order,), results).view(-1, indices.shape[-1], blank.shape[-1]).sum(1)
        # Not a view, where it need not be: FSDP's hooks on it are lost when models add to a view in place.
        return summed if tokens.ndim == 2 else summed.view(*tokens.shape[:-1], -1).clone()

    def _computed(self, rows: torch.Tensor, own: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Call the model's own function with local weights, and with one expert for each row."""
        count = len(rows)
        if not count:  # every process goes back through all weights, those with a gradient of zero as well
            rows, scales, own = (torch.cat([each, each.new_zeros(1, *each.shape[1:])]) for each in (rows, scales, own))
        attributes = vars(self.module)
        for name in self.names:
            parameter = self.module._parameters[name]
            attributes[name] = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        try:
            results: torch.Tensor = self.compute(rows, own[:, None], scales[:, None])
        finally:
            for name in self.names:
                del attributes[name]
        return results[:count]
