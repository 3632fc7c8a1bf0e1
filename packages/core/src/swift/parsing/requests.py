"""Flags whose meaning depends on the rest of the configuration, resolved once all of it is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from swift.config.draft import Assignment, Draft, Layer, whole_number
from swift.config.values import as_number, as_switch, quoted
from swift.errors import ConfigError, PluginError
from swift.parsing.cadence import settle_cadence
from swift.parsing.plugin_flags import flag_topics
from swift.parsing.quantization_flags import settle_quantization
from swift.untrusted import parse_json

_LIMITED = re.compile(r"#\d+$")


def settle_layer(layer: Layer) -> None:
    """Replace requests whose meaning depends on other flags of the same layer alone: `--bf16 false`."""
    off = {name: layer.take(f"no_{short}") for name, short in (("bfloat16", "bf16"), ("float16", "fp16"))}
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
        layer.note(f"{fp16.source} false is not needed: float16 is off by default.")
        return
    layer.set("model.dtype", "float32", bf16.source)
    both = f"{bf16.source} false and {fp16.source} false set" if fp16 else f"{bf16.source} false sets"
    layer.note(f"{both} model.dtype to float32; for float16 type --fp16 true.")


def _trainable_parameters(draft: Draft, request: Assignment) -> None:
    """Read the flag as exemptions from freezing, as ms-swift does, or as the only trained weights if none is frozen."""
    frozen = any(draft.value(f"tuner.{key}", None) for key in ("freeze", "freeze_regex", "freeze_ratio"))
    draft.replace("tuner.unfreeze" if frozen else "tuner.train_only", request.value, request.source)
    if not frozen:
        draft.note(f"{request.source}: only these weights are trained, because no other flag freezes any.")


def _model_type(draft: Draft, request: Assignment) -> None:
    """Read `--model_type` without `--model` as the model; with it, it is ms-swift's name of the architecture."""
    if draft.get("model.path") is not None:
        draft.note(f"{request.source} {request.value} is not needed: the model's config.json has its type.")
    else:
        draft.replace("model.path", request.value, request.source)


def _sequence_parallel_size(draft: Draft, request: Assignment) -> None:
    """Translate the size to Megatron's switch; refuse it for other backends, where it is ambiguous."""
    size, tp = whole_number(request), whole_number(draft.get("parallel.tp") or Assignment(1, "--tp"))
    if size == 1:
        return
    backend = draft.value("backend.name", "torch")
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
    draft.replace("parallel.sequence_parallel", True, request.source)
    other = f", not {size} (to divide sequences further type --cp {size})" if size != tp else ""
    draft.note(
        f"{request.source} {size} turns on Megatron's sequence parallelism, over the {tp} tensor parallel processes"
        f"{other}."
    )


def _min_lr(draft: Draft, request: Assignment) -> None:
    """Refuse `cosine_with_min_lr` without a floor, as transformers does."""
    if not {"optim.min_lr", "optim.min_lr_ratio"} & draft.assignments.keys():
        raise ConfigError(
            f"{request.source} {request.value} needs a minimum learning rate.", hint="For example: --min_lr 1e-6"
        )


def _weights_of_checkpoint(draft: Draft, request: Assignment) -> None:
    """Turn `--resume_only_model` into a new run from the weights of the checkpoint to resume from."""
    if not as_switch(request.value, request.source):
        return
    named = draft.drop("checkpoint.resume")
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
    draft.replace(key, str(folder), named.source)
    draft.note(
        f"{request.source}: a new run starts at step 0 from the weights in {folder} ({key}), with a new optimizer."
    )


def _best_at_the_end(draft: Draft, request: Assignment) -> None:
    """Note where the best checkpoint is; refuse an export, which would write the last weights instead."""
    if not as_switch(request.value, request.source):
        return
    if draft.value("export.to", None) is not None:
        raise ConfigError(
            f"{request.source} cannot be used with export.to, which exports the weights of the last step.",
            hint="Leave --export.to out, and after the run type: swift export RUN/best-checkpoint",
        )
    draft.note(
        f"{request.source}: the best checkpoint is RUN/best-checkpoint; swift infer and swift export accept it. "
        "RUN alone is the last checkpoint."
    )


def _recomputation(draft: Draft, request: Assignment) -> None:
    """Accept the Trainer's `use_reentrant`, which does not change the results of gradient checkpointing."""
    if request.value is None:
        return
    options = request.value
    if isinstance(options, str):
        options = parse_json(options, request.source, ConfigError)
    if not isinstance(options, Mapping) or set(options) - {"use_reentrant"}:
        raise ConfigError(
            f"{request.source} accepts only use_reentrant, not {quoted(request.value)}.",
            hint="Leave it out: --gradient_checkpointing true",
        )
    draft.note(f"{request.source} is not needed: checkpointing is never re-entrant, with the same results.")


def _part_of_warmup(draft: Draft) -> None:
    """Read a number of warm-up steps below 1 as a fraction of all steps, as the Trainer does."""
    steps = draft.get("optim.warmup_steps")
    part = None if steps is None else as_number(steps.value)
    if steps is not None and part is not None and 0 < part < 1:
        draft.drop("optim.warmup_steps")
        draft.replace("optim.warmup_ratio", steps.value, steps.source)


def _packing_length(draft: Draft, request: Assignment) -> None:
    """Read the size of a pack as `data.max_length`, which is also the limit of a sample."""
    longest = draft.default("data.max_length", request.value, request.source)
    if str(longest.value) != str(request.value):
        raise ConfigError(
            f"{request.source} {request.value} and {longest.source} {longest.value} differ, but packs and samples have "
            "the same limit (data.max_length).",
            hint=f"Type only --max_length {request.value}",
        )


def _max_samples(draft: Draft, request: Assignment) -> None:
    """Limit each data set to the first N rows, except where `#N` is typed."""
    if str(request.value).lower() in ("-1", "none", "null"):
        return
    rows = whole_number(request)
    for key in ("data.train", "data.validation"):
        names = draft.get(key)
        if names is not None:
            limited = tuple(name if _LIMITED.search(str(name)) else f"{name}#{rows}" for name in names.value)
            draft.replace(key, limited, names.source)


def _max_prompt_length(draft: Draft, request: Assignment) -> None:
    """Refuse a limit of prompts alone, which no vocabulary has read."""
    if str(request.value).lower() not in ("none", "null"):
        raise ConfigError(
            f"{request.source} is not supported: prompt and completion have one limit together.",
            hint="Type --max_length N",
        )


_SETTLERS: Mapping[str, Callable[[Draft, Assignment], None]] = {
    "model_type": _model_type,
    "sequence_parallel_size": _sequence_parallel_size,
    "min_lr": _min_lr,
    "packing_length": _packing_length,
    "max_samples": _max_samples,
    "trainable_parameters": _trainable_parameters,
}
"""Request → what replaces it by keys, in this order."""
_LAST_SETTLERS: Mapping[str, Callable[[Draft, Assignment], None]] = {
    "max_prompt_length": _max_prompt_length,
    "resume_only_model": _weights_of_checkpoint,
    "load_best_model_at_end": _best_at_the_end,
    "gradient_checkpointing_kwargs": _recomputation,
}
"""The same, for requests that vocabularies may take first."""


def settle_requests(draft: Draft) -> None:
    """Replace all requests by keys, and add notes for the user."""
    _part_of_warmup(draft)
    _settle(draft, _SETTLERS)
    settle_quantization(draft)
    for topic in flag_topics():
        if topic.settle is not None:
            topic.settle(draft)
    _settle(draft, _LAST_SETTLERS)
    settle_cadence(draft)
    if draft.requests:
        name, request = next(iter(draft.requests.items()))
        raise PluginError(f"{request.source}: no vocabulary settles the request {name!r}.")


def _settle(draft: Draft, settlers: Mapping[str, Callable[[Draft, Assignment], None]]) -> None:
    for name, settle in settlers.items():
        if (request := draft.take(name)) is not None:
            settle(draft, request)
