"""Translations of flags into settings: `--bf16` into `model.dtype`, `--cutoff_len` into two keys.

Each takes a flag as typed and its value; `swift.parsing.aliases` maps flags to translations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from swift.config.fields import core_fields
from swift.config.sections import Shape
from swift.config.settings import Fallback, Note, Request, Set, Settings, Translation, sets
from swift.config.values import as_number, as_switch, coerce, divided, quoted
from swift.errors import ConfigError
from swift.parsing.choices import choice, further_value
from swift.plugins.discover import list_plugins, objective_names, only_installed
from swift.plugins.vocabularies import meaning_of_value


def deepspeed(_source: str, value: Any) -> Settings:
    """Select DeepSpeed with a file, or a preset by its name in ms-swift or LLaMA-Factory."""
    return sets({"backend.name": "deepspeed", "backend.config": DEEPSPEED_PRESETS.get(str(value), value)})


def freeze(_source: str, value: Any) -> Settings:
    """Read names of weights to freeze."""
    return (Set("tuner.freeze", _patterns(value)),)


def trainable_parameters(_source: str, value: Any) -> Settings:
    """Read names of weights to train, whose meaning depends on what is frozen."""
    return (Request("trainable_parameters", _patterns(value)),)


def _patterns(value: Any) -> tuple[str, ...]:
    """Read a name without `*` as a prefix, as ms-swift does."""
    names = value if isinstance(value, list | tuple) else (value,)
    return tuple(name if "*" in str(name) else f"{name}*" for name in names)


def optimizer(source: str, value: Any) -> Settings:
    """Accept core's names and those of installed plugins; refuse well-known others with the reason."""
    name = str(value).lower()
    if name in OPTIMIZERS or not any(entry.name == str(value) for entry in list_plugins("swift.optimizers")):
        return choice(OPTIMIZERS, "optimizer")(source, value)
    return (Set("optim.name", value),)


def optimizer_by_switch(name: str) -> Translation:
    """Return a translation that selects an optimizer by a switch; off changes nothing."""

    def translate(source: str, value: Any) -> Settings:
        return (Set("optim.name", name) if as_switch(value, source) else Note("is not needed: it is off by default."),)

    return translate


def targets_of_optimizer(_source: str, value: Any) -> Settings:
    """Read names of modules; names for all linear modules are the default."""
    names = value if isinstance(value, list | tuple) else (value,)
    every = any(str(name).lower().replace("_", "-") in ("all", "all-linear") for name in names)
    return (Note("is not needed: all linear layers are the default.") if every else Set("optim.targets", names),)


def optimizer_arguments(source: str, value: Any) -> Settings:
    """Read the Trainer's `rank=64, scale=0.25` as options of the optimizer."""
    settings: Settings = ()
    for pair in str(value).split(","):
        key, _, text = (part.strip() for part in pair.partition("="))
        if (key, text) == ("proj", "random"):  # the only projection of APOLLO
            continue
        if key not in _ARGUMENTS:
            raise ConfigError(
                f"{source} {value} is not supported: optimizer options are separate flags.",
                hint="For AdamW type --adam_beta1 0.9 --adam_beta2 0.95 --adam_epsilon 1e-8, for others "
                "--optim.KEY VALUE.",
            )
        settings += (Set(f"optim.{key}", text),)
    return settings


def tuner(source: str, value: Any) -> Settings:
    """Accept tuners and objectives, those of installed plugins included; refuse well-known others with the reason."""
    types = _each("objective.name", *objective_names()) | TRAIN_TYPES
    if str(value).lower() in types or not any(entry.name == str(value) for entry in list_plugins("swift.tuners")):
        return choice(types, "train_type")(source, value)
    return (Set("tuner.kind", value),)


def loss_type(source: str, value: Any) -> Settings:
    """Set the objective's loss by name; cross entropy is the loss of sft and pt."""
    if str(value).lower() in ("cross_entropy", "nll"):
        return (Note("is not needed: it is the loss of sft and pt."),)
    name = str(value).lower()
    if meaning_of_value("loss_type", name) is not None:
        return further_value("loss_type", source, value, ())
    return (Set("objective.loss", value),)


def no_dropout(source: str, value: Any) -> Settings:
    """Turn off the dropout of adapters."""
    if not as_switch(value, source):
        return ()
    return (
        Set("tuner.dropout", 0.0),
        Note("sets tuner.dropout to 0; the model's own dropout comes from its config.json."),
    )


def truncation(_source: str, value: Any) -> Settings:
    """Read ms-swift's `raise` as `data.strict`, which fails on samples that are too long."""
    if value == "raise":
        return sets({"data.truncation": "delete", "data.strict": True})
    return (Set("data.truncation", value),)


def cutoff(_source: str, value: Any) -> Settings:
    """Truncate longer samples, as LLaMA-Factory does, unless the user sets data.truncation."""
    return Set("data.max_length", value), Fallback("data.truncation", "right")


def val_size(source: str, value: Any) -> Settings:
    """Read a fraction of the data; refuse a number of rows, which LLaMA-Factory also accepts."""
    try:
        part = float(value)
    except (TypeError, ValueError, OverflowError):
        part = math.nan
    if 0 <= part < 1:
        return (Set("data.split_ratio", value),)
    raise ConfigError(
        f"{source} must be a fraction of the data from 0 to less than 1, not {quoted(value)}.",
        hint="For example: --val_size 0.1, or a separate file: --val_dataset FILE",
    )


def text_field(_source: str, value: Any) -> Settings:
    """Rename the column that holds plain text."""
    if value == "text":
        return (Note("is not needed: 'text' is the default column."),)
    return (Set(f"data.columns.{value}", "text"),)


def max_steps(_source: str, value: Any) -> Settings:
    """Read -1 as no limit."""
    return () if str(value) == "-1" else (Set("train.max_steps", value),)


def keep(_source: str, value: Any) -> Settings:
    """Read the Trainer's values for no limit."""
    return (Set("checkpoint.keep", None if str(value).lower() in ("all", "none", "null", "0", "-1") else value),)


def timeout(source: str, value: Any) -> Settings:
    """Read seconds."""
    seconds = as_number(value)
    if seconds is None:
        raise ConfigError(
            f"{source} must be a number of seconds, not {quoted(value)}.", hint=f"For example: {source} 1800"
        )
    return (Set("train.timeout_minutes", seconds / 60),)


def resume(_source: str, value: Any) -> Settings:
    """Read a folder, or a switch for the newest run."""
    newest = {"true": "last", "false": None}
    return (Set("checkpoint.resume", newest.get(str(value).lower(), value)),)


def report_to(_source: str, value: Any) -> Settings:
    """Add observers to those of every run; `none` adds none."""
    names = [name for each in (value if isinstance(value, list | tuple) else [value]) for name in divided(each)]
    if names == ["all"]:
        return ()
    named = [name for name in names if name != "none"]
    always = only_installed("swift.observers", ("console", "jsonl", "report"))
    return (Set("logging.report_to", (*always, *(name for name in named if name not in always))),)


def schedule(source: str, value: Any) -> Settings:
    """Read the name of a schedule; refuse those that depend on the loss."""
    if str(value).lower() in STATEFUL:
        raise ConfigError(
            f"{source} {value} is not supported: the learning rate must depend on the step only.",
            hint=f"Type: {source} cosine, and --early_stopping N to stop when evaluations no longer improve",
        )
    return choice(SCHEDULES)(source, value)


def schedule_options(source: str, value: Any) -> Settings:
    """Split transformers' options of a schedule into the floor, which has separate keys, and the rest."""
    options = coerce(core_fields()["optim.schedule_options"], value, source) or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"{source} must be a mapping, not {quoted(value)}.")
    floors = {"min_lr": "optim.min_lr", "lr_end": "optim.min_lr"}
    floors |= dict.fromkeys(("min_lr_rate", "min_lr_ratio"), "optim.min_lr_ratio")
    settings = {key: options[name] for name, key in floors.items() if options.get(name) is not None}
    rest = {name: option for name, option in options.items() if name not in floors}
    return sets(settings | ({"optim.schedule_options": rest} if rest else {}))


def _each(key: str, *names: str, value: str = "") -> dict[str, Settings]:
    """Return each name with the setting of a key to `value`; default: to the name."""
    return {name: (Set(key, value or name),) for name in names}


DEEPSPEED_PRESETS = {
    **{f"zero{stage}_cpu_offload": f"zero{stage}_offload" for stage in (2, 3)},
    **{f"default-zero{stage}": f"zero{stage}" for stage in (2, 3)},
}
TRAIN_TYPES: dict[str, Settings] = {
    **_each("tuner.kind", "full", "lora"),
    "qlora": sets({"tuner.kind": "lora", "tuner.quantize": "bnb-nf4"}),
    "dora": sets({"tuner.kind": "lora", "tuner.dora": True}),
    "rslora": sets({"tuner.kind": "lora", "tuner.rslora": True}),
    **_each("tuner.kind", "miss", "oft", "hira", "loha", "lokr"),
    **_each("objective.name", "cpt", value="pt"),
}
DTYPES: dict[str, Settings] = {
    **_each("model.dtype", "auto"),
    **_each("model.dtype", "float32", "fp32", "float", value="float32"),
    **_each("model.dtype", "bfloat16", "bf16", value="bfloat16"),
    **_each("model.dtype", "float16", "fp16", "half", value="float16"),
}
ATTENTION: dict[str, Settings] = {
    **_each("model.attention", "auto", "flash_attention_3", "flash_attention_2", "flex_attention", "sdpa", "eager"),
    **_each("model.attention", "flash_attn_3", "fa3", value="flash_attention_3"),
    **_each("model.attention", "flash_attn", "flash_attn_2", "flash", "fa2", value="flash_attention_2"),
}
FLASH: dict[str, Settings] = {
    **ATTENTION,
    **dict.fromkeys(("true", "yes", "on", "1"), ATTENTION["fa2"]),
    **dict.fromkeys(("false", "no", "off", "0"), ATTENTION["sdpa"]),
    "disabled": ATTENTION["eager"],
}
"""Values of `--flash_attn`, a switch in ms-swift and the name of a kernel in LLaMA-Factory."""
DEVICES: dict[str, Settings] = {
    **_each("backend.device", "auto", "cpu", "cuda"),
    "gpu": (Set("backend.device", "cuda"),),
}
METHODS: dict[str, Settings] = {
    **_each("backend.name", "megatron", "deepspeed", "torch", "fsdp"),
    "fsdp_offload": sets({"backend.name": "fsdp", "backend.offload": True}),
    "hsdp": sets({"backend.name": "fsdp", "backend.hybrid": True}),
    **_each("backend.name", "ddp", value="torch"),
    **_each("backend.name", "fsdp2", value="fsdp"),
    **_each("backend.name", "zero", value="deepspeed"),
}
SCHEDULES: dict[str, Settings] = {
    **_each("optim.schedule", *get_args(Shape)),
    **_each("optim.schedule", "constant_with_warmup", value="constant"),
    "cosine_with_min_lr": (Set("optim.schedule", "cosine"), Request("min_lr", "cosine_with_min_lr")),
}
DECAY_STYLES: dict[str, Settings] = {
    **_each("optim.schedule", "cosine", "linear", "constant", "wsd"),
    **_each("optim.schedule", "inverse-square-root", value="inverse_sqrt"),
}
STATEFUL = ("reduce_lr_on_plateau", "greedy")
"""Schedules of transformers that depend on the loss."""
OPTIMIZERS: dict[str, Settings] = {
    **_each("optim.name", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adam", value="adamw"),
    **_each("optim.name", "adamw_8bit", "adamw_bnb_8bit", value="adamw_8bit"),
    **_each("optim.name", "adamw_4bit", "adamw_torch_4bit", value="adamw_4bit"),
    **_each("optim.name", "lion", "lion_32bit", value="lion"),
    **_each("optim.name", "adafactor", "muon", "schedule_free", "sgd"),
    **_each("optim.name", "galore", "q_galore", "apollo", "apollo_mini", "adam_mini"),
    **_each("optim.name", "galore_adamw", value="galore"),
    **_each("optim.name", "q_galore_adamw8bit", value="q_galore"),
    **_each("optim.name", "apollo_adamw", value="apollo"),
    **_each("optim.name", "schedule_free_adamw", "adamw_schedule_free", value="schedule_free"),
}
OPTIMIZERS_BY_SWITCH = ("galore", "apollo", "adam_mini", "muon")
"""Optimizers that third-party commands select by a switch: `--use_galore true`."""
_ARGUMENTS = frozenset(
    {"rank", "update_proj_gap", "scale", "proj_type", "scale_type", "momentum", "nesterov", "ns_steps"}
)
"""Keys of `--optim_args` that are options of optimizers here."""
LOSS_SCALES: dict[str, Settings] = {
    **_each("data.loss_on", "default", value="assistant"),
    **_each("data.loss_on", "all", "last_round"),
}
