"""How much memory a model will take when vLLM serves it, estimated from headers before anything is loaded."""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.contracts import EngineRequest
from swift.errors import ModelError
from swift.models import available_bytes
from swift.models.files import SafetensorsFolder
from swift.untrusted import read_json_object

GIB = 2**30
VLLM_ITSELF = 3 * GIB // 2
"""Its three processes on the CPU, before any model."""
FLOATS = ("F64", "F32", "F16", "BF16")
ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
SEQUENCES = 16
"""As many answers of full length at a time have room in the cache on the CPU, where it is left to us,"""
MODEST = 4 * GIB
"""and no more than that is taken for them, unless one alone needs it."""
LEAST = 64 * 2**20
BLOCK = 128
"""Tokens that vLLM gives out at a time on the CPU; it keeps one such block for itself."""
SHORTEST = 512
"""Tokens; a context that would have to be cut below that is refused."""
UTILISATION = 0.92
"""The part of a GPU's memory that vLLM takes by default."""


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that a model needs."""

    weights: int
    """Bytes."""
    per_token: int
    """Bytes of the cache of keys and values, for each token of each answer; an upper bound."""
    longest: int
    """Tokens that the model has positions for."""
    lasting: int = 0
    """Of the bytes for each token, those of layers that keep every token of an answer: no window, no state."""


@dataclass(frozen=True)
class MemoryShare:
    """Share of the CPU's memory that a server may use."""

    cache: int
    """Bytes; 0 where the user decides."""
    max_length: int | None
    """Set where it is shorter than the model's."""


def need_of(model: Path, dtype: str) -> MemoryNeed:
    """From config.json and the headers of the weights. `dtype` 'auto' is what the files have."""
    config: dict[str, Any] = read_json_object(model / "config.json", ModelError)
    weights = SafetensorsFolder(model)
    stored_as_is = "quantization_config" in config or dtype not in ITEM_SIZE
    size = sum(
        weights.size(name)
        if stored_as_is or weights.dtype(name) not in FLOATS
        else math.prod(weights.shape(name)) * ITEM_SIZE[dtype]
        for name in weights.names()
    )
    text = {**config, **config.get("text_config", {})}
    kept_in = dtype if dtype in ITEM_SIZE else str(text.get("dtype") or text.get("torch_dtype"))
    item = ITEM_SIZE.get(kept_in, ITEM_SIZE["float32"])
    layers = int(text.get("num_hidden_layers") or text.get("n_layer") or 0)
    return MemoryNeed(
        size,
        _cache_per_token(text, item, layers),
        int(text.get("max_position_embeddings") or 0),
        _cache_per_token(text, item, _lasting(text, layers)),
    )


def _lasting(config: dict[str, Any], layers: int) -> int:
    """Return how many layers keep the keys and values of every token, at least."""
    for key in ("layer_types", "layers_block_type"):
        if isinstance(kinds := config.get(key), list):
            return sum(kind in ("full_attention", "attention", "hybrid") for kind in kinds)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return layers
    every = config.get("sliding_window_pattern")
    return layers // every if isinstance(every, int) and every > 0 else 0


def _cache_per_token(config: dict[str, Any], item: int, layers: int) -> int:
    if "kv_lora_rank" in config:  # keys and values are kept compressed
        return layers * (int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0)) * item
    heads = int(config.get("num_key_value_heads") or _heads(config))
    return 2 * layers * heads * head_size(config) * item


def head_size(config: dict[str, Any]) -> int:
    """Return the size of attention heads.

    0 where config.json does not tell, or heads do not simply divide the width.
    """
    config = {**config, **config.get("text_config", {})}
    if "kv_lora_rank" in config:
        return 0
    width = int(config.get("hidden_size") or config.get("n_embd") or 0)
    return int(config.get("head_dim") or width // _heads(config))


def _heads(config: dict[str, Any]) -> int:
    return int(config.get("num_attention_heads") or config.get("n_head") or 1)


def share_of_memory(need: MemoryNeed, requested: int | None, free: int | None = None) -> MemoryShare:
    """Cache and length that fit on the CPU next to the weights; `ModelError` where none does."""
    free = available_bytes() if free is None else free
    left = free - need.weights - VLLM_ITSELF
    length = requested or need.longest or 2048
    one = need.per_token * (length + BLOCK)
    if left < need.per_token * (min(length, SHORTEST) + BLOCK) or (requested and left < one):
        raise _too_large(need, length, free, left)
    if one <= left * 0.8:
        comfortable = min(SEQUENCES * one, MODEST) if one else MODEST
        return MemoryShare(int(min(left * 0.8, max(one, comfortable, LEAST))), requested)
    if requested:
        return MemoryShare(one, requested)
    length = max(SHORTEST, (int(left * 0.8 / need.per_token) - BLOCK) // 256 * 256)
    return MemoryShare(need.per_token * (length + BLOCK), length)


def cpu_settings(request: EngineRequest) -> dict[str, Any]:
    """For vLLM in this process on the CPU: a bounded cache, and nothing compiled, unless the user says otherwise."""
    settings: dict[str, Any] = {"enforce_eager": True}
    if "kv_cache_memory_bytes" not in request.options:
        share = share_of_memory(need_of(request.model, request.dtype), request.max_length)
        settings["kv_cache_memory_bytes"] = share.cache
        if share.max_length is not None:
            settings["max_model_len"] = share.max_length
    return settings


def _too_large(need: MemoryNeed, length: int, free: int, left: int) -> ModelError:
    fits = (left // need.per_token - BLOCK) // 256 * 256 if need.per_token else 0
    shorter = f" --max-length {fits} would fit." if fits >= SHORTEST else ""
    needed = need.weights + VLLM_ITSELF + need.per_token * length
    return ModelError(
        f"The model is too large for this machine's memory: it takes about {gib(needed)} (weights {gib(need.weights)}, "
        f"cache for {length:,} tokens {gib(need.per_token * length)}, vLLM itself {gib(VLLM_ITSELF)}), and "
        f"{gib(free)} are free.",
        hint=f"Free some memory, or export it smaller: swift export RUN --dtype bfloat16.{shorter}",
    )


def check_gpus(need: MemoryNeed, requested: int | None, parts: int, utilisation: float = UTILISATION) -> None:
    """Refuse a model that the GPUs cannot hold, cut into `parts`. Says nothing where GPUs cannot be asked."""
    gpus = gpu_memory()
    if not gpus:
        return
    if parts > len(gpus):
        raise ModelError(
            f"{parts} GPUs are required, but only {len(gpus)} are visible.",
            hint="See nvidia-smi and CUDA_VISIBLE_DEVICES.",
        )
    for number, (free, total) in enumerate(gpus[:parts]):
        share = utilisation * total
        needed = (need.weights + need.lasting * (requested or min(need.longest, SHORTEST) or SHORTEST)) / parts + GIB
        if needed > share:
            raise ModelError(
                f"The model is too large: it takes about {gib(needed)} of each of {parts} GPUs, and GPU {number} has "
                f"{gib(total)}, of which vLLM takes {utilisation:.0%}.",
                hint="Spread it over more GPUs (--tensor-parallel-size N), shorten --max-length, or quantise it.",
            )
        if share > free:
            raise ModelError(
                f"GPU {number} has {gib(free)} free, and vLLM would take {gib(share)} of its {gib(total)}.",
                hint=f"End what runs there, or type: --gpu-memory-utilization {free / total * 0.95:.2f}",
            )


def gpu_memory() -> list[tuple[int, int]]:
    """(free, total) bytes of each GPU that may be used, as the driver's own tool tells it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return seen_gpus(done.stdout, os.environ.get("CUDA_VISIBLE_DEVICES")) if done.returncode == 0 else []


def seen_gpus(table: str, visible: str | None) -> list[tuple[int, int]]:
    """Return the rows of nvidia-smi's table that CUDA_VISIBLE_DEVICES leaves, in its order."""
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines() if line.count(",") == 3]
    sizes = {
        key: (int(free) * 2**20, int(total) * 2**20)
        for index, uuid, free, total in rows
        if free.isdigit() and total.isdigit()
        for key in (index, uuid)
    }
    if visible is None:
        return [sizes[row[0]] for row in rows if row[0] in sizes]
    return [sizes[key.strip()] for key in visible.split(",") if key.strip() in sizes]


def gib(size: float) -> str:
    """For people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.0f} MiB"
