"""The one table of flags that users of ms-swift and the Hugging Face trainer know, and what each sets here.

Flags are spelled with `_`; `-` means the same. Most rename one key. The others translate their value: `--bf16` sets
`model.dtype`, `--deepspeed zero3` chooses a backend and configures it. A setting whose name begins with `@` is not a
key but a request, which `swift.config.requests` turns into keys once the whole configuration is known; one that begins
with `?` is set unless the same command or file sets it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from swift.config import fsdp_flags, megatron_flags, quantisation
from swift.config.draft import NOTE
from swift.config.fields import core_fields
from swift.config.flags import Alias, Arity, FlagTable, Settings, Translation
from swift.config.meanings import Refused
from swift.config.other_programs import other_programs
from swift.config.other_values import (
    ATTENTION_ELSEWHERE,
    DEVICES_ELSEWHERE,
    LOSS_SCALES_ELSEWHERE,
    OPTIMIZERS_ELSEWHERE,
    TUNERS_ELSEWHERE,
)
from swift.config.sections import Shape
from swift.config.values import as_number, as_switch, coerce, divided, quoted
from swift.errors import ConfigError, did_you_mean
from swift.plugins.discover import list_plugins

RENAMED: dict[str, tuple[str, ...]] = {
    "model.path": ("model", "model_id", "model_id_or_path", "model_name_or_path"),
    "model.revision": ("model_revision",),
    "model.random_weights": ("random_weights",),
    "model.chat_template": ("chat_template",),
    "model.trust_remote_code": ("trust_remote_code",),
    "model.liger": ("use_liger_kernel", "enable_liger_kernel"),
    "model.task": ("task_type",),
    "model.num_labels": ("num_labels",),
    "data.train": ("dataset", "train_dataset"),
    "data.validation": ("val_dataset", "eval_dataset"),
    "data.split_ratio": ("split_dataset_ratio",),
    "data.columns": ("columns",),
    "data.system": ("system", "default_system"),
    "data.max_length": ("max_length", "max_seq_length", "seq_length", "model_max_length", "sequence_len"),
    "data.packing": ("packing", "neat_packing", "sample_packing"),
    "data.padding_free": ("padding_free",),
    "data.shuffle": ("dataset_shuffle", "train_dataloader_shuffle"),
    "data.streaming": ("streaming",),
    "data.strict": ("strict",),
    "data.workers": ("dataset_num_proc", "preprocessing_num_workers"),
    "tuner.rank": ("lora_rank", "lora_r"),
    "tuner.alpha": ("lora_alpha",),
    "tuner.dropout": ("lora_dropout",),
    "tuner.targets": ("target_modules", "lora_target_modules", "lora_target"),
    "tuner.target_regex": ("target_regex",),
    "tuner.rank_pattern": ("rank_pattern",),
    "tuner.alpha_pattern": ("alpha_pattern",),
    "tuner.bias": ("lora_bias",),
    "tuner.init": ("init_lora_weights", "init_weights"),
    "tuner.double_quant": ("bnb_4bit_use_double_quant", "double_quantization"),
    "tuner.freeze_regex": ("freeze_parameters_regex",),
    "tuner.freeze_ratio": ("freeze_parameters_ratio",),
    "tuner.unfreeze_regex": ("trainable_parameters_regex",),
    "tuner.modules_to_save": ("modules_to_save",),
    "tuner.dora": ("use_dora",),
    "tuner.rslora": ("use_rslora",),
    "tuner.lora_plus_ratio": ("lorap_lr_ratio", "loraplus_lr_ratio"),
    "tuner.adapter": ("adapters", "adapter"),
    "objective.name": ("objective", "rlhf_type"),
    "objective.beta": ("beta",),
    "objective.alpha": ("rpo_alpha", "cpo_alpha"),
    "objective.gamma": ("simpo_gamma",),
    "objective.desirable_weight": ("desirable_weight",),
    "objective.undesirable_weight": ("undesirable_weight",),
    "objective.label_smoothing": ("label_smoothing", "label_smoothing_factor"),
    "optim.lr": ("learning_rate", "lr"),
    "optim.warmup_ratio": ("warmup_ratio", "lr_warmup_fraction"),
    "optim.min_lr": ("min_lr",),
    "optim.min_lr_ratio": ("min_lr_ratio", "min_lr_rate", "cosine_min_lr_ratio"),
    "optim.weight_decay": ("weight_decay",),
    "optim.beta1": ("adam_beta1",),
    "optim.beta2": ("adam_beta2",),
    "optim.eps": ("adam_epsilon", "adam_eps"),
    "optim.max_grad_norm": ("max_grad_norm", "clip_grad"),
    "parallel.dp_replicate": ("dp_replicate",),
    "parallel.dp_shard": ("dp_shard",),
    "parallel.tp": ("tp", "tensor_parallel_size", "tensor_model_parallel_size", "deepspeed_autotp_size"),
    "parallel.pp": ("pp", "pipeline_parallel_size", "pipeline_model_parallel_size"),
    "parallel.vpp": ("vpp", "virtual_pipeline_model_parallel_size"),
    "parallel.cp": ("cp", "context_parallel_size"),
    "parallel.ep": ("ep", "expert_parallel_size", "expert_model_parallel_size"),
    "parallel.etp": ("etp", "expert_tensor_parallel_size"),
    "parallel.sequence_parallel": ("sequence_parallel",),
    "parallel.ulysses": ("ulysses",),
    "train.epochs": ("num_train_epochs", "max_epochs", "epochs"),
    "train.micro_batch": ("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size"),
    "train.accumulation": ("gradient_accumulation_steps",),
    "train.global_batch": ("global_batch_size",),
    "train.gradient_checkpointing": ("gradient_checkpointing",),
    "train.compile": ("torch_compile",),
    "train.seed": ("seed",),
    "train.data_seed": ("data_seed",),
    "train.deterministic": ("full_determinism", "deterministic_mode", "deterministic"),
    "train.tf32": ("tf32",),
    "train.eval_strategy": ("eval_strategy", "evaluation_strategy"),
    "train.eval_steps": ("eval_steps", "eval_interval"),
    "train.eval_on_start": ("eval_on_start", "eval_at_start"),
    "train.eval_batch": ("per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_batch_size"),
    "train.metric_for_best": ("metric_for_best_model",),
    "train.greater_is_better": ("greater_is_better",),
    "train.early_stopping": ("early_stopping", "early_stop_interval", "early_stopping_patience"),
    "checkpoint.save_strategy": ("save_strategy",),
    "checkpoint.save_steps": ("save_steps", "save_interval"),
    "checkpoint.asynchronous": ("async_save",),
    "logging.output": ("output_dir",),
    "logging.run_name": ("run_name",),
    "logging.strategy": ("logging_strategy",),
    "logging.steps": ("logging_steps", "log_interval"),
    "backend.name": ("backend",),
    "backend.use_distributed_optimizer": ("use_distributed_optimizer",),
    "export.exist_ok": ("exist_ok",),
}
"""Key → flags that set it to their value, as it is."""


def _choice(choices: Mapping[str, Settings], refused: Mapping[str, Refused] | None = None) -> Translation:
    def translate(source: str, value: Any) -> Settings:
        name = str(value).lower()
        if refused and name in refused:
            refused[name].answer(source, value)
        if name not in choices:
            raise ConfigError(
                f"{source} does not know {quoted(value)}.{did_you_mean(name, choices)}",
                hint=f"It takes one of: {', '.join(choices)}",
            )
        return dict(choices[name])

    return translate


def _when_on(settings: Settings, otherwise: Settings | None = None) -> Translation:
    def translate(source: str, value: Any) -> Settings:
        return dict(settings if as_switch(value, source) else otherwise or {})

    return translate


def _deepspeed(_source: str, value: Any) -> Settings:
    return {"backend.name": "deepspeed", "backend.config": _DEEPSPEED_PRESETS.get(value, value)}


def _patterns(key: str) -> Translation:
    """Let a name without `*` stand for all weights that begin with it, as in ms-swift."""

    def translate(_source: str, value: Any) -> Settings:
        names = value if isinstance(value, list | tuple) else (value,)
        return {key: tuple(name if "*" in str(name) else f"{name}*" for name in names)}

    return translate


def _optimizer(source: str, value: Any) -> Settings:
    """Take core's names, then installed plugins' names; of well-known others say that they are not there."""
    name = str(value).lower()
    if name in _OPTIMIZERS or not any(entry.name == str(value) for entry in list_plugins("swift.optimizers")):
        return _choice(_OPTIMIZERS, OPTIMIZERS_ELSEWHERE)(source, value)
    return {"optim.name": value}


def _loss_type(source: str, value: Any) -> Settings:
    if str(value).lower() in ("cross_entropy", "nll"):
        return {NOTE: "is not needed: sft and pt take the cross entropy of the tokens that are learned."}
    if str(value).lower() == "dft":
        other_programs()["use_dft_loss"].answer(source, value)
    return {"objective.loss": value}


def _learn(text: str) -> Settings:
    return {"data.loss_on": text}


def _truncation(_source: str, value: Any) -> Settings:
    """Let ms-swift's `raise` refuse samples that are too long, as `data.strict` does."""
    return {"data.truncation": "delete", "data.strict": True} if value == "raise" else {"data.truncation": value}


def _cutoff(_source: str, value: Any) -> Settings:
    """Truncate, as LLaMA-Factory does, unless the user says what is to become of longer samples."""
    return {"data.max_length": value, "?data.truncation": "right"}


def _val_size(source: str, value: Any) -> Settings:
    """Read a part of the data; LLaMA-Factory also takes a number of rows."""
    try:
        part = float(value)
    except (TypeError, ValueError, OverflowError):
        part = math.nan
    if 0 <= part < 1:
        return {"data.split_ratio": value}
    raise ConfigError(
        f"{source} takes the part of the data to hold out, from 0 to less than 1, not {quoted(value)}.",
        hint="For example: --val_size 0.1, or rows of their own: --val_dataset FILE",
    )


def _text_field(_source: str, value: Any) -> Settings:
    return (
        {NOTE: "is not needed: 'text' is the column's name here too."}
        if value == "text"
        else {f"data.columns.{value}": "text"}
    )


def _thinking(source: str, value: Any) -> Settings:
    return {"data.template_kwargs.enable_thinking": as_switch(value, source)}


def _request(name: str) -> Translation:
    return lambda _, value: {f"@{name}": value}


def _max_steps(_source: str, value: Any) -> Settings:
    return {} if str(value) == "-1" else {"train.max_steps": value}


def _keep(_source: str, value: Any) -> Settings:
    """Keep all for what the Trainer takes for no limit."""
    return {"checkpoint.keep": None if str(value).lower() in ("all", "none", "null", "0", "-1") else value}


def _timeout(source: str, value: Any) -> Settings:
    seconds = as_number(value)
    if seconds is None:
        raise ConfigError(f"{source} takes seconds, not {quoted(value)}.", hint=f"For example: {source} 1800")
    return {"train.timeout_minutes": seconds / 60}


def _resume(_source: str, value: Any) -> Settings:
    words = {"true": "last", "false": None}
    return {"checkpoint.resume": words.get(str(value).lower(), value)}


def _report_to(_source: str, value: Any) -> Settings:
    """`tensorboard` adds to what every run writes; `none` leaves only that."""
    names = [name for each in (value if isinstance(value, list | tuple) else [value]) for name in divided(each)]
    if names == ["all"]:
        return {}
    always = ("console", "jsonl", "report")
    return {"logging.report_to": (*always, *(name for name in names if name not in ("none", *always)))}


def _schedule(source: str, value: Any) -> Settings:
    if str(value).lower() in _STATEFUL:
        raise ConfigError(
            f"{source} {value} follows the losses, and a learning rate here is a function of the step alone, so that "
            "a checkpoint continues the same on any backend.",
            hint=f"Type: {source} cosine, with --early_stopping N to stop when evaluations get no better",
        )
    return _choice(_SCHEDULES)(source, value)


def _schedule_options(source: str, value: Any) -> Settings:
    """Divide transformers' options of a schedule into the floor, which has keys of its own, and the rest."""
    options = dict(coerce(core_fields()["optim.schedule_options"], value, source) or {})
    floors = {"min_lr": "optim.min_lr", "lr_end": "optim.min_lr"}
    floors |= dict.fromkeys(("min_lr_rate", "min_lr_ratio"), "optim.min_lr_ratio")
    settings = {key: options.pop(name) for name, key in floors.items() if options.get(name) is not None}
    rest = {name: option for name, option in options.items() if name not in floors}
    return {**settings, **({"optim.schedule_options": rest} if rest else {})}


def _warmup_steps(_source: str, value: Any) -> Settings:
    """Take a number below 1 for a part of all steps, as the Trainer does."""
    part = as_number(value)
    return {"optim.warmup_ratio" if part is not None and 0 < part < 1 else "optim.warmup_steps": value}


_DEEPSPEED_PRESETS = {
    **{f"zero{stage}_cpu_offload": f"zero{stage}_offload" for stage in (2, 3)},
    **{f"default-zero{stage}": f"zero{stage}" for stage in (2, 3)},
}
_TRAIN_TYPES: dict[str, Settings] = {
    "full": {"tuner.kind": "full"},
    "lora": {"tuner.kind": "lora"},
    "qlora": {"tuner.kind": "lora", "tuner.quantize": "bnb-nf4"},
    "dora": {"tuner.kind": "lora", "tuner.dora": True},
    "rslora": {"tuner.kind": "lora", "tuner.rslora": True},
    "pt": {"objective.name": "pt"},
    "cpt": {"objective.name": "pt"},
    **{name: {"objective.name": name} for name in ("sft", "dpo", "kto", "orpo", "simpo", "cpo")},
}
_DTYPES: dict[str, Settings] = {
    "auto": {"model.dtype": "auto"},
    **{name: {"model.dtype": "float32"} for name in ("float32", "fp32", "float")},
    **{name: {"model.dtype": "bfloat16"} for name in ("bfloat16", "bf16")},
    **{name: {"model.dtype": "float16"} for name in ("float16", "fp16", "half")},
}
_ATTENTION: dict[str, Settings] = {
    name: {"model.attention": name} for name in ("auto", "flash_attention_2", "sdpa", "eager")
} | {name: {"model.attention": "flash_attention_2"} for name in ("flash_attn", "flash_attn_2", "flash", "fa2")}
_FLASH: dict[str, Settings] = {
    **_ATTENTION,
    **dict.fromkeys(("true", "yes", "on", "1"), _ATTENTION["fa2"]),
    **dict.fromkeys(("false", "no", "off", "0"), _ATTENTION["sdpa"]),
    "disabled": _ATTENTION["eager"],
}
"""`--flash_attn` is a switch in ms-swift, and a kernel in LLaMA-Factory."""
_DEVICES: dict[str, Settings] = {
    **{name: {"backend.device": name} for name in ("auto", "cpu", "cuda")},
    "gpu": {"backend.device": "cuda"},
}
_FSDP_PRESETS: dict[str, Settings] = {
    "fsdp": {"backend.name": "fsdp"},
    "fsdp_offload": {"backend.name": "fsdp", "backend.offload": True},
    "hsdp": {"backend.name": "fsdp", "backend.hybrid": True},
}
_METHODS: dict[str, Settings] = {
    **{name: {"backend.name": name} for name in ("megatron", "deepspeed", "torch")},
    **_FSDP_PRESETS,
    "ddp": {"backend.name": "torch"},
    "fsdp2": {"backend.name": "fsdp"},
    "zero": {"backend.name": "deepspeed"},
}
_SCHEDULES: dict[str, Settings] = {name: {"optim.schedule": name} for name in get_args(Shape)} | {
    "constant_with_warmup": {"optim.schedule": "constant"},
    "cosine_with_min_lr": {"optim.schedule": "cosine", "@min_lr": "cosine_with_min_lr"},
}
_DECAY_STYLES: dict[str, Settings] = {
    **{name: {"optim.schedule": name} for name in ("cosine", "linear", "constant", "wsd")},
    "inverse-square-root": {"optim.schedule": "inverse_sqrt"},
}
_STATEFUL = ("reduce_lr_on_plateau", "greedy")
"""Schedules of transformers that follow the losses."""
_OPTIMIZERS: dict[str, Settings] = {
    **{name: {"optim.name": "adamw"} for name in ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adam")},
    **{name: {"optim.name": "adamw_8bit"} for name in ("adamw_8bit", "adamw_bnb_8bit")},
    "adafactor": {"optim.name": "adafactor"},
}
_LOSS_SCALES: dict[str, Settings] = {
    "default": {"data.loss_on": "assistant"},
    "all": {"data.loss_on": "all"},
    "last_round": {"data.loss_on": "last_round"},
}

_TRANSLATED: tuple[tuple[tuple[str, ...], str, Arity, Translation], ...] = (
    (("model_type",), "model.path", "value", _request("model_type")),
    (("torch_dtype", "dtype"), "model.dtype", "value", _choice(_DTYPES)),
    (("bf16",), "model.dtype", "switch", _when_on({"model.dtype": "bfloat16"}, {"@no_bf16": True})),
    (("fp16", "use_fp16"), "model.dtype", "switch", _when_on({"model.dtype": "float16"}, {"@no_fp16": True})),
    (
        ("attn_impl", "attn_implementation"),
        "model.attention",
        "value",
        _choice(_ATTENTION, ATTENTION_ELSEWHERE),
    ),
    (("use_flash_attn", "flash_attn"), "model.attention", "optional", _choice(_FLASH, ATTENTION_ELSEWHERE)),
    (("use_cpu", "no_cuda"), "backend.device", "switch", _when_on({"backend.device": "cpu"})),
    (("device",), "backend.device", "value", _choice(_DEVICES, DEVICES_ELSEWHERE)),
    (("cutoff_len",), "data.max_length", "value", _cutoff),
    (("truncation_strategy",), "data.truncation", "value", _truncation),
    (("packing_length",), "data.max_length", "value", _request("packing_length")),
    (("val_size",), "data.split_ratio", "value", _val_size),
    (("max_samples",), "data.train", "value", _request("max_samples")),
    (("dataset_text_field",), "data.columns", "value", _text_field),
    (("enable_thinking",), "data.template_kwargs", "switch", _thinking),
    (("completion_only_loss",), "data.loss_on", "switch", _when_on(_learn("last_round"), {"?data.loss_on": "all"})),
    (("assistant_only_loss",), "data.loss_on", "switch", _when_on(_learn("assistant"), {"?data.loss_on": "all"})),
    (("train_on_inputs", "train_on_prompt"), "data.loss_on", "switch", _when_on(_learn("all"))),
    (("mask_history",), "data.loss_on", "switch", _when_on(_learn("last_round"))),
    (("freeze_parameters",), "tuner.freeze", "list", _patterns("tuner.freeze")),
    (("trainable_parameters",), "tuner.train_only", "list", _patterns("@trainable_parameters")),
    (("use_peft",), "tuner.kind", "switch", _when_on({"tuner.kind": "lora"}, {"tuner.kind": "full"})),
    (("loss_type",), "objective.loss", "value", _loss_type),
    (("loss_scale",), "data.loss_on", "value", _choice(_LOSS_SCALES, LOSS_SCALES_ELSEWHERE)),
    (
        ("train_type", "tuner_type", "sft_type", "finetuning_type"),
        "tuner.kind",
        "value",
        _choice(_TRAIN_TYPES, TUNERS_ELSEWHERE),
    ),
    (("optimizer", "optim"), "optim.name", "value", _optimizer),
    (("lr_scheduler_type", "lr_scheduler"), "optim.schedule", "value", _schedule),
    (("lr_decay_style",), "optim.schedule", "value", _choice(_DECAY_STYLES)),
    (("lr_scheduler_kwargs",), "optim.schedule_options", "mapping", _schedule_options),
    (("warmup_steps", "lr_warmup_iters"), "optim.warmup_steps", "value", _warmup_steps),
    (
        ("sequence_parallel_size",),
        "parallel.sequence_parallel",
        "value",
        _request("sequence_parallel_size"),
    ),
    (("max_steps", "train_iters"), "train.max_steps", "value", _max_steps),
    (("resume_from_checkpoint", "resume"), "checkpoint.resume", "optional", _resume),
    (("save_total_limit",), "checkpoint.keep", "value", _keep),
    (
        ("save_only_model", "no_save_optim"),
        "checkpoint.optimizer_state",
        "switch",
        _when_on({"checkpoint.optimizer_state": False}),
    ),
    (("resume_only_model",), "checkpoint.resume", "switch", _request("resume_only_model")),
    (
        ("load_best_model_at_end",),
        "train.metric_for_best",
        "switch",
        _request("load_best_model_at_end"),
    ),
    (
        ("gradient_checkpointing_kwargs",),
        "train.gradient_checkpointing",
        "mapping",
        _request("gradient_checkpointing_kwargs"),
    ),
    (("ddp_timeout",), "train.timeout_minutes", "value", _timeout),
    (("report_to",), "logging.report_to", "list", _report_to),
    (("deepspeed", "deepspeed_config"), "backend.name", "value", _deepspeed),
    (("parallel_method",), "backend.name", "value", _choice(_METHODS)),
    *fsdp_flags.FLAGS,
    *megatron_flags.FLAGS,
    *quantisation.FLAGS,
    (("merge_lora",), "export.to", "switch", _when_on({"export.to": "hf"})),
)

_IGNORED = ("local_rank",)
"""Flags that launchers add to a command; the environment says the same."""
OPEN_SECTIONS = ("backend", "objective", "optim", "tuner")
"""Sections whose other keys belong to a plugin."""
VERB_OBJECTIVES = {"pt": "pt", "sft": "sft"}
"""Verbs that stand for one objective. `rlhf` takes any of preference learning, `train` takes any."""
MACHINES = ("nnodes", "node_rank", "master_addr", "master_port")
"""Flags of torchrun that say what environment variables of these names say."""
ABOUT_COMMAND: dict[str, Arity] = dict.fromkeys(("config", "nproc", "nproc_per_node", *MACHINES), "value")
"""Flags that are about the command, not about the configuration."""


@cache
def training_flags() -> FlagTable:
    """Return the flags of the verbs that train."""
    return FlagTable(
        fields=core_fields(),
        aliases=aliases(),
        help_command="swift sft --help",
        depth=2,
        about_command=ABOUT_COMMAND,
        open_sections=OPEN_SECTIONS,
        ignored=_IGNORED,
        elsewhere=other_programs(),
        takes_word=lambda word: word.endswith((".yaml", ".yml")),
    )


@cache
def aliases() -> dict[str, Alias]:
    """Flag → alias."""
    table = {}
    for key, flags in RENAMED.items():
        field = core_fields().get(key)
        for flag in flags:
            table[flag] = Alias(flag, key, field.kind if field else "any", _renamed(key), renames=True)
    for flags, key, arity, translate in _TRANSLATED:
        table.update({flag: Alias(flag, key, arity, translate) for flag in flags})
    return table


@cache
def flags_of(key: str) -> tuple[str, ...]:
    """Return the aliases that help shows next to a key."""
    return tuple(flag for flag, alias in aliases().items() if alias.key == key)


def _renamed(key: str) -> Translation:
    return lambda _, value: {key: value}
