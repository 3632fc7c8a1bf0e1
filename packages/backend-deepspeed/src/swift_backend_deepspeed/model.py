"""The model before DeepSpeed partitions it: whole on every process, or, for ZeRO 3, without weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from swift.contracts import ModelSource, ModelView, Need, Run
from swift.data.batch import MicroBatch
from swift.errors import UnsupportedLayout
from swift.toolkit import (
    SequenceView,
    ViewModule,
    build_view,
    by_position,
    decoder_blocks,
    refuse_calls_of_blocks,
    sequence_attention,
)
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import stage_of
from swift_backend_deepspeed.packed import multiply_gathered, partition_when_read
from swift_backend_deepspeed.topology import sequence_group


@dataclass
class BuiltModel:
    """A view of the model; for ZeRO 3 its parameters are on the meta device until they are partitioned.

    Quantised ones are partitioned as soon as they are read.
    """

    view: ViewModule
    source: ModelSource
    on_meta: bool


def build(run: Run, source: ModelSource) -> BuiltModel:
    """Build model, tuner and view."""
    on_meta = stage_of(run.options(DeepSpeedOptions).content) == 3
    attention, view_class = None, ViewModule
    if run.config.parallel.ulysses > 1:
        attention = sequence_attention(run, source.config, cp=False)
        view_class = partial(SequenceView, group=sequence_group(run))  # type: ignore[assignment]  # called like a class
    packed = on_meta and run.config.tuner.quantize != "none"
    placer = partition_when_read(run) if packed else None
    view = build_view(run, source, weights=not on_meta, attention=attention, view_class=view_class, placer=placer)
    if on_meta:
        _gather_once(view, packed)
    if packed:
        multiply_gathered(view)
    return BuiltModel(view, source, on_meta)


def _gather_once(view: ViewModule, packed: bool) -> None:
    """Gather all weights inside of a module that is called sample by sample with the module itself.

    What it contains is called as often as this process has samples, and others have more or fewer.
    """
    from deepspeed.utils import set_z3_leaf_module

    refuse_calls_of_blocks(view, decoder_blocks(view.model))
    if packed and view.by_sample:
        raise UnsupportedLayout(
            f"ZeRO 3 does not gather quantized weights of {type(view.by_sample[0]).__name__}, which computes packed "
            "samples one by one.",
            hint="Turn it off: --data.packing false --data.padding_free false",
        )
    for module in view.by_sample:
        module.register_forward_pre_hook(_with_gradient_of_input, with_kwargs=True)
        set_z3_leaf_module(module, True)


def _with_gradient_of_input(module: nn.Module, positional: Any, named: Any) -> tuple[Any, Any]:
    """Pass by position what a module is given, and let its input have a gradient.

    DeepSpeed reduces the gradients of all its weights when that of a positional argument is there, or else too early.
    """
    positional, named = by_position(module.forward, positional, named)
    first = positional[0] if positional else None
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        if any(parameter.requires_grad for parameter in module.parameters()):
            raise UnsupportedLayout(
                f"ZeRO 3 does not train {type(module).__name__}, which looks up packed samples one by one.",
                hint="Turn it off: --data.packing false --data.padding_free false",
            )
    elif torch.is_grad_enabled() and not first.requires_grad:
        positional = (first.detach().requires_grad_(), *positional[1:])
    return positional, named


class EngineRoot(nn.Module):
    """EngineRoot module for `deepspeed.initialize`.

    It returns views as tuples, because DeepSpeed's hooks need tensors in tuples.
    """

    def __init__(self, view: ViewModule) -> None:
        super().__init__()
        self.view = view

    def forward(self, batch: MicroBatch | None, needs: Collection[Need] = ()) -> tuple[torch.Tensor | None, ...]:
        """Return the fields of a `ModelView`; without a batch the view checks itself, on gathered weights too."""
        if batch is None:
            self.view.self_check()
            return ()
        sharded = isinstance(self.view, SequenceView)
        view = self.view.forward_sharded(batch, needs) if sharded else self.view(batch, needs)  # type: ignore[operator]
        return tuple(getattr(view, each.name) for each in fields(ModelView))


class _AllOrNone(torch.autograd.Function):
    """Views that all get a gradient where one of them gets one.

    ZeRO 3 notes in the backward pass which of the engine's results it comes to, and processes that came to different
    ones wait for each other without end. A loss may leave a view alone where a micro-batch has nothing to learn.
    """

    @staticmethod
    def forward(ctx: Any, *views: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        found = tuple(None if view is None else view.view_as(view) for view in views)
        learned = zip(found, ctx.needs_input_grad, strict=True)
        ctx.mark_non_differentiable(*(view for view, learns in learned if view is not None and not learns))
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        wanted = zip(gradients, ctx.needs_input_grad, strict=True)
        return tuple(gradient if wants else None for gradient, wants in wanted)


class EngineView(nn.Module):
    """DeepSpeed's engine as a module that returns views, for `swift.toolkit.accumulate` and `score`."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self._engine = [engine]  # in a list, so as not to be a submodule: its modules are its own business

    def forward(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """Run one forward pass of the engine."""
        return ModelView(*cast("Any", _AllOrNone.apply)(*self._engine[0](batch, needs)))

    def train(self, mode: bool = True) -> EngineView:
        """Set the engine's mode."""
        self._engine[0].train(mode)
        return self
