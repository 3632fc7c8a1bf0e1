"""adapter_config.json of PEFT, checked before PEFT acts on it: types, bounds, and patterns that match in time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, StrictInt, StrictStr, ValidationError

from swift.config.problems import first_problem
from swift.errors import ModelError
from swift.untrusted import Failure, is_deeper, json_kind, read_json_object, shown, time_limit

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_RANK = 1 << 16
_SECONDS = 10.0

Rank = Annotated[StrictInt, Field(ge=1, le=_RANK)]
Alpha = Annotated[FiniteFloat, Field(gt=0, strict=True)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=4096)]
Layer = Annotated[StrictInt, Field(ge=0, le=_RANK)]


class _AdapterConfig(BaseModel):
    """Settings of any adapter that swift and PEFT act on. Other settings of PEFT are passed on unchanged."""

    model_config = ConfigDict(extra="allow")

    target_modules: Name | list[Name] | None = None
    exclude_modules: Name | list[Name] | None = None
    modules_to_save: list[Name] | None = None
    layers_to_transform: Layer | list[Layer] | None = None
    layers_pattern: StrictStr | list[Name] | None = None
    rank_pattern: dict[Name, Rank] | None = None
    alpha_pattern: dict[Name, Alpha] | None = None
    inference_mode: StrictBool | None = False
    base_model_name_or_path: StrictStr | None = None
    revision: StrictStr | None = None
    task_type: StrictStr | None = None


class _LoraConfig(_AdapterConfig):
    """Settings of LoRA."""

    r: Rank = 8
    lora_alpha: Alpha = 8
    lora_dropout: Annotated[FiniteFloat, Field(ge=0, lt=1, strict=True)] = 0.0
    bias: Literal["none", "all", "lora_only"] = "none"
    fan_in_fan_out: StrictBool | None = False
    use_rslora: StrictBool | None = False
    use_dora: StrictBool | None = False
    lora_bias: StrictBool | None = False
    init_lora_weights: StrictBool | StrictStr | None = True
    target_parameters: list[Name] | None = None
    # PEFT imports the module that `megatron_core` names.
    megatron_config: None = None
    layer_replication: list[tuple[Layer, Layer]] | None = Field(None, max_length=256)


class _ModulesConfig(_AdapterConfig):
    """Settings that swift acts on, or that decide about sizes, of adapters other than LoRA's."""

    r: Annotated[StrictInt, Field(ge=0, le=_RANK)] = 8
    mini_r: Rank = 1
    alpha: Alpha = 8
    oft_block_size: Annotated[StrictInt, Field(ge=0, le=_RANK)] = 32
    num_cayley_neumann_terms: Annotated[StrictInt, Field(ge=1, le=64)] = 5
    decompose_factor: Annotated[StrictInt, Field(ge=-1, le=_RANK)] = -1
    boft_block_size: Annotated[StrictInt, Field(ge=0, le=_RANK)] = 4
    boft_block_num: Annotated[StrictInt, Field(ge=0, le=_RANK)] = 0
    boft_n_butterfly_factor: Annotated[StrictInt, Field(ge=1, le=16)] = 1
    gralora_k: Annotated[StrictInt, Field(ge=1, le=64)] = 2
    hybrid_r: Literal[0] = 0
    projection_prng_key: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0
    feedforward_modules: StrictStr | list[Name] | None = None
    bias: Literal["none"] = "none"
    fan_in_fan_out: Literal[False] | None = False
    init_weights: StrictBool | StrictStr | None = True


KINDS: dict[str, type[_AdapterConfig]] = {
    "LORA": _LoraConfig,
    **dict.fromkeys(("MISS", "OFT", "HIRA", "LOHA", "LOKR", "IA3", "VERA", "BOFT", "GRALORA"), _ModulesConfig),
}
"""PEFT's names of the kinds of adapters that are read, merged and trained on."""


def kind_of(config: Mapping[str, Any]) -> str:
    """Return PEFT's name of the kind of an adapter, such as LORA."""
    return str(getattr(config.get("peft_type"), "value", config.get("peft_type")))


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the adapter in a folder; `ModelError` where there is none, or a broken one."""
    file = folder / ADAPTER_CONFIG
    if not file.exists() and not file.is_symlink():
        raise ModelError(
            f"{shown(folder)} is not an adapter: {ADAPTER_CONFIG} is missing.",
            hint="Pass the folder of an adapter, or of a run or checkpoint that trained one.",
        )
    return checked_adapter(read_json_object(file, ModelError), str(file))


def checked_adapter(config: Mapping[str, Any], source: str, error: Failure = ModelError) -> dict[str, Any]:
    """Return PEFT's settings of an adapter when they are ones; `source` names the file in messages."""
    kind = getattr(config.get("peft_type"), "value", config.get("peft_type"))
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        found = f"of type {kind}" if isinstance(kind, str) else f"whose peft_type is {json_kind(kind)}"
        raise error(
            f"{shown(source)} describes an adapter {found:.100}, not LORA.",
            hint=f"swift supports {', '.join(KINDS)}. Merge other adapters with PEFT.",
        )
    if is_deeper(config, 8):
        raise error(f"{shown(source)}: its values are nested too deeply.")
    try:
        model.model_validate(config)
    except ValidationError as problems:
        reason = first_problem(problems)
        if problems.errors()[0]["loc"][:1] == ("megatron_config",):
            reason = (
                "megatron_config is not supported: PEFT would import the modules that it names. Only adapters on "
                "transformers' layers are read"
            )
        raise error(f"{shown(source)}: {reason}.", hint="Copy or download the adapter again.") from None
    return {str(key): value for key, value in config.items()}


def check_patterns(config: Mapping[str, Any], names: Iterable[str], source: str, error: Failure = ModelError) -> None:
    """Refuse patterns that are none, or that do not match the names of modules in time, as PEFT will match them."""
    known = list(names)
    for key, pattern in _patterns(config):
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as problem:
            raise error(f"{shown(source)}: {key} is not a valid regular expression: {problem}.") from None
        slow = error(
            f"{shown(source)}: matching the pattern in {key} took longer than {_SECONDS:.0f} seconds and was stopped.",
            hint="If this is your adapter, list the modules by name instead of a pattern.",
        )
        with time_limit(_SECONDS, slow):
            for name in known:
                compiled.match(name)


def _patterns(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """PEFT's patterns, as it puts them together."""
    for key in ("target_modules", "exclude_modules", "feedforward_modules"):
        if isinstance(config.get(key), str) and config[key] != "all-linear":
            yield key, f"(?:{config[key]})\\Z"
    for key, form in (
        ("modules_to_save", r"(^|.*\.){}($|\..*)"),
        ("layers_pattern", r".*?\.{}\.(\d+)\."),
        ("rank_pattern", r"(.*\.)?({})$"),
        ("alpha_pattern", r"(.*\.)?({})$"),
    ):
        listed = config.get(key) or ()
        for each in (listed,) if isinstance(listed, str) else listed:
            yield key, form.replace("{}", str(each))
