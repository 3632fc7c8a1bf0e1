"""DeepSpeed's JSON: read, checked for keys that nobody knows, compared with core's settings, and filled in.

The file is the truth. What it says of core's settings (learning rate, precision, batch sizes, clipping) becomes those
settings; where the user typed something else, the two are shown and the run ends. `"auto"` stands for what core says.
This module does not import deepspeed: it is part of reading a configuration.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from swift.config.own_options import AdamOptions
from swift.config.problems import first_problem
from swift.config.sections import Config, TrainSection
from swift.errors import ConfigError, UnsupportedLayout, did_you_mean
from swift.untrusted import is_deeper, json_kind, parse_json, read_text, shown
from swift_backend_deepspeed.known_keys import AUTO, DONE_BY_SWIFT, check_keys

PRESETS = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
STAGES = (0, 1, 2, 3)

_PRESETS = f"Presets: {', '.join(PRESETS)}. To begin from one: swift config deepspeed zero3 > ds.json"
_LIMIT = 1 << 20
_DEPTH = 20

Json = dict[str, Any]


def read_config(given: Any) -> Json:
    """Return a preset, a file or a mapping → a mapping whose keys DeepSpeed knows."""
    name = "The DeepSpeed configuration"
    if isinstance(given, Mapping):
        content: Any = copy.deepcopy(dict(given))
    elif not isinstance(given, str | Path):
        raise ConfigError(f"{name} must be a file, a preset or a mapping, not {json_kind(given)}.", hint=_PRESETS)
    elif str(given) in PRESETS:
        content = json.loads(preset_text(str(given)))
    else:
        name = shown(str(given))
        content = _read_file(Path(given))
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must contain a JSON object, not {json_kind(content)}.")
    if is_deeper(content, _DEPTH):
        raise ConfigError(f"{name} is nested more than {_DEPTH} levels deep.")
    check_keys(content, name)
    plain: Json = _plain(content)
    check(plain, name)
    _check_implied(plain, name)
    return plain


def _check_implied(content: Json, name: str) -> None:
    """Raise `ConfigError` where the JSON sets one of core's keys to a value it does not take, naming the JSON file."""
    for key, (value, source) in implied_settings(content).items():
        section, _, field = key.partition(".")
        try:
            if section == "optim" and field in AdamOptions.model_fields:
                AdamOptions.model_validate({field: value})
            else:
                Config.model_validate({section: {field: value}})
        except ValidationError as problem:
            raise ConfigError(f"{name}: {source} sets {key}: {first_problem(problem)}.") from None


def presets() -> Mapping[str, str]:
    """Return the file of each preset."""
    return {name: preset_text(name) for name in PRESETS}


def preset_text(name: str) -> str:
    """Return the file of a preset."""
    return (resources.files("swift_backend_deepspeed") / "presets" / f"{name}.json").read_text(encoding="utf-8")


def check(content: Json, name: str) -> None:
    """Refuse invalid stages, and two precisions at once."""
    stage = stage_of(content)
    if stage not in STAGES:
        raise ConfigError(f"{name}: zero_optimization.stage must be 0, 1, 2 or 3, not {stage!r}.")
    if is_on(content, "fp16") is True and _is_bfloat16(content):
        raise ConfigError(f"{name}: fp16 and bf16 are both enabled.", hint="Switch one of them off.")
    for part in ("offload_optimizer", "offload_param"):
        device = offload_device(content, part)
        if device not in ("none", "cpu", "nvme"):
            raise ConfigError(f"{name}: zero_optimization.{part}.device must be none, cpu or nvme, not {device!r}.")
    kind = content.get("optimizer", {}).get("type", "AdamW")
    if str(kind).lower() not in ("adam", "adamw"):
        raise UnsupportedLayout(
            f"{name}: optimizer.type is {kind!r}, whose state other backends cannot resume from.",
            hint="Use AdamW, or leave the section out.",
        )
    schedule = content.get("scheduler", {}).get("type", AUTO)
    if schedule not in (AUTO, *_SCHEDULES):
        raise UnsupportedLayout(
            f"{name}: scheduler.type {schedule!r} has no counterpart here.",
            hint=f"Use one of {', '.join(_SCHEDULES)}, or leave the section out and type --lr_scheduler_type.",
        )


def stage_of(content: Json) -> Any:
    """Return the ZeRO stage; without the section, 0."""
    return content.get("zero_optimization", {}).get("stage", 0)


def offload_device(content: Json, part: str) -> str:
    """Return where `offload_optimizer` or `offload_param` puts things."""
    section = content.get("zero_optimization", {}).get(part) or {}
    return str(section.get("device", "none"))


def is_on(content: Json, section: str) -> bool | str | None:
    """Return whether a section is enabled: a switch, 'auto', or None where there is none."""
    part = content.get(section)
    if not isinstance(part, dict):
        return None
    enabled: bool | str = part.get("enabled", False)
    return enabled


def _is_bfloat16(content: Json) -> bool:
    return True in (is_on(content, "bf16"), is_on(content, "bfloat16"))


def implied_settings(content: Json) -> Mapping[str, tuple[Any, str]]:
    """Core's key → (value, where the JSON says it)."""
    found: dict[str, tuple[Any, str]] = {}

    def take(key: str, section: str, value: Any) -> None:
        if value not in (None, AUTO):
            found[key] = (value, f"DeepSpeed's {section}")

    micro, accumulation = content.get("train_micro_batch_size_per_gpu"), content.get("gradient_accumulation_steps")
    take("train.micro_batch", "train_micro_batch_size_per_gpu", micro)
    take("train.accumulation", "gradient_accumulation_steps", accumulation)
    take("train.global_batch", "train_batch_size", content.get("train_batch_size"))
    take("optim.max_grad_norm", "gradient_clipping", content.get("gradient_clipping"))
    if is_on(content, "fp16") is True:
        take("model.dtype", "fp16.enabled", "float16")
    if _is_bfloat16(content):
        take("model.dtype", "bf16.enabled", "bfloat16")
    optimizer = content.get("optimizer", {}).get("params", {})
    for name in ("lr", "eps", "weight_decay"):
        take(f"optim.{name}", f"optimizer.params.{name}", optimizer.get(name))
    betas = optimizer.get("betas", AUTO)
    if betas != AUTO:
        take("optim.beta1", "optimizer.params.betas", betas[0])
        take("optim.beta2", "optimizer.params.betas", betas[1])
    scheduler = content.get("scheduler", {})
    if (kind := scheduler.get("type", AUTO)) != AUTO:
        take("optim.schedule", "scheduler.type", _SCHEDULES[kind])
        params = scheduler.get("params", {})
        take("optim.warmup_steps", "scheduler.params.warmup_num_steps", params.get("warmup_num_steps"))
        take("optim.lr", "scheduler.params.warmup_max_lr", params.get("warmup_max_lr"))
    take("parallel.tp", "tensor_parallel.autotp_size", content.get("tensor_parallel", {}).get("autotp_size") or None)
    take("parallel.ulysses", "sequence_parallel_size", content.get("sequence_parallel_size"))
    return found


def resolved(content: Json, config: Config, *, precision: str, world: int) -> Json:
    """Return the JSON for DeepSpeed: `"auto"` filled in, and everything left out that swift does itself."""
    filled = copy.deepcopy(content)
    for section in ("optimizer", "scheduler", "activation_checkpointing", "tensor_parallel", "sequence_parallel_size"):
        filled.pop(section, None)
    # DeepSpeed counts processes that share a sample as data parallel: the product is checked, and not used.
    accumulation = config.train.accumulation
    filled["train_micro_batch_size_per_gpu"] = config.train.micro_batch
    filled["gradient_accumulation_steps"] = accumulation
    filled["train_batch_size"] = config.train.micro_batch * accumulation * world
    filled["gradient_clipping"] = config.optim.max_grad_norm
    filled.pop("bfloat16", None)
    for section, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        own = {key: value for key, value in filled.pop(section, {}).items() if value != AUTO}
        if precision == dtype:
            filled[section] = {**_precision(section, world), **own, "enabled": True}
    # AdamW is built here, by torch or by DeepSpeed; its name is on no list of DeepSpeed's.
    filled["zero_allow_untested_optimizer"] = True
    filled.setdefault("steps_per_print", 10**9)
    # Buckets that are "auto" get DeepSpeed's own defaults.
    zero = {key: value for key, value in filled.get("zero_optimization", {}).items() if value != AUTO}
    filled["zero_optimization"] = {**zero, "stage": stage_in_force(content, precision)}
    if config.parallel.tp > 1:
        filled["tensor_parallel"] = {**content.get("tensor_parallel", {}), "autotp_size": config.parallel.tp}
    if left := [section for section, value in _leaves(filled) if value == AUTO]:
        raise ConfigError(f'DeepSpeed\'s {left[0]} is "auto", which swift has no value for.', hint="Give it a value.")
    return filled


def stage_in_force(content: Json, precision: str) -> int:
    """Stage 0 keeps fp32 weights only: with 16 bits it is stage 1, whose numbers are the same."""
    stage = int(stage_of(content))
    return 1 if stage == 0 and precision != "float32" else stage


def remarks(content: Json, config: Config, *, precision: str) -> Iterator[str]:
    """Yield a remark on every setting that DeepSpeed would silently ignore or interpret differently."""
    if "activation_checkpointing" in content and not config.train.gradient_checkpointing:
        yield (
            "DeepSpeed's activation_checkpointing configures checkpointing that models of transformers never call; "
            "to recompute activations, type --gradient_checkpointing true."
        )
    if stage_of(content) == 0 and precision != "float32":
        yield f"ZeRO 0 in {precision} runs as ZeRO 1: the same numbers, with less memory."
    zero = content.get("zero_optimization", {})
    if stage_of(content) < 3:
        for key in zero:
            if key.startswith("stage3_") or key == "offload_param":
                yield f"zero_optimization.{key} has no effect below stage 3."
    for key in DONE_BY_SWIFT.keys() & content.keys():
        yield f"DeepSpeed's {key} has no effect: {DONE_BY_SWIFT[key]}"
    scheduler = content.get("scheduler", {})
    if scheduler.get("params", {}).get("warmup_type", "log") == "log" and "WarmupLR" in str(scheduler.get("type")):
        yield "WarmupLR warms up in a straight line here (warmup_type log is DeepSpeed's default)."


def check_batch(content: Json, config: Config, data_size: int) -> None:
    """`train_batch_size` is micro-batch × accumulation × data ranks, or the run ends here."""
    whole, train = content.get("train_batch_size"), config.train
    given = {"micro_batch", "accumulation"} <= train.model_fields_set
    if not isinstance(whole, int) or not given or config.checkpoint.resume is not None:
        return
    product = train.micro_batch * train.accumulation * data_size
    if whole != product:
        raise ConfigError(
            f"DeepSpeed's train_batch_size is {whole}, but micro-batch {train.micro_batch} × accumulation "
            f"{train.accumulation} × {data_size} data ranks is {product}.",
            hint=f'Leave one of the three out, write "auto", or start {_ranks(whole, train)} processes.',
        )


def _ranks(whole: int, train: TrainSection) -> str:
    each = train.micro_batch * train.accumulation
    return str(whole // each) if whole % each == 0 else "another number of"


_SCHEDULES: Mapping[str, str] = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def _precision(section: str, world: int) -> Json:
    if section == "bf16":
        return {"check_grad_overflow": True}
    # As torch's own scaler behaves: from 2^16, halved at every overflow. Losses are multiplied by the processes, of
    # whose gradients DeepSpeed takes the mean.
    return {"initial_scale_power": 16 - math.ceil(math.log2(world)), "hysteresis": 1}


def _read_file(path: Path) -> Any:
    name = shown(path)
    if not _exists(path):
        raise ConfigError(
            f"{name} is neither a file nor a preset of DeepSpeed.{did_you_mean(name, PRESETS)}", hint=_PRESETS
        )
    text = read_text(path, ConfigError, limit=_LIMIT)
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}:{error.lineno}:{error.colno} is not JSON: {error.msg}.",
            hint="JSON has no comments and no commas before a closing bracket.",
        ) from None
    except _TwiceError as error:
        raise ConfigError(f"{name}: the key {error.args[0][:200]!r} occurs twice.", hint="Keep one.") from None
    except (RecursionError, ValueError):  # ValueError: the interpreter's own limit on digits
        return parse_json(text, name, ConfigError)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True  # reading it says what is wrong


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> Json:
    seen: Json = {}
    for key, value in pairs:
        if key in seen:
            raise _TwiceError(key)
        seen[key] = value
    return seen


def _plain(value: Any) -> Any:
    """Return JSON without keys whose value is null; 5e8 is a whole number where people write it."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1000:
        return int(value)
    return value


def _leaves(content: Json, section: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        path = f"{section}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _leaves(value, path)
        else:
            yield path, value
