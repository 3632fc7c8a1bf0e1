"""Adam as Transformer Engine has it, and its operations on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from swift_backend_megatron.cpu.unsupported import refuse_any


class FusedAdam(torch.optim.Optimizer):
    """Adam that counts steps per group, as Transformer Engine does."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        refuse_any(bias_correction=None if bias_correction else "off", amsgrad=amsgrad, **options)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._update = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            params = [param for param in group["params"] if param.grad is not None and param.numel()]
            for param in params:
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in self.state[param]:
                        self.state[param][name] = torch.zeros_like(param)
            if params:
                self._update(
                    params,
                    [param.grad.to(param.dtype) for param in params],
                    [self.state[param]["exp_avg"] for param in params],
                    [self.state[param]["exp_avg_sq"] for param in params],
                    [],
                    [torch.tensor(float(group["step"]))] * len(params),
                    lr=float(group["lr"]),
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )
        return loss


def multi_tensor_applier(op: Callable[..., Any], overflow: Tensor, lists: list[list[Tensor]], *args: Any) -> Any:
    """Apply an operator to lists of tensors."""
    return op(2048 * 32, overflow, lists, *args)


def multi_tensor_scale(chunk: int, overflow: Tensor, lists: list[list[Tensor]], scale: float) -> None:
    """Copy tensors, scaled."""
    sources, targets = lists
    if all(source is target for source, target in zip(sources, targets, strict=True)):
        # Gradients that are clipped: where they are, as the kernel does, and not all of them once more.
        if sources and scale != 1.0:
            torch._foreach_mul_(targets, scale)
    elif sources:
        torch._foreach_copy_(targets, sources if scale == 1.0 else torch._foreach_mul(sources, scale))


def multi_tensor_l2norm(
    chunk: int, overflow: Tensor, lists: list[list[Tensor]], per_tensor: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the norm of all tensors together, and of each if `per_tensor`."""
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(lists[0])]) if lists[0] else torch.zeros(1)
    return norms.norm().reshape(1), norms if per_tensor else None
