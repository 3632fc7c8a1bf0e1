"""LISA and BAdam: layer rotation, which trains some layers at a time. Importable without torch."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from swift.contracts import Trains, TunerContext
from swift.errors import ConfigError
from swift_tuning.options import BadamOptions, LisaOptions

if TYPE_CHECKING:
    import torch

_BLOCK = re.compile(r"(?P<list>.+?\.)(?P<index>\d+)\.")


def blocks_of(names: Sequence[str]) -> list[list[str]]:
    """Return the weights of each decoder block: the members of the longest list of modules, by names on disk."""
    lists: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        if found := _BLOCK.match(name):
            lists[found["list"]][int(found["index"])].append(name)
    longest = max(lists.values(), key=len, default={})
    return [longest[index] for index in sorted(longest)]


class RotatesLayers:
    """Base of the tuners that train the model's own weights, layer after layer."""

    options_model: type[BaseModel]
    adapter = False
    learning_rate = 1e-5

    def needs(self, options: Any) -> frozenset[str]:
        """Return the need of backends whose optimizer can be made anew between two steps."""
        return frozenset({Trains.ROTATION})

    def attach(self, model: torch.nn.Module, options: Any, context: TunerContext) -> torch.nn.Module:
        """Return the model itself, with all weights to be trained in rotation."""
        if context.quantize != "none":
            raise ConfigError(
                f"tuner.quantize {context.quantize} stores quantized weights, which cannot be trained.",
                hint="Type --tuner.quantize none, or --tuner.kind lora.",
            )
        if context.adapter is not None:
            raise ConfigError(
                "tuner.adapter continues an adapter, but this tuner trains the model's own weights.",
                hint="Type --tuner.kind lora, or merge the adapter first: swift merge-lora",
            )
        model.requires_grad_(True)
        return model


class Lisa(RotatesLayers):
    """LISA (arXiv:2403.17919): some layers, sampled anew every `interval` steps, and all weights outside of layers."""

    options_model = LisaOptions

    def trained(self, names: Sequence[str], step: int, options: LisaOptions, seed: int) -> Collection[str]:
        """Return the weights of the layers that are sampled for a step, and all that belong to no layer."""
        blocks = blocks_of(names)
        waiting = {name for block in blocks for name in block}
        chosen = random.Random(f"lisa {seed} {step // options.interval}").sample(
            blocks, min(options.layers, len(blocks))
        )
        return waiting.symmetric_difference(names) | {name for block in chosen for name in block}


class Badam(RotatesLayers):
    """BAdam (arXiv:2404.02827): one layer after the other, and nothing outside of them."""

    options_model = BadamOptions

    def attach(self, model: torch.nn.Module, options: Any, context: TunerContext) -> torch.nn.Module:
        """Return the model itself, with all weights of layers to be trained in rotation."""
        model = super().attach(model, options, context)
        named = dict(model.named_parameters())
        within = {name for block in blocks_of(list(named)) for name in block}
        for name, parameter in named.items():
            parameter.requires_grad_(name in within)
        return model

    def trained(self, names: Sequence[str], step: int, options: BadamOptions, seed: int) -> Collection[str]:
        """Return the weights of the layer that a step trains."""
        blocks = blocks_of(names)
        cycle, turn = divmod(step // options.interval, len(blocks))
        if options.order == "random":
            random.Random(f"badam {seed} {cycle}").shuffle(blocks)
        elif options.order == "descending":
            blocks.reverse()
        return blocks[turn]
