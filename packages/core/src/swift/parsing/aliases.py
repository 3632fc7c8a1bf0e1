"""Flags that users of ms-swift and the Hugging Face Trainer know, and the keys that they set.

Flags are spelled with `_`; `-` means the same. Most flags rename one key. The others translate their value: `--bf16`
sets `model.dtype`, `--deepspeed zero3` chooses a backend and configures it. `swift.config.settings` has what a flag may
mean; requests become keys in `swift.parsing.requests`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from swift.config.fields import Field, core_fields
from swift.config.flags import Alias, Arity, FlagTable, TranslatedFlags
from swift.config.settings import Fallback, Request, Set, renamed, request, switch, when_on
from swift.config.values import coerce
from swift.errors import ConfigError, PluginError
from swift.parsing import quantization_flags
from swift.parsing import translations as to
from swift.parsing.choices import choice
from swift.parsing.plugin_flags import flag_topics, third_party_flags
from swift.parsing.tasks import task_type

if TYPE_CHECKING:
    from swift.contracts import FlagTopic

_WITHOUT_SECTION: dict[str, tuple[str, ...]] = {
    "model": (
        "experts_impl", "random_weights", "chat_template", "trust_remote_code", "num_labels", "labels", "problem_type",
        "rope_scaling", "max_model_len",
    ),
    "data": (
        "columns", "system", "max_length", "packing", "padding_free", "streaming", "strict", "max_pixels",
        "min_pixels",
    ),
    "tuner": (
        "target_regex", "target_parameters", "rank_pattern", "alpha_pattern", "modules_to_save", "freeze_vit",
        "freeze_aligner", "freeze_llm", "freeze_router",
    ),
    "objective": (
        "beta", "desirable_weight", "undesirable_weight", "center_rewards_coefficient", "step_separator",
        "train_on_last_step_only", "class_weights", "positive_token", "negative_token", "label_smoothing",
    ),
    "optim": (
        "vit_lr", "aligner_lr", "warmup_ratio", "warmup_steps", "min_lr", "min_lr_ratio", "weight_decay",
        "max_grad_norm",
    ),
    "parallel": ("dp_replicate", "dp_shard", "tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel", "ulysses"),
    "train": (
        "gradient_checkpointing", "seed", "data_seed", "tf32", "eval_strategy", "eval_steps", "eval_on_start",
        "greater_is_better", "early_stopping",
    ),
    "checkpoint": ("save_strategy", "save_steps"),
    "logging": ("run_name", "project"),
    "backend": ("use_distributed_optimizer",),
    "export": ("exist_ok",),
}  # fmt: skip
"""Section → its keys that are also flags without the section's name."""
_RENAMED: dict[str, tuple[str, ...]] = {
    "model.path": ("model", "model_id", "model_id_or_path", "model_name_or_path"),
    "model.revision": ("model_revision",),
    "model.experts_impl": ("experts_implementation",),
    "model.liger": ("use_liger_kernel", "enable_liger_kernel"),
    "data.train": ("dataset", "train_dataset"),
    "data.validation": ("val_dataset", "eval_dataset"),
    "data.split_ratio": ("split_dataset_ratio",),
    "data.system": ("default_system",),
    "data.max_length": ("max_seq_length", "seq_length", "model_max_length", "sequence_len"),
    "data.packing": ("neat_packing", "sample_packing"),
    "data.shuffle": ("dataset_shuffle", "train_dataloader_shuffle"),
    "data.bounding_boxes": ("norm_bbox",),
    "data.max_pixels": ("image_max_pixels",),
    "data.min_pixels": ("image_min_pixels",),
    "data.video_fps": ("fps", "video_fps"),
    "data.video_max_frames": ("fps_max_frames", "video_maxlen", "video_max_frames"),
    "data.media_root": ("media_dir", "media_root"),
    "data.workers": ("dataset_num_proc", "preprocessing_num_workers"),
    "tuner.rank": ("lora_rank", "lora_r"),
    "tuner.alpha": ("lora_alpha",),
    "tuner.dropout": ("lora_dropout",),
    "tuner.targets": ("target_modules", "lora_target_modules", "lora_target"),
    "tuner.target_parameters": ("lora_target_parameters",),
    "tuner.bias": ("lora_bias",),
    "tuner.init": ("init_lora_weights", "init_weights"),
    "tuner.double_quant": ("bnb_4bit_use_double_quant", "double_quantization"),
    "tuner.freeze_regex": ("freeze_parameters_regex",),
    "tuner.freeze_ratio": ("freeze_parameters_ratio",),
    "tuner.unfreeze_regex": ("trainable_parameters_regex",),
    "tuner.dora": ("use_dora",),
    "tuner.rslora": ("use_rslora",),
    "tuner.lora_plus_ratio": ("lorap_lr_ratio", "loraplus_lr_ratio"),
    "tuner.adapter": ("adapters", "adapter"),
    "tuner.freeze_vit": ("freeze_vision_tower",),
    "tuner.freeze_aligner": ("freeze_multi_modal_projector",),
    "tuner.freeze_llm": ("freeze_language_model",),
    "tuner.freeze_router": ("freeze_moe_router",),
    "objective.name": ("objective", "rlhf_type"),
    "objective.alpha": ("rpo_alpha", "cpo_alpha"),
    "objective.gamma": ("simpo_gamma",),
    "objective.label_smoothing": ("label_smoothing_factor",),
    "optim.lr": ("learning_rate", "lr"),
    "optim.warmup_ratio": ("lr_warmup_fraction",),
    "optim.warmup_steps": ("lr_warmup_iters",),
    "optim.min_lr_ratio": ("min_lr_rate", "cosine_min_lr_ratio"),
    "optim.beta1": ("adam_beta1",),
    "optim.beta2": ("adam_beta2",),
    "optim.eps": ("adam_epsilon", "adam_eps"),
    "optim.max_grad_norm": ("clip_grad",),
    "optim.rank": ("galore_rank", "apollo_rank"),
    "optim.update_proj_gap": ("galore_update_proj_gap", "galore_update_interval", "apollo_update_interval"),
    "optim.scale": ("galore_scale", "apollo_scale"),
    "optim.scale_type": ("apollo_scale_type",),
    "optim.proj_type": ("galore_proj_type",),
    "optim.group_size": ("galore_proj_group_size",),
    "optim.cos_threshold": ("galore_cos_threshold",),
    "optim.gamma_proj": ("galore_gamma_proj",),
    "optim.queue_size": ("galore_queue_size",),
    "parallel.tp": ("tensor_parallel_size", "tensor_model_parallel_size", "deepspeed_autotp_size"),
    "parallel.pp": ("pipeline_parallel_size", "pipeline_model_parallel_size"),
    "parallel.vpp": ("virtual_pipeline_model_parallel_size",),
    "parallel.cp": ("context_parallel_size",),
    "parallel.ep": ("expert_parallel_size", "expert_model_parallel_size"),
    "parallel.etp": ("expert_tensor_parallel_size",),
    "train.epochs": ("num_train_epochs", "max_epochs", "epochs"),
    "train.micro_batch": ("per_device_train_batch_size", "micro_batch_size", "per_gpu_train_batch_size"),
    "train.accumulation": ("gradient_accumulation_steps",),
    "train.global_batch": ("global_batch_size",),
    "train.neftune_alpha": ("neftune_noise_alpha", "neft_alpha"),
    "train.pad_token": ("train_pad_token",),
    "train.router_aux_loss": ("router_aux_loss_coef", "moe_aux_loss_coeff", "moe_aux_loss_coef", "aux_loss_coef"),
    "train.router_z_loss": ("router_z_loss_coef", "moe_z_loss_coeff"),
    "train.router_bias_rate": ("moe_router_bias_update_rate",),
    "train.compile": ("torch_compile",),
    "train.deterministic": ("full_determinism", "deterministic_mode", "deterministic"),
    "train.eval_strategy": ("evaluation_strategy",),
    "train.eval_steps": ("eval_interval",),
    "train.eval_on_start": ("eval_at_start",),
    "train.eval_batch": ("per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_batch_size"),
    "train.metric_for_best": ("metric_for_best_model",),
    "train.early_stopping": ("early_stop_interval", "early_stopping_patience"),
    "checkpoint.save_steps": ("save_interval",),
    "checkpoint.asynchronous": ("async_save",),
    "logging.output": ("output_dir",),
    "logging.project": ("wandb_project", "swanlab_project", "trackio_project"),
    "logging.strategy": ("logging_strategy",),
    "logging.steps": ("logging_steps", "log_interval"),
    "backend.name": ("backend",),
}
"""Key → further flags that set it to their value unchanged."""

_ALL_UNLESS_SET = Fallback("data.loss_on", "all")
_TRANSLATED: TranslatedFlags = (
    (("model_type",), "model.path", "value", request("model_type")),
    (("task_type",), "model.task", "value", task_type),
    (("torch_dtype", "dtype"), "model.dtype", "value", choice(to.DTYPES)),
    (("bf16",), "model.dtype", "switch", when_on(Set("model.dtype", "bfloat16"), Request("no_bf16", True))),
    (("fp16", "use_fp16"), "model.dtype", "switch", when_on(Set("model.dtype", "float16"), Request("no_fp16", True))),
    (("attn_impl", "attn_implementation"), "model.attention", "value", choice(to.ATTENTION, "attn_impl")),
    (("use_flash_attn", "flash_attn"), "model.attention", "optional", choice(to.FLASH, "attn_impl")),
    (("use_cpu", "no_cuda"), "backend.device", "switch", when_on(Set("backend.device", "cpu"))),
    (("device",), "backend.device", "value", choice(to.DEVICES, "device")),
    (("cutoff_len",), "data.max_length", "value", to.cutoff),
    (("truncation_strategy",), "data.truncation", "value", to.truncation),
    (("packing_length",), "data.max_length", "value", request("packing_length")),
    (("val_size",), "data.split_ratio", "value", to.val_size),
    (("max_samples",), "data.train", "value", request("max_samples")),
    (("dataset_text_field",), "data.columns", "value", to.text_field),
    (("enable_thinking",), "data.template_kwargs", "switch", switch("data.template_kwargs.enable_thinking")),
    (("completion_only_loss",), "data.loss_on", "switch", when_on(Set("data.loss_on", "last_round"), _ALL_UNLESS_SET)),
    (("assistant_only_loss",), "data.loss_on", "switch", when_on(Set("data.loss_on", "assistant"), _ALL_UNLESS_SET)),
    (("train_on_inputs", "train_on_prompt"), "data.loss_on", "switch", when_on(Set("data.loss_on", "all"))),
    (("mask_history",), "data.loss_on", "switch", when_on(Set("data.loss_on", "last_round"))),
    (("freeze_parameters",), "tuner.freeze", "list", to.freeze),
    (("trainable_parameters",), "tuner.train_only", "list", to.trainable_parameters),
    (("use_peft",), "tuner.kind", "switch", when_on(Set("tuner.kind", "lora"), Set("tuner.kind", "full"))),
    (("loss_type",), "objective.loss", "value", to.loss_type),
    (("temperature",), "objective.temperature", "value", renamed("objective.temperature")),
    (("gamma",), "objective.gamma", "value", renamed("objective.gamma")),
    (("disable_dropout",), "tuner.dropout", "switch", to.no_dropout),
    (("shuffle_dataset",), "data.shuffle", "switch", switch("data.shuffle")),
    (("max_prompt_length",), "data.max_length", "value", request("max_prompt_length")),
    (("loss_scale",), "data.loss_on", "value", choice(to.LOSS_SCALES, "loss_scale")),
    (("train_type", "tuner_type", "sft_type", "finetuning_type"), "tuner.kind", "value", to.tuner),
    (("optimizer", "optim"), "optim.name", "value", to.optimizer),
    *(((f"use_{name}",), "optim.name", "switch", to.optimizer_by_switch(name)) for name in to.OPTIMIZERS_BY_SWITCH),
    (
        ("galore_target_modules", "galore_target", "apollo_target", "optim_target_modules"),
        "optim.targets",
        "list",
        to.targets_of_optimizer,
    ),
    (("optim_args",), "optim.name", "value", to.optimizer_arguments),
    (("lr_scheduler_type", "lr_scheduler"), "optim.schedule", "value", to.schedule),
    (("lr_decay_style",), "optim.schedule", "value", choice(to.DECAY_STYLES)),
    (("lr_scheduler_kwargs",), "optim.schedule_options", "mapping", to.schedule_options),
    (("sequence_parallel_size",), "parallel.sequence_parallel", "value", request("sequence_parallel_size")),
    (("max_steps", "train_iters"), "train.max_steps", "value", to.max_steps),
    (("resume_from_checkpoint", "resume"), "checkpoint.resume", "optional", to.resume),
    (("save_total_limit",), "checkpoint.keep", "value", to.keep),
    (
        ("save_only_model", "no_save_optim"),
        "checkpoint.optimizer_state",
        "switch",
        when_on(Set("checkpoint.optimizer_state", False)),
    ),
    (("resume_only_model",), "checkpoint.resume", "switch", request("resume_only_model")),
    (("load_best_model_at_end",), "train.metric_for_best", "switch", request("load_best_model_at_end")),
    (
        ("gradient_checkpointing_kwargs",),
        "train.gradient_checkpointing",
        "mapping",
        request("gradient_checkpointing_kwargs"),
    ),
    (("ddp_timeout",), "train.timeout_minutes", "value", to.timeout),
    (("report_to",), "logging.report_to", "list", to.report_to),
    (("deepspeed", "deepspeed_config"), "backend.name", "value", to.deepspeed),
    (("parallel_method",), "backend.name", "value", choice(to.METHODS)),
    *quantization_flags.FLAGS,
    (("merge_lora",), "export.to", "switch", when_on(Set("export.to", "hf"))),
)

_WIDER = frozenset({"train_type", "max_steps", "resume_from_checkpoint", "save_total_limit"})
"""Translated flags that take every value of their key unchanged, and further values."""
_IGNORED = ("local_rank",)
"""Flags that launchers add to a command; they repeat environment variables."""
OPEN_SECTIONS = ("backend", "export", "objective", "optim", "tuner")
"""Sections whose other keys belong to a plugin."""

MACHINES = ("nnodes", "node_rank", "master_addr", "master_port")
"""Flags of torchrun that stand for the environment variables of the same names."""

ABOUT_COMMAND: dict[str, Arity] = dict.fromkeys(("config", "nproc", "nproc_per_node", *MACHINES), "value")
"""Flags that configure the command instead of the run."""


def training_flags() -> FlagTable:
    """Return the flags of the commands that train."""
    return _training_flags(flag_topics())


@lru_cache(maxsize=16)
def _training_flags(_brought: tuple[FlagTopic, ...]) -> FlagTable:
    return FlagTable(
        fields=core_fields(),
        aliases=aliases(),
        help_command="swift sft --help all",
        depth=2,
        about_command=ABOUT_COMMAND,
        open_sections=OPEN_SECTIONS,
        ignored=_IGNORED,
        third_party=third_party_flags(),
        takes_positional=lambda argument: argument.endswith((".yaml", ".yml")),
    )


def aliases() -> dict[str, Alias]:
    """Flag → alias."""
    return _aliases(flag_topics())


@lru_cache(maxsize=16)
def _aliases(brought: tuple[FlagTopic, ...]) -> dict[str, Alias]:
    table = {}
    by_name = ((f"{section}.{name}", (name,)) for section, names in _WITHOUT_SECTION.items() for name in names)
    for key, flags in (*by_name, *_RENAMED.items()):
        field = core_fields().get(key)
        for flag in flags:
            table[flag] = Alias(flag, key, field.kind if field else "any", renamed(key), renames=True)
    for flags, key, arity, translate in _TRANSLATED:
        table.update({flag: Alias(flag, key, arity, translate, renames=flag in _WIDER) for flag in flags})
    for topic in brought:
        if topic.commands:
            continue
        added = {
            flag: Alias(flag, key, arity, translate) for flags, key, arity, translate in topic.flags for flag in flags
        }
        _check_new(topic, {*added, *(flag for flags in topic.meanings for flag in flags)}, table)
        table.update(added)
    return table


def _check_new(topic: FlagTopic, added: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a flag of a vocabulary that swift has already."""
    if taken := sorted({*known, *core_fields(), *ABOUT_COMMAND} & {*added}):
        raise PluginError(
            f"The vocabulary of {topic.title!r} adds the flag --{taken[0]}, which swift has already.",
            hint="Leave it out of the vocabulary. If that is not yours, uninstall its package: see swift plugins",
        )


def flags_of(key: str) -> tuple[str, ...]:
    """Return the aliases that help shows next to a key."""
    return _by_key(flag_topics()).get(key, ())


def synonyms_of(field: Field) -> tuple[str, ...]:
    """Return the aliases that take every value of a key and set it unchanged; `--bf16` is none of `model.dtype`."""
    return tuple(flag for flag in flags_of(field.key) if _is_synonym(aliases()[flag], field))


def flag_named(field: Field) -> str:
    """Return the usual flag for a key of a run: its first synonym, or the key."""
    return next(iter(synonyms_of(field)), field.key)


def _is_synonym(alias: Alias, field: Field) -> bool:
    return alias.renames or all(_sets_unchanged(alias, field, value) for value in _values_of(field))


def _sets_unchanged(alias: Alias, field: Field, value: Any) -> bool:
    try:
        settings = alias.translate(f"--{alias.flag}", value)
    except ConfigError:
        return False
    found = [each.value for each in settings if isinstance(each, Set) and each.key == field.key]
    return [coerce(field, each, alias.flag) for each in found] == [coerce(field, value, alias.flag)]


def _values_of(field: Field) -> tuple[Any, ...]:
    """Return all values of a key that lists them, and an example of those of another."""
    if field.kind == "switch":
        return "true", "false"
    if field.kind == "list":
        return (field.default or ("x",),)
    if field.kind == "mapping":
        return ({"x": 1},)
    example = {"integer": "7", "number": "0.5", "string": field.default or "x", "path": "x"}
    return (example[field.type_name],) if field.type_name in example else tuple(field.type_name.split(" | "))


@lru_cache(maxsize=16)
def _by_key(brought: tuple[FlagTopic, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for flag, alias in _aliases(brought).items():
        found.setdefault(alias.key, []).append(flag)
    return {key: tuple(flags) for key, flags in found.items()}
