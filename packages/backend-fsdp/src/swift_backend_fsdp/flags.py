"""FSDP flags of the Trainer and accelerate: `--fsdp "full_shard auto_wrap"`, `--fsdp_config FILE`, and its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swift.config import (
    Assignment,
    Draft,
    Meaning,
    NotNeeded,
    Refused,
    Request,
    Set,
    Settings,
    TranslatedFlags,
    as_switch,
    off,
    quoted,
    request,
    unknown_value,
)
from swift.contracts import FlagTopic, Vocabulary
from swift.errors import ConfigError, did_you_mean
from swift.untrusted import parse_json, read_json_object

_OFFLOAD = (Set("backend.offload", True),)
_HYBRID = (Set("backend.hybrid", True),)
_GATHERED = (Set("backend.reshard_after_forward", False),)
_STRATEGIES: dict[str, tuple[Set, ...]] = {
    "full_shard": (),
    "shard_grad_op": _GATHERED,
    "hybrid_shard": _HYBRID,
    "hybrid_shard_zero2": (*_HYBRID, *_GATHERED),
}
_MODES: dict[str, Settings] = {
    **_STRATEGIES,
    **dict.fromkeys(("true", "fsdp", "fsdp2", "auto_wrap"), ()),
    "offload": _OFFLOAD,
    "fsdp_offload": _OFFLOAD,
    "hsdp": _HYBRID,
}
_BLOCKS = "each decoder block is a unit of sharding, whatever its class"
_MEANINGS: dict[str, Meaning] = {
    "version": NotNeeded("FSDP2 is used, with the same results as FSDP1"),
    **dict.fromkeys(("transformer_layer_cls_to_wrap", "auto_wrap_policy", "min_num_params"), NotNeeded(_BLOCKS)),
    "state_dict_type": NotNeeded("a checkpoint can be resumed with any number of processes, and by other backends"),
    "sync_module_states": NotNeeded("every process reads its own shards from the files"),
    "cpu_ram_efficient_loading": NotNeeded("every process reads its own shards from the files"),
    "use_orig_params": NotNeeded("FSDP2 keeps the model's own parameters"),
    **dict.fromkeys(
        ("limit_all_gathers", "backward_prefetch", "backward_prefetch_policy", "forward_prefetch"),
        NotNeeded("--backend.prefetch sets how many blocks FSDP2 prefetches"),
    ),
    "enable_memory_efficient_save": NotNeeded("a checkpoint is written shard by shard"),
    "cpu_offload_pin_memory": NotNeeded("torch decides it"),
    "xla": off("XLA devices are not supported."),
    "ignored_modules": Refused("all modules are sharded."),
    "ignored_parameters": Refused("all parameters are sharded."),
    "mixed_precision_policy": Refused("model.dtype sets the precision.", "Type: --bf16 true, or --torch_dtype float32"),
    "mixed_precision": Refused("model.dtype sets the precision.", "Type: --bf16 true, or --torch_dtype float32"),
}
_SWITCHES = {
    "offload_params": "backend.offload",
    "cpu_offload": "backend.offload",
    "activation_checkpointing": "train.gradient_checkpointing",
}
"""Key → the key here that true sets; false sets nothing."""
_OWN = ("reshard_after_forward", "sharding_strategy", *_SWITCHES)
_KEYS = (*_MEANINGS, *_OWN)
_REQUEST = "fsdp."


def _mode(source: str, value: Any) -> Settings:
    """Read the Trainer's modes in any order, joined by spaces or commas."""
    listed = value if isinstance(value, list | tuple) else [value]
    modes = [mode.lower() for each in listed for mode in str(each).replace(",", " ").split()]
    if not modes:
        raise ConfigError(f"{source} needs a value.", hint=f"Valid values: {', '.join(_MODES)}")
    if modes in (["false"], ["none"]):
        return ()
    settings: Settings = (Set("backend.name", "fsdp"),)
    for mode in modes:
        if mode in ("no_shard", "false"):
            raise ConfigError(f"{source} {mode} would shard nothing.", hint="Type: --backend torch")
        if mode not in _MODES:
            raise unknown_value(source, mode, _MODES)
        settings += _MODES[mode]
    return settings


def _config(source: str, value: Any) -> Settings:
    """Split the Trainer's JSON, or a file of it, into one request per key."""
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
        raise ConfigError(f"{source} must be a JSON object or a JSON file, not {quoted(value)}.")
    settings: Settings = ()
    for key, inner in content.items():
        name = _name(str(key))
        if name not in _KEYS:
            raise ConfigError(f"{source}: unknown key {quoted(key)}.{did_you_mean(name, _KEYS)}")
        if inner is not None:
            settings += (Request(_REQUEST + name, inner),)
    return settings


def _name(key: str) -> str:
    name = key.lower().removeprefix("fsdp_").removesuffix("_fsdp")
    return "xla" if name.startswith("xla") else name


FLAGS: TranslatedFlags = (
    (("fsdp",), "backend.name", "optional", _mode),
    (("fsdp_config",), "backend.name", "value", _config),
    *(((f"fsdp_{key}",), "backend.name", "optional", request(_REQUEST + key)) for key in _KEYS),
)


def settle_fsdp(draft: Draft) -> None:
    """Apply, note or refuse the requests about FSDP, key by key."""
    requests = draft.take_all(_REQUEST)
    if not requests:
        return
    first = next(iter(requests.values())).source
    backend = draft.default("backend.name", "fsdp", first)
    if backend.value != "fsdp":
        raise ConfigError(
            f"{first} needs the fsdp backend, but {backend.source} selects the {backend.value} backend.",
            hint="Type: --backend fsdp, or leave it out.",
        )
    for key, requested in requests.items():
        if key in _MEANINGS:
            draft.note(_MEANINGS[key].check(_typed(requested.source, key), requested.value))
            continue
        for setting in _settings(key, requested):
            draft.set(setting.key, setting.value, requested.source)


def _typed(source: str, key: str) -> str:
    """Return the flag, or the key inside `--fsdp_config`."""
    return source if source.lower().replace("-", "_").endswith(key) else f"{source}: {key}"


def _settings(key: str, request: Assignment) -> tuple[Set, ...]:
    source = _typed(request.source, key)
    if key in _SWITCHES:
        return (Set(_SWITCHES[key], True),) if as_switch(request.value, source) else ()
    given = str(request.value).lower()
    if given in _STRATEGIES or key == "sharding_strategy":
        return _of_strategy(source, given)
    return (Set("backend.reshard_after_forward", as_switch(request.value, source)),)


def _of_strategy(source: str, given: str) -> tuple[Set, ...]:
    """Return the settings of a strategy of FSDP1, given by name or by accelerate's number."""
    numbers = {"1": "full_shard", "2": "shard_grad_op", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}
    name = numbers.get(given, given)
    if name in ("3", "no_shard"):
        raise ConfigError(f"{source} {given} would shard nothing.", hint="Type: --backend torch")
    if name not in _STRATEGIES:
        raise unknown_value(source, given, _STRATEGIES)
    return _STRATEGIES[name]


class FsdpFlags(Vocabulary):
    """FSDP flags of the Trainer and accelerate."""

    def flags(self) -> Sequence[FlagTopic]:
        """Return the flags."""
        return (FlagTopic("FSDP", FLAGS, settle=settle_fsdp),)
