"""The model before DeepSpeed has it: whole on every process, or, for ZeRO 3, without weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from swift.contracts import ModelView, Need
from swift.toolkit import SequenceView, ViewModule, build_view, check_heads, check_widths, sequence_attention
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import stage_of
from swift_backend_deepspeed.topology import sequence_group

if TYPE_CHECKING:
    from swift.contracts import ModelSource, Run
    from swift.data.batch import MicroBatch


@dataclass
class Built:
    """A view of the model, with its weights unless ZeRO 3 is to read them."""

    view: ViewModule
    source: ModelSource
    hollow: bool


def build(run: Run, source: ModelSource) -> Built:
    """Model, tuner and view."""
    check_heads(source.config, run.config.parallel.tp)
    check_widths(source.config, run.config.parallel.tp)
    hollow = stage_of(run.options(DeepSpeedOptions).content) == 3
    attention, view_class = None, ViewModule
    if run.config.parallel.ulysses > 1:
        attention = sequence_attention(run, source.config, cp=False)
        view_class = partial(SequenceView, group=sequence_group())  # type: ignore[assignment]  # called like a class
    view = build_view(run, source, weights=not hollow, attention=attention, view_class=view_class)
    return Built(view, source, hollow)


class Root(nn.Module):
    """Root module for `deepspeed.initialize`.

    It returns views as tuples, because DeepSpeed's hooks need tensors in tuples.
    """

    def __init__(self, view: ViewModule) -> None:
        super().__init__()
        self.view = view

    def forward(self, batch: MicroBatch | None, needs: Collection[Need] = ()) -> tuple[torch.Tensor | None, ...]:
        """The fields of a `ModelView`. Without a batch the view checks itself, which takes gathered weights too."""
        if batch is None:
            self.view.self_check()
            return ()
        in_parts = isinstance(self.view, SequenceView)
        view = self.view.in_parts(batch, needs) if in_parts else self.view(batch, needs)  # type: ignore[operator]
        return tuple(getattr(view, each.name) for each in fields(ModelView))


class EngineView(nn.Module):
    """DeepSpeed's engine, answering views as `swift.toolkit.accumulate` and `score` ask for them."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self._engine = [engine]  # in a list, so as not to be a submodule: its modules are its own business

    def forward(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """One pass through the engine."""
        return ModelView(*self._engine[0](batch, needs))

    def train(self, mode: bool = True) -> EngineView:
        """The engine's mode."""
        self._engine[0].train(mode)
        return self
