"""Flags whose meaning depends on the rest of the configuration, settled once all of it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config.cadence import settle_cadence
from swift.config.compat.fsdp import settle_fsdp
from swift.config.compat.megatron import settle_megatron
from swift.config.compat.online_requests import settle_online
from swift.config.compat.quantisation import settle_quantisation
from swift.config.draft import Assignment, Draft
from swift.config.values import as_number, as_switch, quoted
from swift.errors import ConfigError
from swift.untrusted import parse_json

Merged = dict[str, Assignment]
_LIMITED = re.compile(r"#\d+$")


def settle(merged: Merged) -> list[str]:
    """Replace requests (`@...`) by keys, in place; returns notes for the user."""
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
    settle_online(merged, notes)
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
            f"{refused.source} false and {typed.source} contradict each other: one refuses {typed.value} and the other "
            "asks for it.",
            hint="Keep one of them.",
        )
    if typed or not any(off.values()):
        return
    bf16, fp16 = off["bfloat16"], off["float16"]
    if bf16 is None:
        assert fp16 is not None
        layer.notes.append(f"{fp16.source} false is the default: float16 is only taken when it is asked for.")
        return
    layer.set("model.dtype", "float32", bf16.source)
    both = f"{bf16.source} false and {fp16.source} false mean" if fp16 else f"{bf16.source} false means"
    layer.notes.append(f"{both} float32 (model.dtype); for float16 type --fp16 true.")


def _trainable_parameters(merged: Merged, notes: list[str]) -> None:
    """Let the flag name exceptions from what is frozen, as in ms-swift; where nothing is, all that is trained."""
    request = merged.pop("@trainable_parameters", None)
    if request is None:
        return
    frozen = any(_value(merged, f"tuner.{key}", None) for key in ("freeze", "freeze_regex", "freeze_ratio"))
    merged["tuner.unfreeze" if frozen else "tuner.train_only"] = request
    if not frozen:
        notes.append(f"{request.source}: nothing else is frozen by another flag, so these weights alone are trained.")


def _value(merged: Merged, key: str, default: Any) -> Any:
    assignment = merged.get(key)
    return default if assignment is None else assignment.value


def _model_type(merged: Merged, notes: list[str]) -> None:
    """Let `--model_type` alone name the model; next to `--model` it is ms-swift's name of the architecture."""
    request = merged.pop("@model_type", None)
    if request is None:
        return
    if "model.path" in merged:
        notes.append(f"{request.source} {request.value} is not needed: the model's own config.json says what it is.")
    else:
        merged["model.path"] = request


def _sequence_parallel_size(merged: Merged, notes: list[str]) -> None:
    """Translate the size: Megatron ties it to tensor parallelism as a switch, other backends do not."""
    request = merged.pop("@sequence_parallel_size", None)
    if request is None:
        return
    size, tp = _whole(request), _whole(merged.get("parallel.tp", Assignment(1, "--tp")))
    if size == 1:
        return
    backend = _value(merged, "backend.name", "torch")
    if backend != "megatron":
        raise ConfigError(
            f"{request.source} {size} has no single meaning on the {backend} backend.",
            hint=f"Type --ulysses {size} to cut sequences over attention heads, or --cp {size} to cut their context.",
        )
    if tp == 1:
        raise ConfigError(
            f"{request.source} {size}: Megatron's sequence parallelism shards activations over the tensor parallel "
            "processes, and --tp is 1.",
            hint=f"Type --cp {size} to cut sequences without tensor parallelism (--ulysses is not Megatron's).",
        )
    merged["parallel.sequence_parallel"] = Assignment(True, request.source)
    other = f" (not over {size}; to cut sequences further: --cp {size})" if size != tp else ""
    notes.append(
        f"{request.source} {size}: with Megatron this is a switch; it is on, over the {tp} tensor parallel processes"
        f"{other}."
    )


def _min_lr(merged: Merged) -> None:
    """Refuse `cosine_with_min_lr` without a floor, as transformers does: it would be plain cosine."""
    request = merged.pop("@min_lr", None)
    if request is not None and not {"optim.min_lr", "optim.min_lr_ratio"} & merged.keys():
        raise ConfigError(f"{request.source} {request.value} needs the floor.", hint="For example: --min_lr 1e-6")


def _weights_of_checkpoint(merged: Merged, notes: list[str]) -> None:
    """Turn `--resume_only_model` into a new run from the weights of the checkpoint that was to be resumed."""
    request = merged.pop("@resume_only_model", None)
    if request is None or not as_switch(request.value, request.source):
        return
    named = merged.pop("checkpoint.resume", None)
    if named is None or named.value in (None, "last", "auto"):
        raise ConfigError(
            f"{request.source} needs the folder of a checkpoint.",
            hint="For example: --resume_from_checkpoint output/MODEL/RUN/checkpoint-100 --resume_only_model true",
        )
    folder = Path(str(named.value))
    if not folder.is_dir():
        raise ConfigError(f"{named.source}: there is no checkpoint at {folder}.")
    folder = folder / "last-checkpoint" if (folder / "last-checkpoint").exists() else folder
    key = "tuner.adapter" if (folder / "adapter_config.json").is_file() else "model.path"
    if key == "model.path" and not any(folder.glob("*.safetensors*")):
        raise ConfigError(
            f"{named.source}: {folder} holds no weights that are ready to load.",
            hint=f"Type: swift export {folder} --to hf --out WEIGHTS, and start from them: --model WEIGHTS",
        )
    merged[key] = Assignment(str(folder), named.source)
    notes.append(
        f"{request.source}: a new run from the weights in {folder} ({key}), with a fresh optimizer and from step 0."
    )


def _best_at_the_end(merged: Merged, notes: list[str]) -> None:
    """Say where the best checkpoint is; refuse an export that would write the last weights instead."""
    request = merged.pop("@load_best_model_at_end", None)
    if request is None or not as_switch(request.value, request.source):
        return
    if _value(merged, "export.to", None) is not None:
        raise ConfigError(
            f"{request.source}: the export at the end of a run writes the weights of its last step, not the best.",
            hint="Leave out the export, and after the run type: swift export RUN/best-checkpoint",
        )
    notes.append(
        f"{request.source}: the best checkpoint is kept, and RUN/best-checkpoint points at it; infer and export take "
        "that name, and RUN alone means the last one."
    )


def _recomputation(merged: Merged, notes: list[str]) -> None:
    """Take the Trainer's options of gradient checkpointing: either value of `use_reentrant` gives the same numbers."""
    request = merged.pop("@gradient_checkpointing_kwargs", None)
    if request is None or request.value is None:
        return
    options = request.value
    if isinstance(options, str):
        options = parse_json(options, request.source, ConfigError)
    if not isinstance(options, Mapping) or set(options) - {"use_reentrant"}:
        raise ConfigError(
            f"{request.source} takes only use_reentrant, not {quoted(request.value)}.",
            hint="Leave it out: --gradient_checkpointing true",
        )
    notes.append(f"{request.source} is not needed: recomputation is never re-entrant here, with the same numbers.")


def _whole(assignment: Assignment) -> int:
    text = quoted(assignment.value).strip("'")
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise ConfigError(
            f"{assignment.source} takes a whole number from 1, not {quoted(assignment.value)}.",
            hint=f"For example: {assignment.source} 8",
        )
    return int(text)


def _part_of_warmup(merged: Merged) -> None:
    """Take a number of warm-up steps below 1 for a part of all steps, as the Trainer does."""
    steps = merged.get("optim.warmup_steps")
    part = None if steps is None else as_number(steps.value)
    if part is not None and 0 < part < 1:
        merged["optim.warmup_ratio"] = merged.pop("optim.warmup_steps")


def _packing_length(merged: Merged) -> None:
    """Take the size of a pack for `data.max_length`, which is that of a sample too."""
    request = merged.pop("@packing_length", None)
    if request is None:
        return
    longest = merged.setdefault("data.max_length", request)
    if str(longest.value) != str(request.value):
        raise ConfigError(
            f"{request.source} {request.value} and {longest.source} {longest.value} differ, and a pack is as long as "
            "the longest sample may be.",
            hint=f"Type only --max_length {request.value}",
        )


def _max_samples(merged: Merged) -> None:
    """Take the first N rows of each data set, except where `#N` is typed."""
    request = merged.pop("@max_samples", None)
    if request is None or str(request.value).lower() in ("-1", "none", "null"):
        return
    rows = _whole(request)
    for key in ("data.train", "data.validation"):
        names = merged.get(key)
        if names is not None:
            limited = tuple(name if _LIMITED.search(str(name)) else f"{name}#{rows}" for name in names.value)
            merged[key] = Assignment(limited, names.source)
