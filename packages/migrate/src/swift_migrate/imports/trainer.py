"""The Hugging Face Trainer's `TrainingArguments`, which most programs extend.

Arguments that are also flags of swift are not listed here, but in `swift.parsing.aliases`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swift.config import names_in
from swift.errors import NotTrainable
from swift.plugins import plugin_names
from swift_migrate.imports.recipe import RecipeImport, is_off, number, ratio
from swift_migrate.imports.rules import Table, absent, apply, as_flag, choice, secret, unneeded

NAME = "Hugging Face Trainer"

TEMPLATE = (
    "the model's own chat template is used, and the line break after <|im_end|> of ChatML has no loss: "
    "check with swift config show sft run.yaml --sample 1"
)
"""Remark for programs with their own templates."""

_LIBRARY = unneeded("configures the program itself, and does not change the training")
_REPOSITORY = unneeded("training uploads nothing; afterwards type swift export RUN --push OWNER/NAME")
UPLOADING = absent("training uploads nothing; afterwards type swift export RUN --push OWNER/NAME")
_TOKENS = ("hub_token", "push_to_hub_token", "hf_hub_token", "ms_hub_token", "swanlab_token")
_LOGGING = unneeded("changes only what is logged")
_SPEED = unneeded("changes only speed or memory")

OPTIMIZERS = {
    name: {"optim.name": ours}
    for ours, names in {
        "adamw": (
            "adamw", "adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_hf", "adamw_apex_fused", "adam",
            "paged_adamw", "paged_adamw_32bit",
        ),
        "adamw_8bit": ("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "paged_adamw_8bit"),
        "adamw_4bit": ("adamw_4bit", "adamw_torch_4bit"),
        "adafactor": ("adafactor",),
        "lion": ("lion", "lion_32bit"),
        "muon": ("muon",),
        "sgd": ("sgd",),
        "galore": ("galore_adamw",),
        "apollo": ("apollo_adamw",),
    }.items()
    for name in names
}  # fmt: skip

NO_OPTIMIZER = (
    "unknown optimizer; set optim.name to adamw, adamw_8bit, adamw_4bit, adafactor, adam_mini, galore, q_galore, "
    "apollo, apollo_mini, muon, schedule_free, lion or sgd"
)

TABLE: Table = {
    **dict.fromkeys(
        (
            "local_rank", "use_mps_device", "ddp_static_graph", "debug", "restore_callback_states_from_checkpoint",
            "enable_jit_checkpoint", "past_index", "half_precision_backend", "fp16_opt_level", "fp16_backend",
            "include_inputs_for_metrics", "use_legacy_prediction_loop", "tpu_num_cores", "tpu_metrics_debug",
            "mp_parameters", "_n_gpu", "distributed_state", "deepspeed_plugin", "use_cache", "run_id", "ray_scope",
            "jit_mode_eval", "use_ipex", "xpu_backend", "torchdynamo", "project",
        ),
        _LIBRARY,
    ),
    **dict.fromkeys(
        (
            "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision", "hub_model_revision",
            "push_to_hub_model_id", "push_to_hub_organization", "trackio_space_id", "trackio_bucket_id",
            "trackio_static_space_id",
        ),
        _REPOSITORY,
    ),
    "push_to_hub": UPLOADING,
    **dict.fromkeys(_TOKENS, secret("belongs in the environment (HF_TOKEN), not in a file")),
    **dict.fromkeys(
        (
            "eval_do_concat_batches", "skip_memory_metrics", "plot_loss", "eval_delay",
        ),
        _LOGGING,
    ),
    **dict.fromkeys(
        (
            "dataloader_multiprocessing_context", "dataloader_in_order", "torch_empty_cache_steps", "bf16_full_eval",
            "fp16_full_eval", "liger_kernel_config",
        ),
        _SPEED,
    ),
    "ddp_timeout": unneeded("train.timeout_minutes stops a run without progress"),
    "train_sampling_strategy": choice(
        {"random": {"data.shuffle": True}, "sequential": {"data.shuffle": False}},
        "the order of samples is random, or that of the file (data.shuffle)",
    ),
    "parallelism_config": absent("set tp, cp and dp in the section parallel"),
    "sortish_sampler": absent("samples are not sorted by length"),
    "optim": choice(OPTIMIZERS, NO_OPTIMIZER),
}  # fmt: skip


def translate(run: RecipeImport) -> None:
    """Translate arguments of the Trainer without a model and data, as in `training_args.json`."""
    shared(run)
    apply(run, TABLE)
    run.set("tuner.kind", "full", "the Trainer trains all weights")
    run.changed("model, data", "", "the arguments have neither: add --model and --dataset, or write them into the file")
    defaults(run)


def shared(run: RecipeImport) -> None:
    """Translate the Trainer's arguments that depend on each other, for every program that extends them."""
    precision(run)
    duration(run)
    schedule(run)
    saving(run)
    evaluation(run)
    trackers(run)
    sharding(run)
    resuming(run)
    trust(run)


def defaults(run: RecipeImport, *, lr: float = 5e-5, epochs: float = 3.0, micro_batch: int = 8) -> None:
    """Make the Trainer's defaults explicit, since swift's differ or may change."""
    if run.get("train.max_steps") is None:
        run.default("train.epochs", epochs)
    if "train.global_batch" not in run.settings:
        run.default("train.accumulation", 1)
    if "optim.warmup_ratio" not in run.settings:
        run.default("optim.warmup_steps", 0)
    run.defaults("train", micro_batch=micro_batch, gradient_checkpointing=False, seed=42)
    run.defaults("optim", name="adamw", lr=lr, schedule="linear", weight_decay=0.0, max_grad_norm=1.0)
    if run.get("optim.name") != "adafactor":
        run.defaults("optim", beta1=0.9, beta2=0.999, eps=1e-8)


def lora_defaults(run: RecipeImport, rank: int, alpha: float, dropout: float, targets: list[str]) -> None:
    """Make the defaults of LoRA explicit, unless all weights are trained."""
    if run.get("tuner.kind") != "full":
        run.defaults("tuner", rank=rank, alpha=alpha, dropout=dropout, targets=targets)


def low_bit(run: RecipeImport, *, adapters: bool, section: str = "") -> None:
    """Translate the switches of bitsandbytes, which have no effect without adapters."""
    switches = {f"{section}load_in_4bit": "bnb-nf4", f"{section}load_in_8bit": "bnb-int8"}
    on = [name for name in switches if not is_off(run.take(name))]
    if on and adapters:
        run.set("tuner.quantize", switches[on[0]], on[0])


def low_bit_of(run: RecipeImport, key: str, bits: Any, method: str, kind: str) -> bool:
    """Translate a number of bits, read from `key`; return whether weights are stored in it."""
    if is_off(bits):
        return False
    stored = {"4": "bnb-nf4", "8": "bnb-int8"}.get(str(bits))
    if stored is None or method not in ("bnb", "bitsandbytes") or kind != "nf4":
        run.lose(key, f"{bits} by {method}", "only bitsandbytes in 4 (nf4) or 8 bits is imported")
        return False
    run.set("tuner.quantize", stored, key)
    return True


def precision(run: RecipeImport, default: str = "float32") -> None:
    """Translate bf16 and fp16; without either, the Trainer uses the model's precision."""
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        value = run.take(name)
        if not is_off(value):
            run.set("model.dtype", dtype, name)
    dtype = run.take("torch_dtype", "dtype")
    if dtype is not None and "model.dtype" not in run.settings:
        as_flag(run, "torch_dtype", dtype)
    run.default("model.dtype", default)


def duration(run: RecipeImport) -> None:
    """Translate max_steps, where -1 and 0 mean no limit."""
    steps = number(run.take("max_steps"))
    if steps is not None and steps > 0:
        run.set("train.max_steps", int(steps), "max_steps")
        run.take("num_train_epochs")


def schedule(run: RecipeImport) -> None:
    """Translate the warm-up and the schedule; steps take precedence over a ratio."""
    ratio, steps = number(run.take("warmup_ratio")), number(run.take("warmup_steps"))
    if steps and steps < 1:
        ratio, steps = steps, None
    if steps:
        run.set("optim.warmup_steps", int(steps), "warmup_steps")
    elif ratio is not None:
        run.set("optim.warmup_ratio", ratio, "warmup_ratio")
    kind, options = run.take("lr_scheduler_type"), run.take("lr_scheduler_kwargs")
    if kind is not None and "min_lr" in str(kind):
        _cosine_with_floor(run, str(kind), options if isinstance(options, dict) else {})
        return
    if kind is not None:
        as_flag(run, "lr_scheduler_type", kind)
    if options and not as_flag(run, "lr_scheduler_kwargs", options):
        run.lose("lr_scheduler_kwargs", options, "set optim.min_lr_ratio, optim.decay_ratio or optim.schedule_options")


def _cosine_with_floor(run: RecipeImport, kind: str, options: dict[str, Any]) -> None:
    rate, floor = number(options.get("min_lr_rate")), number(options.get("min_lr"))
    run.set("optim.schedule", "cosine", "lr_scheduler_type")
    if rate is None and floor is not None:
        rate = ratio(floor, number(run.values.get("learning_rate")) or 5e-5)
    if rate is not None:
        run.set("optim.min_lr_ratio", rate, "lr_scheduler_kwargs")
    else:
        run.lose("lr_scheduler_type", kind, "min_lr is missing: set optim.min_lr_ratio")


def saving(run: RecipeImport) -> None:
    """Translate save_strategy and save_steps."""
    strategy, steps = run.take("save_strategy"), run.take("save_steps")
    strategy = "no" if strategy is False else strategy
    if strategy is not None:
        as_flag(run, "save_strategy", strategy)
    if strategy in (None, "steps") and steps is not None:
        run.set("checkpoint.save_steps", steps, "save_steps")
    elif strategy in (None, "steps"):
        run.default("checkpoint.save_steps", 500)


def evaluation(run: RecipeImport) -> None:
    """Translate eval_strategy and eval_steps, which default to logging_steps."""
    strategy, steps = run.take("eval_strategy", "evaluation_strategy"), run.take("eval_steps")
    strategy = "no" if strategy is False else strategy
    if strategy is not None:
        as_flag(run, "eval_strategy", strategy)
    if steps is not None and strategy in (None, "steps"):
        run.set("train.eval_steps", steps, "eval_steps")
    elif strategy == "steps":
        run.set("train.eval_steps", run.values.get("logging_steps", 500), "eval_strategy")


def trackers(run: RecipeImport) -> None:
    """Translate report_to as far as the trackers are installed."""
    names = [name for name in names_in(run.take("report_to") or []) if name.lower() not in ("none", "all", "null")]
    installed = set(plugin_names("swift.observers"))
    for name in names:
        if name not in installed:
            run.unneeded("report_to", name, "is not installed; losses are in logging.jsonl and report.html")
    available = [name for name in names if name in installed]
    if available and available != ["tensorboard"]:
        as_flag(run, "report_to", available)


def sharding(run: RecipeImport) -> None:
    """Translate fsdp and deepspeed to backends."""
    fsdp, config = run.take("fsdp"), run.take("fsdp_config", "accelerate_fsdp_config")
    if not is_off(fsdp):
        _fsdp(run, " ".join(names_in(fsdp)), config if isinstance(config, dict) else {})
    elif config and not isinstance(config, dict):
        run.lose("fsdp_config", config, "the file is not read: set the keys of the section backend")
    deepspeed = run.take("deepspeed", "deepspeed_config", "deepspeed_config_file")
    if not is_off(deepspeed):
        zero(run, deepspeed)


def _fsdp(run: RecipeImport, modes: str, config: dict[str, Any]) -> None:
    run.set("backend.name", "fsdp", "fsdp")
    if "offload" in modes or not is_off(config.get("offload_params", config.get("fsdp_offload_params"))):
        run.set("backend.offload", True, "fsdp")
    if "hybrid" in modes:
        run.set("backend.hybrid", True, "fsdp")
    checkpointing = config.get("activation_checkpointing", config.get("fsdp_activation_checkpointing"))
    if not is_off(checkpointing):
        run.set("train.gradient_checkpointing", True, "fsdp_config")
    if config:
        run.unneeded("fsdp_config", "", "FSDP2 selects the layers to wrap itself")


def zero(run: RecipeImport, config: Any) -> None:
    """Translate a file or preset of DeepSpeed: the file if it exists, else the preset that its name suggests."""
    run.set("backend.name", "deepspeed", "deepspeed")
    if isinstance(config, dict):
        run.set("backend.config", config, "deepspeed")
        return
    name = str(config)
    for folder in (Path(), run.recipe.folder):
        if name.endswith(".json") and (folder / name).is_file():
            run.set("backend.config", str(folder / name), "deepspeed")
            return
    stage = re.search(r"(?:z|zero|stage|zero_)-?_?([0-3])", name.lower())
    if stage is None:
        run.lose("deepspeed", config, "the file does not exist: pass it with --deepspeed FILE")
        return
    offload = "_offload" if "offload" in name.lower() and stage[1] in "23" else ""
    preset = f"zero{stage[1]}{offload}"
    run.set("backend.config", preset, "deepspeed")
    if name != preset:
        run.changed("deepspeed", config, f"the file does not exist: the preset {preset} is used, by its name")


def resuming(run: RecipeImport) -> None:
    """Refer a third-party checkpoint to `swift convert`."""
    checkpoint = run.take("resume_from_checkpoint")
    if not is_off(checkpoint):
        how = "type swift convert CHECKPOINT --out FOLDER, then add --resume FOLDER"
        run.lose("resume_from_checkpoint", checkpoint, how)


def trust(run: RecipeImport, section: str = "") -> None:
    """Move the permission to run a model's Python code to the command line, since a file cannot allow it."""
    key = f"{section}trust_remote_code"
    allowed = run.take(key, "trust_remote_code_model")
    if not is_off(allowed):
        run.changed(key, allowed, "a file cannot allow it; add the flag if you trust the model's code")
        run.flags.append("--trust_remote_code true")


def first_rows(run: RecipeImport, key: str, split: str) -> str:
    """Return what follows the name of a data set for the split train, or `#N` for its first rows."""
    found = re.fullmatch(r"train(?:\[:(\d+)\])?", split)
    if found is None:
        run.lose(key, split, "only the split train, or its first N rows (NAME#N), can be read")
    return f"#{found[1]}" if found is not None and found[1] else ""


def parallel_sizes(run: RecipeImport, keys: Iterable[str]) -> Iterator[str]:
    """Remove sizes that divide nothing, and yield the keys of the others."""
    for key in keys:
        size = number(run.values.get(key))
        if is_off(run.values.get(key)) or (size is not None and size <= 1):
            run.take(key)
        else:
            yield key


def refuse(run: RecipeImport, what: str) -> NotTrainable:
    """Return the error for a task that is not supported, or whose recipes differ too much to be imported."""
    if what == "PPO":
        return NotTrainable(
            f"{run.recipe.source} is {run.program}'s recipe of {what}, which is not imported.",
            hint="Write the command by hand: swift rlhf --rlhf_type ppo (docs/how-to/ppo.md)",
        )
    return NotTrainable(
        f"{run.recipe.source} is {run.program}'s recipe of {what}, which swift does not support.",
        hint="For supported training see swift sft --help and swift rlhf --help",
    )
