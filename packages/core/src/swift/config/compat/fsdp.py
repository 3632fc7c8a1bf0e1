"""FSDP as Trainer and accelerate spell it: `--fsdp "full_shard auto_wrap"`, `--fsdp_config FILE`, its keys as flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config.compat.meanings import Meaning, NotNeeded, Refused, off
from swift.config.draft import Assignment
from swift.config.flags import Arity, Settings, Translation
from swift.config.values import as_switch, quoted
from swift.errors import ConfigError, did_you_mean
from swift.untrusted import parse_json, read_json_object

_OFFLOAD: Settings = {"backend.offload": True}
_HYBRID: Settings = {"backend.hybrid": True}
_GATHERED: Settings = {"backend.reshard_after_forward": False}
_STRATEGIES: dict[str, Settings] = {
    "full_shard": {},
    "shard_grad_op": _GATHERED,
    "hybrid_shard": _HYBRID,
    "hybrid_shard_zero2": {**_HYBRID, **_GATHERED},
}
_WORDS: dict[str, Settings] = {
    **_STRATEGIES,
    "true": {},
    "fsdp": {},
    "fsdp2": {},
    "auto_wrap": {},
    "offload": _OFFLOAD,
    "fsdp_offload": _OFFLOAD,
    "hsdp": _HYBRID,
}
_BLOCKS = "each decoder block is a unit of sharding, whichever class it is"
_MEANINGS: dict[str, Meaning] = {
    "version": NotNeeded("FSDP2 trains, with the numbers of FSDP1"),
    "transformer_layer_cls_to_wrap": NotNeeded(_BLOCKS),
    "auto_wrap_policy": NotNeeded(_BLOCKS),
    "min_num_params": NotNeeded(_BLOCKS),
    "state_dict_type": NotNeeded("a checkpoint can be resumed with any number of processes, and by other backends"),
    "sync_module_states": NotNeeded("every process reads its own part of the weights from the files"),
    "cpu_ram_efficient_loading": NotNeeded("every process reads its own part of the weights from the files"),
    "use_orig_params": NotNeeded("FSDP2 keeps the model's own parameters"),
    "limit_all_gathers": NotNeeded("FSDP2 limits what is gathered ahead: --backend.prefetch"),
    "backward_prefetch": NotNeeded("FSDP2 gathers ahead in the backward pass: --backend.prefetch"),
    "backward_prefetch_policy": NotNeeded("FSDP2 gathers ahead in the backward pass: --backend.prefetch"),
    "forward_prefetch": NotNeeded("FSDP2 gathers ahead: --backend.prefetch"),
    "enable_memory_efficient_save": NotNeeded("a checkpoint is written shard by shard"),
    "cpu_offload_pin_memory": NotNeeded("torch decides about it"),
    "xla": off("XLA devices are not supported.", "Leave it out."),
    "ignored_modules": Refused("all modules are sharded.", "Leave it out."),
    "ignored_parameters": Refused("all parameters are sharded.", "Leave it out."),
    "mixed_precision_policy": Refused("precision is that of the model.", "Type: --bf16 true, or --torch_dtype float32"),
    "mixed_precision": Refused("precision is that of the model.", "Type: --bf16 true, or --torch_dtype float32"),
}
_SWITCHES = {
    "offload_params": "backend.offload",
    "cpu_offload": "backend.offload",
    "activation_checkpointing": "train.gradient_checkpointing",
}
"""Key → the key here that true sets; false leaves it to other flags."""
_OWN = ("reshard_after_forward", "sharding_strategy", *_SWITCHES)
_KEYS = (*_MEANINGS, *_OWN)
_REQUEST = "@fsdp."


def _mode(source: str, value: Any) -> Settings:
    """Read Trainer's words in any order, joined by spaces or commas."""
    listed = value if isinstance(value, list | tuple) else [value]
    words = [word.lower() for each in listed for word in str(each).replace(",", " ").split()]
    if not words:
        raise ConfigError(f"{source} names no way to shard.", hint=f"It takes: {', '.join(_WORDS)}")
    if words in (["false"], ["none"]):
        return {}
    settings: Settings = {"backend.name": "fsdp"}
    for word in words:
        if word in ("no_shard", "false"):
            raise ConfigError(f"{source} {word}: nothing would be sharded.", hint="Type: --backend torch")
        if word not in _WORDS:
            raise ConfigError(
                f"{source} does not know {quoted(word)}.{did_you_mean(word, _WORDS)}",
                hint=f"It takes: {', '.join(_WORDS)}",
            )
        settings |= _WORDS[word]
    return settings


def _config(source: str, value: Any) -> Settings:
    """Take Trainer's JSON, or a file of it, apart into requests, one a key."""
    content = value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        content = parse_json(value, source, ConfigError)
    elif isinstance(value, str):
        file = Path(value)
        if not file.is_file():
            raise ConfigError(
                f"{source}: there is no file {quoted(value)}.",
                hint="""For example: --fsdp_config '{"reshard_after_forward": true}'""",
            )
        content = read_json_object(file, ConfigError)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{source} takes a JSON object or a file of one, not {quoted(value)}.")
    settings: Settings = {}
    for key, inner in content.items():
        name = _name(str(key))
        if name not in _KEYS:
            raise ConfigError(f"{source}: FSDP has no setting {quoted(key)} here.{did_you_mean(name, _KEYS)}")
        if inner is not None:
            settings[_REQUEST + name] = inner
    return settings


def _name(key: str) -> str:
    name = key.lower().removeprefix("fsdp_").removesuffix("_fsdp")
    return "xla" if name.startswith("xla") else name


def _request(key: str) -> Translation:
    return lambda _, value: {_REQUEST + key: value}


FLAGS: tuple[tuple[tuple[str, ...], str, Arity, Translation], ...] = (
    (("fsdp",), "backend.name", "optional", _mode),
    (("fsdp_config",), "backend.name", "value", _config),
    *(((f"fsdp_{key}",), "backend.name", "optional", _request(key)) for key in _KEYS),
)
"""(flags, the key that help lists them under, arity, translation)"""


def settle_fsdp(merged: dict[str, Assignment], notes: list[str]) -> None:
    """Honour, note or refuse what was said of FSDP, key by key."""
    asked = {key.removeprefix(_REQUEST): merged.pop(key) for key in list(merged) if key.startswith(_REQUEST)}
    if not asked:
        return
    first = next(iter(asked.values())).source
    backend = merged.setdefault("backend.name", Assignment("fsdp", first))
    if backend.value != "fsdp":
        raise ConfigError(
            f"{first} is about FSDP, and {backend.source} chooses the {backend.value} backend.",
            hint="Type: --backend fsdp, or leave it out.",
        )
    for key, request in asked.items():
        if key in _MEANINGS:
            notes.append(_MEANINGS[key].answer(_typed(request.source, key), request.value))
            continue
        for target, value in _settings(key, request).items():
            _set(merged, target, Assignment(value, request.source))


def _typed(source: str, key: str) -> str:
    """Return the flag, or the key inside of `--fsdp_config`."""
    return source if source.lower().replace("-", "_").endswith(key) else f"{source}: {key}"


def _settings(key: str, request: Assignment) -> Settings:
    source = _typed(request.source, key)
    if key in _SWITCHES:
        return {_SWITCHES[key]: True} if as_switch(request.value, source) else {}
    word = str(request.value).lower()
    if word in _STRATEGIES or key == "sharding_strategy":
        return _of_strategy(source, word)
    return {"backend.reshard_after_forward": as_switch(request.value, source)}


def _of_strategy(source: str, word: str) -> Settings:
    """Return the settings of FSDP1's strategy, which accelerate also takes by its number."""
    numbers = {"1": "full_shard", "2": "shard_grad_op", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}
    name = numbers.get(word, word)
    if name in ("3", "no_shard"):
        raise ConfigError(f"{source} {word}: nothing would be sharded.", hint="Type: --backend torch")
    if name not in _STRATEGIES:
        raise ConfigError(
            f"{source} does not know {quoted(word)}.{did_you_mean(word, _STRATEGIES)}",
            hint=f"It takes: {', '.join(_STRATEGIES)}",
        )
    return _STRATEGIES[name]


def _set(merged: dict[str, Assignment], key: str, assignment: Assignment) -> None:
    earlier = merged.get(key)
    if earlier is not None and str(earlier.value).lower() != str(assignment.value).lower():
        raise ConfigError(
            f"{earlier.source} and {assignment.source} contradict each other: {key} cannot be both "
            f"{quoted(earlier.value)} and {quoted(assignment.value)}.",
            hint="Keep one of them.",
        )
    merged[key] = assignment
