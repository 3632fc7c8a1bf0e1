"""Merging adapters into their base model, one weight at a time."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from swift.contracts import ModelSource, WeightStream
from swift.errors import ExportError
from swift.models.adapter_file import check_patterns, kind_of
from swift.models.merge_experts import ExpertAdapters, scale_of
from swift.models.merge_modules import merged_by_peft

_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_bias|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
)
_KEEP_ADAPTER = "Type: swift export --to adapter, and serve the adapter with its base model."

# Settings of PEFT's LoRA under which the trained weight is not base + scale * B @ A (with or without DoRA's
# magnitudes), or that put adapters elsewhere than into modules of their own.
_UNSUPPORTED = (
    "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "megatron_config",
    "monteclora_config", "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config",
)  # fmt: skip
# How adapters may have started. PiSSA and OLoRA take their start out of the base weight, so that it is not the one
# on disk; PEFT is asked to take it out again.
_MERGEABLE_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
_STARTS_INSIDE = ("pissa", "olora")


def merged(
    base: ModelSource, adapters: Mapping[str, torch.Tensor] | WeightStream, config: Mapping[str, Any]
) -> WeightStream:
    """Stream every weight of the base model with the adapter merged in, in fp32 where it changed.

    `adapters` are the tensors by their PEFT names on disk, `config` PEFT's adapter configuration. What cannot be
    merged exactly is refused by name, before the first weight.
    """
    tensors = dict(adapters.items() if isinstance(adapters, Mapping) else adapters)
    if kind_of(config) != "LORA":
        return merged_by_peft(base, tensors, config)
    return _Merge(base, tensors, config).stream()


class _Merge:
    def __init__(self, base: ModelSource, adapters: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
        self._base = base
        self._config = config
        self._names = base.names()
        self._on_disk = _renamed(base)
        self._in_memory: dict[str, str] = {}
        """The name by which the adapter knows a module, by its name on disk, where they differ."""
        self._replaced: dict[str, torch.Tensor] = {}
        self._modules: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        _check_config(config)
        check_patterns(config, self._names, "the adapter's configuration", ExportError)
        self._experts = ExpertAdapters(base, config) if config.get("target_parameters") else None
        for name, tensor in adapters.items():
            self._take(name, tensor)
        self._check_tied()

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        """Sort one adapter tensor: part of a low-rank update, or a whole weight of `modules_to_save` or a bias."""
        inner = name.removeprefix(_PREFIX)
        stem = inner.replace("lora_B.bias", "lora_bias").removesuffix(".weight")
        match = _PART.fullmatch(stem)
        if match:
            known = match["module"]
            if self._experts is not None and self._experts.take(known, match["part"], tensor):
                return
            kind = "bias" if match["part"] == "lora_bias" else "weight"
            target = self._on_disk.get(f"{known}.{kind}", f"{known}.{kind}")
            module = target.removesuffix(f".{kind}")
            self._modules[module][match["part"]] = tensor
            self._in_memory[module] = known
        else:
            known = inner.replace(".base_layer.", ".")
            target = self._on_disk.get(known, known)
            self._replaced[target] = tensor
        if target not in self._names:
            raise ExportError(
                f"The adapter's {name} cannot be merged: the base model has no weight {target}.", hint=_KEEP_ADAPTER
            )

    def _check_tied(self) -> None:
        """Refuse an adapter on one of two tied weights, which cannot be merged: the other would change with it."""
        text = self._base.config.get_text_config()
        if not getattr(text, "tie_word_embeddings", False):
            return
        embeddings = (text.vocab_size, text.hidden_size)
        touched = {*self._replaced, *(f"{module}.weight" for module in self._modules)}
        for name in touched:
            if self._base.shape(name) == embeddings:
                raise ExportError(
                    f"The adapter trains only one use of {name}, which this model ties between input and output. "
                    "Merging would change both.",
                    hint=_KEEP_ADAPTER,
                )

    def stream(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all weights in the order of the base model."""
        for name in self._names:
            module, _, kind = name.rpartition(".")
            parts = self._modules.get(module, {})
            weight = self._replaced.get(name)
            if weight is None:
                weight = self._base.read(name)
            if kind == "weight" and len(parts) > ("lora_bias" in parts):
                weight = self._updated(module, weight.float(), {part: t.float() for part, t in parts.items()})
            elif kind == "bias" and "lora_bias" in parts:
                weight = weight.float() + self._scale(module, parts) * parts["lora_bias"].float()
            added = None if self._experts is None else self._experts.added(name)
            if added is not None:
                weight = weight.float() + added
            yield name, weight

    def _updated(self, module: str, weight: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        embedding = "lora_embedding_A" in parts
        try:
            down = parts["lora_embedding_A" if embedding else "lora_A"]
            up = parts["lora_embedding_B" if embedding else "lora_B"]
        except KeyError as missing:
            raise ExportError(f"The adapter of {module} lacks {missing.args[0]}.") from None
        # An embedding's rows, and Conv1D's, are its inputs.
        transposed = embedding or bool(self._config.get("fan_in_fan_out"))
        scale = self._scale(module, parts)
        left, right = (down.T, up.T) if transposed else (up, down)
        shape = (left.shape[0], right.shape[1])
        if shape != weight.shape:
            raise ExportError(
                f"The adapter of {module} gives an update of shape {shape}, but the weight has shape "
                f"{tuple(weight.shape)}.",
                hint=_KEEP_ADAPTER,
            )
        if self._config.get("init_lora_weights") in _STARTS_INSIDE:
            weight = _without_start(weight, self._config, scale, rank=down.shape[0])
        changed = torch.addmm(weight, left, right, alpha=scale)
        magnitude = parts.get("lora_magnitude_vector")
        if magnitude is None:
            return changed
        # DoRA: the magnitudes are those of the output features: rows, or columns where the weight is transposed.
        outputs = 0 if transposed else 1
        factor: torch.Tensor = magnitude.reshape(-1) / torch.linalg.norm(changed, dim=outputs)
        return changed * factor.unsqueeze(outputs)

    def _scale(self, module: str, parts: Mapping[str, torch.Tensor]) -> float:
        rank = next(parts[part].shape[0] for part in ("lora_A", "lora_embedding_A") if part in parts)
        return scale_of(self._config, self._in_memory.get(module, module), rank)


def _renamed(base: ModelSource) -> dict[str, str]:
    """Return the names on disk of weights that transformers calls otherwise in memory, as PEFT does."""
    names = getattr(base, "name_map", None)
    if names is None:
        return {}
    pieces = {name: names.pieces(name) for name in names.parameters()}
    return {name: held[0].name for name, held in pieces.items() if len(held) == 1 and held[0].name != name}


def _check_config(config: Mapping[str, Any]) -> None:
    used = [name for name in _UNSUPPORTED if config.get(name)]
    start = config.get("init_lora_weights", True)
    if start not in (*_MERGEABLE_STARTS, *_STARTS_INSIDE):
        used.append(f"init_lora_weights={start}")
    if config.get("target_parameters"):
        used += [f"target_parameters and {name}" for name in ("use_dora", "lora_bias") if config.get(name)]
        used += [f"target_parameters and init_lora_weights={start}"] if start in _STARTS_INSIDE else []
    if used:
        raise ExportError(f"swift cannot merge adapters that use {' and '.join(used)}.", hint=_KEEP_ADAPTER)


def _without_start(weight: torch.Tensor, config: Mapping[str, Any], scale: float, rank: int) -> torch.Tensor:
    """Return PEFT's base weight after PiSSA or OLoRA have taken the adapter's initial value out of it."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    transposed = bool(config.get("fan_in_fan_out"))
    outputs, inputs = weight.T.shape if transposed else weight.shape
    base = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    base.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    rslora = bool(config.get("use_rslora"))
    settings = LoraConfig(init_lora_weights=config["init_lora_weights"], use_rslora=rslora, fan_in_fan_out=transposed)
    alpha = scale * (math.sqrt(rank) if rslora else rank)
    layer = Linear(base, "default", config=settings, r=rank, lora_alpha=alpha)
    remaining: torch.Tensor = layer.get_base_layer().weight.data
    return remaining
