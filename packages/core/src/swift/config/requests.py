"""Flags whose meaning depends on the rest of the configuration, resolved once all of it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config.cadence import settle_cadence
from swift.config.compat.fsdp import settle_fsdp
from swift.config.compat.megatron import settle_megatron
from swift.config.compat.quantisation import settle_quantisation
from swift.config.draft import Assignment, Draft, whole_number
from swift.config.plugin_flags import flag_topics
from swift.config.values import as_number, as_switch, quoted
from swift.errors import ConfigError
from swift.untrusted import parse_json

Merged = dict[str, Assignment]
_LIMITED = re.compile(r"#\d+$")


def settle(merged: Merged) -> list[str]:
    """Replace requests (`@...`) by keys, in place; return notes for the user."""
    notes: list[str] = []
    _model_type(merged, notes)
    _sequence_parallel_size(merged, notes)
    _min_lr(merged)
    _part_of_warmup(merged)
    _packing_length(merged)
    _max_samples(merged)
    _trainable_parameters(merged, notes)
    settle_quantisation(merged, notes)
    settle_fsdp(merged, notes)
    settle_megatron(merged, notes)
    for topic in flag_topics():
        if topic.settle is not None:
            topic.settle(merged, notes)
    _max_prompt_length(merged)
    _weights_of_checkpoint(merged, notes)
    _best_at_the_end(merged, notes)
    _recomputation(merged, notes)
    settle_cadence(merged, notes)
    return notes


def settle_layer(layer: Draft) -> None:
    """Replace requests whose meaning depends on other flags of the same layer alone: `--bf16 false`."""
    off = {
        name: layer.assignments.pop(f"@no_{short}", None) for name, short in (("bfloat16", "bf16"), ("float16", "fp16"))
    }
    typed = layer.assignments.get("model.dtype")
    refused = off.get(str(typed.value)) if typed else None
    if typed and refused:
        raise ConfigError(
            f"{refused.source} false and {typed.source} contradict each other: {typed.value} is both off and on.",
            hint="Keep one of them.",
        )
    if typed or not any(off.values()):
        return
    bf16, fp16 = off["bfloat16"], off["float16"]
    if bf16 is None:
        assert fp16 is not None
        layer.notes.append(f"{fp16.source} false is not needed: float16 is off by default.")
        return
    layer.set("model.dtype", "float32", bf16.source)
    both = f"{bf16.source} false and {fp16.source} false set" if fp16 else f"{bf16.source} false sets"
    layer.notes.append(f"{both} model.dtype to float32; for float16 type --fp16 true.")


def _trainable_parameters(merged: Merged, notes: list[str]) -> None:
    """Read the flag as exemptions from freezing, as ms-swift does, or as the only trained weights if none is frozen."""
    request = merged.pop("@trainable_parameters", None)
    if request is None:
        return
    frozen = any(_value(merged, f"tuner.{key}", None) for key in ("freeze", "freeze_regex", "freeze_ratio"))
    merged["tuner.unfreeze" if frozen else "tuner.train_only"] = request
    if not frozen:
        notes.append(f"{request.source}: only these weights are trained, because no other flag freezes any.")


def _value(merged: Merged, key: str, default: Any) -> Any:
    assignment = merged.get(key)
    return default if assignment is None else assignment.value


def _model_type(merged: Merged, notes: list[str]) -> None:
    """Read `--model_type` without `--model` as the model; with it, it is ms-swift's name of the architecture."""
    request = merged.pop("@model_type", None)
    if request is None:
        return
    if "model.path" in merged:
        notes.append(f"{request.source} {request.value} is not needed: the model's config.json has its type.")
    else:
        merged["model.path"] = request


def _sequence_parallel_size(merged: Merged, notes: list[str]) -> None:
    """Translate the size to Megatron's switch; refuse it for other backends, where it is ambiguous."""
    request = merged.pop("@sequence_parallel_size", None)
    if request is None:
        return
    size, tp = whole_number(request), whole_number(merged.get("parallel.tp", Assignment(1, "--tp")))
    if size == 1:
        return
    backend = _value(merged, "backend.name", "torch")
    if backend != "megatron":
        raise ConfigError(
            f"{request.source} {size} is ambiguous with the {backend} backend.",
            hint=f"Type --ulysses {size} (all-to-all over attention heads) or --cp {size} (context parallel).",
        )
    if tp == 1:
        raise ConfigError(
            f"{request.source} {size}: Megatron's sequence parallelism needs tensor parallelism, and --tp is 1.",
            hint=f"Type --cp {size} to divide sequences without tensor parallelism.",
        )
    merged["parallel.sequence_parallel"] = Assignment(True, request.source)
    other = f", not {size} (to divide sequences further type --cp {size})" if size != tp else ""
    notes.append(
        f"{request.source} {size} turns on Megatron's sequence parallelism, over the {tp} tensor parallel processes"
        f"{other}."
    )


def _min_lr(merged: Merged) -> None:
    """Refuse `cosine_with_min_lr` without a floor, as transformers does."""
    request = merged.pop("@min_lr", None)
    if request is not None and not {"optim.min_lr", "optim.min_lr_ratio"} & merged.keys():
        raise ConfigError(
            f"{request.source} {request.value} needs a minimum learning rate.", hint="For example: --min_lr 1e-6"
        )


def _weights_of_checkpoint(merged: Merged, notes: list[str]) -> None:
    """Turn `--resume_only_model` into a new run from the weights of the checkpoint to resume from."""
    request = merged.pop("@resume_only_model", None)
    if request is None or not as_switch(request.value, request.source):
        return
    named = merged.pop("checkpoint.resume", None)
    if named is None or named.value in (None, "last", "auto"):
        raise ConfigError(
            f"{request.source} needs the folder of a checkpoint in --resume_from_checkpoint.",
            hint="For example: --resume_from_checkpoint output/MODEL/RUN/checkpoint-100 --resume_only_model true",
        )
    folder = Path(str(named.value))
    if not folder.is_dir():
        raise ConfigError(f"{named.source}: there is no checkpoint at {folder}.")
    folder = folder / "last-checkpoint" if (folder / "last-checkpoint").exists() else folder
    key = "tuner.adapter" if (folder / "adapter_config.json").is_file() else "model.path"
    if key == "model.path" and not any(folder.glob("*.safetensors*")):
        raise ConfigError(
            f"{named.source}: {folder} has no model weights to load.",
            hint=f"Type: swift export {folder} --to hf --out WEIGHTS, then start with --model WEIGHTS",
        )
    merged[key] = Assignment(str(folder), named.source)
    notes.append(
        f"{request.source}: a new run starts at step 0 from the weights in {folder} ({key}), with a new optimizer."
    )


def _best_at_the_end(merged: Merged, notes: list[str]) -> None:
    """Note where the best checkpoint is; refuse an export, which would write the last weights instead."""
    request = merged.pop("@load_best_model_at_end", None)
    if request is None or not as_switch(request.value, request.source):
        return
    if _value(merged, "export.to", None) is not None:
        raise ConfigError(
            f"{request.source} cannot be used with export.to, which exports the weights of the last step.",
            hint="Leave --export.to out, and after the run type: swift export RUN/best-checkpoint",
        )
    notes.append(
        f"{request.source}: the best checkpoint is RUN/best-checkpoint; swift infer and swift export accept it. "
        "RUN alone is the last checkpoint."
    )


def _recomputation(merged: Merged, notes: list[str]) -> None:
    """Accept the Trainer's `use_reentrant`, which does not change the results of gradient checkpointing."""
    request = merged.pop("@gradient_checkpointing_kwargs", None)
    if request is None or request.value is None:
        return
    options = request.value
    if isinstance(options, str):
        options = parse_json(options, request.source, ConfigError)
    if not isinstance(options, Mapping) or set(options) - {"use_reentrant"}:
        raise ConfigError(
            f"{request.source} accepts only use_reentrant, not {quoted(request.value)}.",
            hint="Leave it out: --gradient_checkpointing true",
        )
    notes.append(f"{request.source} is not needed: checkpointing is never re-entrant, with the same results.")


def _part_of_warmup(merged: Merged) -> None:
    """Read a number of warm-up steps below 1 as a fraction of all steps, as the Trainer does."""
    steps = merged.get("optim.warmup_steps")
    part = None if steps is None else as_number(steps.value)
    if part is not None and 0 < part < 1:
        merged["optim.warmup_ratio"] = merged.pop("optim.warmup_steps")


def _packing_length(merged: Merged) -> None:
    """Read the size of a pack as `data.max_length`, which is also the limit of a sample."""
    request = merged.pop("@packing_length", None)
    if request is None:
        return
    longest = merged.setdefault("data.max_length", request)
    if str(longest.value) != str(request.value):
        raise ConfigError(
            f"{request.source} {request.value} and {longest.source} {longest.value} differ, but packs and samples have "
            "the same limit (data.max_length).",
            hint=f"Type only --max_length {request.value}",
        )


def _max_samples(merged: Merged) -> None:
    """Limit each data set to the first N rows, except where `#N` is typed."""
    request = merged.pop("@max_samples", None)
    if request is None or str(request.value).lower() in ("-1", "none", "null"):
        return
    rows = whole_number(request)
    for key in ("data.train", "data.validation"):
        names = merged.get(key)
        if names is not None:
            limited = tuple(name if _LIMITED.search(str(name)) else f"{name}#{rows}" for name in names.value)
            merged[key] = Assignment(limited, names.source)


def _max_prompt_length(merged: Merged) -> None:
    """Refuse a limit of prompts alone, which no vocabulary has read."""
    request = merged.pop("@max_prompt_length", None)
    if request is None or str(request.value).lower() in ("none", "null"):
        return
    raise ConfigError(
        f"{request.source} is not supported: prompt and completion have one limit together.", hint="Type --max_length N"
    )
