"""Merging LoRA on experts, whose weights are single parameters in memory and many tensors on disk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from swift.contracts import ModelSource
from swift.errors import ExportError
from swift.models.names import name_map


def scale_of(config: Mapping[str, Any], name: str, rank: int) -> float:
    """Return the factor on the update of LoRA of a module or parameter of this name in memory."""
    from peft.utils.other import get_pattern_key

    patterns = config.get("alpha_pattern") or {}
    alpha = float(patterns.get(get_pattern_key(patterns.keys(), name), config["lora_alpha"]))
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


@dataclass(frozen=True)
class _Target:
    """A parameter with an adapter."""

    key: str
    """Its name in memory."""
    experts: int
    rows: int
    columns: int
    transposed: bool
    """Whether its rows are inputs."""
    parts: dict[str, torch.Tensor] = field(default_factory=dict)


class ExpertAdapters:
    """Adapters on what PEFT calls `target_parameters`, by the tensors on disk that they change."""

    def __init__(self, base: ModelSource, config: Mapping[str, Any]) -> None:
        self._config = config
        model = base.build(dtype=torch.float32, weights=False)
        self._names = name_map(model)
        self._targets = _targets(model, tuple(config["target_parameters"]))
        self._by_key = {target.key: target for target in self._targets.values()}
        for each in config["target_parameters"]:
            if not any(_is_named(key, each) for key in self._by_key):
                raise ExportError(
                    f"The adapter's target_parameters list {each!r:.100}, which this model does not have.",
                    hint="Type: swift export --to adapter, and use the adapter with its own base model.",
                )

    def take(self, module: str, part: str, tensor: torch.Tensor) -> bool:
        """Keep a tensor of an adapter; returns whether it belongs to a parameter."""
        target = self._targets.get(module)
        if target is not None and part in ("lora_A", "lora_B"):
            target.parts[part] = tensor.float()
        return target is not None

    def added(self, name: str) -> torch.Tensor | None:
        """Return what is added to the tensor of this name on disk, or None where it stays as it is."""
        key, piece = self._names.owner(name)
        target = self._by_key.get(key)
        if target is None or not target.parts:
            return None
        size = target.rows * target.columns
        first, last = piece.start // size, -(-(piece.start + piece.numel) // size)
        updates = torch.cat([self._of_expert(target, expert).reshape(-1) for expert in range(first, last)])
        return updates.narrow(0, piece.start - first * size, piece.numel).view(piece.shape)

    def _of_expert(self, target: _Target, expert: int) -> torch.Tensor:
        try:
            down, up = target.parts["lora_A"], target.parts["lora_B"]
        except KeyError as missing:
            raise ExportError(f"The adapter of {target.key} lacks {missing.args[0]}.") from None
        inputs, outputs = target.columns, target.rows
        if target.transposed:
            inputs, outputs = outputs, inputs
        rank, rest = divmod(down.shape[0], target.experts)
        if rest or down.shape[1:] != (inputs,) or up.shape != (outputs, down.shape[0]):
            raise ExportError(
                f"The adapter of {target.key} has the shapes {tuple(down.shape)} and {tuple(up.shape)}, which do not "
                f"fit {target.experts} experts of {inputs} inputs and {outputs} outputs.",
                hint="Check that the adapter was trained on this model.",
            )
        # PEFT keeps the experts' A one after the other, and has the columns of their B take turns.
        update = up.view(outputs, rank, target.experts)[:, :, expert] @ down.view(target.experts, rank, inputs)[expert]
        return (update.T if target.transposed else update) * scale_of(self._config, target.key, rank)


def _is_named(key: str, name: str) -> bool:
    """Return whether PEFT takes a name for this parameter."""
    return key == name or key.endswith(f".{name}")


def _targets(model: torch.nn.Module, named: tuple[str, ...]) -> dict[str, _Target]:
    """Return the parameters with an adapter by the names of PEFT's modules, which are one inside of another."""
    found: dict[str, list[_Target]] = defaultdict(list)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            key = f"{path}.{name}"
            if any(_is_named(key, each) for each in named) and parameter.ndim in (2, 3):
                *experts, rows, columns = parameter.shape
                transposed = bool(getattr(module, "is_transposed", False)) and bool(experts)
                found[path].append(_Target(key, math.prod(experts), rows, columns, transposed))
    return {
        path + ".base_layer" * (len(targets) - 1 - at): target
        for path, targets in found.items()
        for at, target in enumerate(targets)
    }
