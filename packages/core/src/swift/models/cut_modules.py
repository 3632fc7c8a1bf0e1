"""Modules of PEFT on matrices that tensor parallel cuts: every process computes with the whole module. For backends.

What a module is given and what comes of it is gathered or cut where the matrix needs it, with gradients that are whole
on each process. So parameters of the modules stay as they are: they are drawn, saved and updated as in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from swift.contracts import Acts, Run
from swift.errors import UnsupportedLayout
from swift.models.collectives import added_up, copied, gathered, part_of
from swift.models.names import base_model
from swift.models.tp_spec import COLUMNS, TensorParallelSpec
from swift.plugins.blame import failing
from swift.plugins.load import load_tuner


def cut_modules(run: Run, model: nn.Module, plan: TensorParallelSpec, group: dist.ProcessGroup) -> None:
    """Let modules of PEFT compute what they would in one process, on a model whose matrices `group` has shared.

    Call it when the matrices have been cut by `plan`, which was made of the model before. Does nothing where the
    tuner has no modules of PEFT.
    """
    tuner = load_tuner(run.config.tuner.kind)
    cut = getattr(tuner.object, "cut", None)
    with failing(tuner.entry, "cut"):
        acts = None if cut is None else cut(run.config.tuner.options(cast(Any, tuner.config_model)))
    if acts is None:
        return
    base = base_model(model)
    # Others are given whole inputs and return whole outputs, as in one process.
    gathered_inside = next((name for name in plan.whole_outside if name.endswith(".base_layer")), None)
    if acts is Acts.FACTOR and gathered_inside is not None:
        raise UnsupportedLayout(
            f"tuner.kind {run.config.tuner.kind} needs the weights of {gathered_inside.removesuffix('.base_layer')}, "
            "which tensor parallel shards.",
            hint="Type --parallel.tp 1, or leave it out of tuner.targets.",
        )
    for name, how in plan.cut.items():
        path, _, last = name.rpartition(".")
        if last == "base_layer":
            CutModule(base.get_submodule(path), columns=how == COLUMNS, group=group).install(acts)


def copy_tails(base: nn.Module, plan: TensorParallelSpec, group: dist.ProcessGroup) -> None:
    """Add gradients of outputs up that each process uses on its own heads, where all others are used as a whole."""
    for name, width in plan.tails.items():
        base.get_submodule(name).register_forward_hook(_tail_copied(width, group))


def _tail_copied(width: int, group: dist.ProcessGroup) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
    def hook(_module: nn.Module, _given: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.cat([output[..., :-width], copied(output[..., -width:], group)], dim=-1)

    return hook


class CutModule:
    """One module of PEFT, around a matrix of which this process has a part."""

    def __init__(self, module: nn.Module, *, columns: bool, group: dist.ProcessGroup) -> None:
        self.module, self.columns, self.group = module, columns, group
        weight: Any = module.base_layer.weight  # type: ignore[union-attr]  # PEFT's name of the linear layer
        ways = dist.get_world_size(group)
        rows, width = weight.shape
        if not isinstance(weight, DTensor):
            rows, width = (rows * ways, width) if columns else (rows, width * ways)
        self.stand_in = _StandIn(rows, width)
        self._forward: Callable[[torch.Tensor], torch.Tensor] = module.forward

    def install(self, acts: Acts) -> None:
        """Replace the module's forward pass, where its own would not be what one process computes."""
        if acts is Acts.SCALE:
            acts = Acts.INPUTS if getattr(self.module, "is_feedforward", False) else Acts.SCALE
        # Inputs of a matrix cut by columns are whole, and so are outputs of one that is cut by rows.
        as_it_is = {Acts.INPUTS: self.columns, Acts.SCALE: not self.columns}
        if as_it_is.get(acts, False):
            return
        passes = {Acts.SUM: self._sum, Acts.INPUTS: self._inputs, Acts.SCALE: self._scale, Acts.FACTOR: self._factor}
        chosen = passes[acts]

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            if getattr(self.module, "disable_adapters", False):
                return self._base(inputs)
            return chosen(inputs)

        self.module.forward = forward

    def _base(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.module.base_layer(inputs)  # type: ignore[operator]
        return outputs

    def _sum(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add what the module adds: its part by columns, all of it by rows."""
        outputs = self._base(inputs)
        whole = inputs if self.columns else gathered(inputs, -1, self.group)
        with self._standing_in(lambda given: given.new_zeros(*given.shape[:-1], self.stand_in.out_features)):
            added = self._forward(whole)
        return outputs + (part_of(added, -1, self.group) if self.columns else added).to(outputs.dtype)

    def _inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Change the whole inputs, and give the matrix its part of them."""
        with self._standing_in(lambda given: given):
            changed = self._forward(gathered(inputs, -1, self.group))
        return self._base(part_of(changed, -1, self.group))

    def _scale(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply outputs with this process's part of their factors."""
        outputs = self._base(inputs)
        with self._standing_in(lambda given: given.new_ones(self.stand_in.out_features)):
            factors = self._forward(inputs)
        return outputs * part_of(factors, -1, self.group)

    def _factor(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add what the weights give that are multiplied with a factor each."""
        outputs = self._base(inputs)
        module: Any = self.module
        with self._standing_in(lambda given: given):
            delta = module.get_delta_weight(module.active_adapters[0])
            factor = part_of(delta, 0 if self.columns else 1, self.group)
        weight = module.base_layer.weight
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if self.columns:
            added = functional.linear(copied(inputs, self.group).to(factor.dtype), local * factor)
        else:
            added = added_up(functional.linear(inputs.to(factor.dtype), local * factor), self.group)
        return outputs + added.to(outputs.dtype)

    @contextmanager
    def _standing_in(self, outputs: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """Put a layer of the whole size, which computes something else, instead of the linear layer."""
        cut = self.module._modules["base_layer"]
        self.stand_in.outputs = outputs
        self.module._modules["base_layer"] = self.stand_in
        try:
            yield
        finally:
            self.module._modules["base_layer"] = cut


class _StandIn(nn.Linear):
    """Has the shape of a whole linear layer, and none of its weights."""

    outputs: Callable[[torch.Tensor], torch.Tensor]

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(columns, rows, bias=False, device="meta")
        self.requires_grad_(False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.outputs(input)
