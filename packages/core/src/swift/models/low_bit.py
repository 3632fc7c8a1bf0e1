"""A model as its quantised layers multiply with it: the base of what an engine is sent by a run of QLoRA."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any, cast

import torch

from swift.contracts import ModelSource, Run, WeightStream
from swift.models.build import meta_model
from swift.models.names import NameMap, name_map
from swift.models.precision import compute_dtype
from swift.models.quantize import in_low_bit, weights_to_quantise
from swift.plugins.tuner import tuner_of

_KEPT = 2
"""Weights that are kept while their tensors are read: stacked experts have two, whose tensors on disk alternate."""


class LowBitSource:
    """Reads weights of quantised layers as 4 or 8 bits keep them, all others as they are on disk.

    Implements `swift.contracts.ModelSource`, except that `build` gives the published weights. An engine that had those
    would not say what the model in training says: the adapters have been trained on low-bit weights.
    """

    def __init__(self, source: ModelSource, run: Run) -> None:
        self._source = source
        self._section = run.config.tuner
        self._device = run.topology.device
        self._dtype = compute_dtype(run)
        self._last: OrderedDict[str, torch.Tensor] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        """Return what else the source has."""
        return getattr(self._source, name)

    @property
    def fingerprint(self) -> str:
        """Return that of the source, with how weights are quantised."""
        return f"{self._source.fingerprint}-{self._section.quantize}"

    def read(self, name: str) -> torch.Tensor:
        """Return one weight, in fp32 where it is quantised."""
        names, quantised = self._layers
        held = names.owner(name) if name in names.names() else None
        if held is None or held[0] not in quantised:
            return self._source.read(name)
        owner, piece = held
        return piece.view_of(self._kept(owner, names, quantised[owner])).clone()

    def _kept(self, owner: str, names: NameMap, shape: torch.Size) -> torch.Tensor:
        """Return a whole weight; tensors of a layer's experts, which are read in turns, share a few of these."""
        if owner not in self._last:
            if len(self._last) == _KEPT:
                self._last.popitem(last=False)
            whole = torch.empty(shape, dtype=self._dtype)
            for piece in names.pieces(owner):
                piece.view_of(whole).copy_(self._source.read(piece.name))
            self._last[owner] = in_low_bit(whole.to(self._device), self._section, self._dtype).cpu()
        return self._last[owner]

    @cached_property
    def _layers(self) -> tuple[NameMap, dict[str, torch.Size]]:
        """The names of the model's weights, and the shapes of those that are quantised by their names in memory."""
        model = meta_model(self._source, self._dtype)
        return name_map(model), {name: model.get_parameter(name).shape for name in weights_to_quantise(model)}


def as_trained(source: ModelSource, run: Run) -> ModelSource:
    """Return the model that a run's adapters are trained on: the source, or its low-bit copy."""
    return source if run.config.tuner.quantize == "none" else cast("ModelSource", LowBitSource(source, run))


def adapters_as_trained(weights: WeightStream, run: Run) -> WeightStream:
    """Stream adapters as they are added to low-bit weights, from what is streamed to be added to those on disk.

    The two differ in LoftQ's start, which the second half of the factors takes out again.
    """
    options = tuner_of(run.config.tuner).options
    for name, tensor in weights:
        if getattr(options, "init", "") == "loftq" and ".lora_B." in name:
            tensor = tensor.clone()
            tensor[:, tensor.shape[1] // 2 :] = 0
        yield name, tensor
