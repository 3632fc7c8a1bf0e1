"""NeMo Automodel's recipes: YAML whose sections name Python objects with `_target_`."""

from __future__ import annotations

import re
from typing import Any

from swift.config import names_in
from swift_migrate.imports import trainer
from swift_migrate.imports.components import adam, last_name, skip_own_objects
from swift_migrate.imports.recipe import RecipeImport, is_off, number, ratio
from swift_migrate.imports.rules import Table, absent, apply, changed, choice, to, unneeded

NAME = "NeMo Automodel"

_TEXT_RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction",)
_CHAT = "the model's chat template writes prompts: check with config show --sample 1"

TABLE: Table = {
    "step_scheduler.global_batch_size": to("train.global_batch"),
    "step_scheduler.local_batch_size": to("train.micro_batch"),
    "step_scheduler.ckpt_every_steps": to("checkpoint.save_steps"),
    "step_scheduler.val_every_steps": to("train.eval_steps"),
    "step_scheduler.max_steps": to("train.max_steps"),
    "step_scheduler.num_epochs": to("train.epochs"),
    "rng.seed": to("train.seed"),
    "seed": to("train.seed"),
    "checkpoint.checkpoint_dir": to("logging.output"),
    "optimizer.lr": to("optim.lr"),
    "optimizer.weight_decay": to("optim.weight_decay"),
    "optimizer.eps": to("optim.eps"),
    "lr_scheduler.lr_decay_style": choice(
        {name: {"optim.schedule": name} for name in ("cosine", "linear", "constant")},
        "unknown schedule: see optim.schedule",
    ),
    "lr_scheduler.lr_warmup_steps": to("optim.warmup_steps"),
    "lr_scheduler.lr_decay_steps": absent("the learning rate decays until the last step"),
    "peft.dim": to("tuner.rank"),
    "peft.alpha": to("tuner.alpha"),
    "peft.dropout": to("tuner.dropout"),
    "peft.use_dora": to("tuner.dora"),
    "peft.exclude_modules": absent("name the modules to adapt in tuner.targets"),
    "peft.moe_rank_scaling": absent("all adapters have the rank of tuner.rank"),
    "model.pretrained_model_name_or_path": to("model.path"),
    "model.num_nextn_predict_layers": absent("multi-token prediction is not implemented"),
    "dataset.seq_length": to("data.max_length"),
    "dataset.column_mapping": changed("set data.columns"),
    "dataset.chat_template": absent("save the template in a file, and set model.chat_template to it"),
    "dataset.shuffle_seed": unneeded("the seed is train.seed"),
    "dataset.answer_only_loss_mask": unneeded("only assistant messages have loss, unless data.loss_on is set"),
    "dataset.truncation": changed("longer samples are truncated on the right (data.truncation)"),
    "dataset.padding": unneeded("padding is masked"),
    "dataset.pad_to_max_length": unneeded("padding is masked"),
    "packed_sequence.split_across_pack": absent("packs contain whole samples"),
    "packed_sequence.packing_strategy": unneeded("changes only speed"),
    "dataloader.shuffle": to("data.shuffle"),
    "dataloader.drop_last": absent("the last, smaller batch of an epoch is always trained on"),
    "distributed.tp_size": to("parallel.tp"),
    "distributed.cp_size": to("parallel.cp"),
    "distributed.pp_size": to("parallel.pp"),
    "distributed.ep_size": to("parallel.ep"),
    "distributed.dp_replicate_size": to("parallel.dp_replicate"),
    "distributed.sequence_parallel": to("parallel.sequence_parallel"),
    "distributed.activation_checkpointing": to("train.gradient_checkpointing"),
    "compile.enabled": to("train.compile"),
    "clip_grad_norm.max_norm": to("optim.max_grad_norm"),
    "fp8.enabled": absent("FP8 is an option of the backend: --fp8 hybrid"),
    "neftune.noise_alpha": to("train.neftune_alpha"),
    "loss_fn._target_": unneeded("the loss of sft is cross entropy"),
    "dist_env.timeout_minutes": unneeded("train.timeout_minutes stops a run without progress"),
    "freeze_config.freeze_embeddings": absent("set tuner.freeze to patterns of weights"),
    "freeze_config.freeze_language_model": absent("set tuner.freeze_llm"),
}

_MEANT = re.compile(
    r"dataset\.(split|path_or_dataset(_id)?|dataset_name|num_samples_limit|limit_dataset_samples|path|paths|name|subset)$"
    r"|optimizer\.betas|peft\.(target_modules|match_all_linear)|quantization\."
)
_QUIET = re.compile(
    r"(ci|wandb|mlflow|dist_env|benchmark|nvtx|tokenizer|processor|validation_dataset|validation_dataloader|dataloader|"
    r"_validation_dataset|_validation_dataloader|loss_fn|rng|distributed|distributed_config|autopipeline|parallelizer|"
    r"checkpoint|compile|packed_sequence|model|moe_metrics|performance|prewarm|optimizer|fp8|dataset|peft|step_scheduler|"
    r"skypilot|recipe|separate_meshes|freeze_config|lr_scheduler|ddp|fsdp|ema|tool_call_eval|_\w+)(\.|$)"
)
"""Sections whose other keys are about NeMo's own objects."""


def translate(run: RecipeImport) -> None:
    """Translate a recipe that trains a language model on text; raise `NotTrainable` for others."""
    recipe = last_name(f".{run.take('recipe', 'recipe._target_') or _TEXT_RECIPES[0]}")
    if recipe not in _TEXT_RECIPES:
        raise trainer.refuse(run, recipe)
    for section in ("teacher_model", "dllm", "flow_matching", "diffusion", "qat"):
        if any(name == section or name.startswith(f"{section}.") for name in run.values):
            raise trainer.refuse(run, f"the section {section}")
    run.set("objective.name", "sft", "recipe")
    _tuner(run)
    _data(run)
    _optimizer(run)
    _distributed(run)
    trainer.trust(run, "model.")
    _precision(run)
    size = number(run.take("packed_sequence.packed_sequence_size"))
    if size:
        run.set("data.packing", True, "packed_sequence.packed_sequence_size")
        run.set("data.max_length", int(size), "packed_sequence.packed_sequence_size")
    enabled = run.take("checkpoint.enabled")
    if enabled is not None and is_off(enabled):
        run.changed("checkpoint.enabled", enabled, "a checkpoint is saved at the end")
    skip_own_objects(run, TABLE, _QUIET, _MEANT)
    apply(run, TABLE, flags=False)
    _defaults(run)


def _tuner(run: RecipeImport) -> None:
    adapters = any(name.startswith("peft.") for name in run.values)
    run.set("tuner.kind", "lora" if adapters else "full", "peft" if adapters else f"{NAME}'s default")
    targets, linear = run.take("peft.target_modules"), run.take("peft.match_all_linear")
    run.take("peft._target_")
    trainer.low_bit(run, adapters=adapters, section="quantization.")
    for key in [key for key in run.values if key.startswith("quantization.")]:
        run.unneeded(key, run.take(key), "changes only how the scales are stored")
    if not adapters:
        return
    names = names_in(targets or [])
    if (not is_off(linear)) or names in (["*"], ["*_proj"]) or not names:
        run.set("tuner.targets", ["all-linear"], "peft.target_modules")
    elif any("*" in name for name in names):
        run.set("tuner.targets", [_pattern(name) for name in names], "peft.target_modules")
    else:
        run.set("tuner.targets", names, "peft.target_modules")


def _pattern(name: str) -> str:
    """Return the last part of a pattern such as `*.self_attn.q_a_proj`, which is what names a module here."""
    return name.rpartition(".")[2].strip("*") or name


def _data(run: RecipeImport) -> None:
    built = last_name(run.take("dataset._target_"))
    name = run.take(
        "dataset.path_or_dataset_id", "dataset.path_or_dataset", "dataset.dataset_name", "dataset.path", "dataset.paths"
    )
    subset, split = run.take("dataset.subset", "dataset.name"), str(run.take("dataset.split") or "train")
    rows = number(run.take("dataset.num_samples_limit", "dataset.limit_dataset_samples"))
    tail = trainer.first_rows(run, "dataset.split", split) or (f"#{int(rows)}" if rows else "")
    if name is None:
        run.lose("dataset._target_", built, "its data is unknown: set data.train")
    else:
        names = names_in(name)
        run.set("data.train", [f"{each}:{subset}{tail}" if subset else f"{each}{tail}" for each in names], "dataset")
    if built in ("HellaSwag", "make_squad_dataset"):
        run.lose("dataset._target_", built, "these columns are not supported: convert them to messages")
    elif built:
        run.changed("dataset._target_", built, _CHAT)


def _optimizer(run: RecipeImport) -> None:
    built = last_name(run.take("optimizer._target_"))
    run.set("optim.name", "adamw", "optimizer._target_")
    if built not in ("Adam", "AdamW", "FusedAdam", "FlashAdamW", ""):
        run.lose("optimizer._target_", built, "not imported: set optim.name")
    elif built in ("Adam", "FusedAdam") and number(run.values.get("optimizer.weight_decay")):
        run.changed("optimizer._target_", built, "weight decay is decoupled (AdamW), not added to the gradient")
    adam(run)
    floor, peak = number(run.take("lr_scheduler.min_lr")), number(run.values.get("optimizer.lr"))
    if floor and peak:
        run.set("optim.min_lr_ratio", ratio(floor, peak), "lr_scheduler.min_lr")
    if "lr_scheduler.lr_decay_style" not in run.values:
        scheduled = floor is not None or any(name.startswith("lr_scheduler.") for name in run.values)
        run.set("optim.schedule", "cosine" if scheduled else "constant", f"{NAME}'s default")


def _distributed(run: RecipeImport) -> None:
    strategy = run.take("distributed.strategy")
    if any(name.startswith("distributed.") for name in run.values) or strategy is not None:
        run.set("backend.name", "fsdp", "distributed.strategy")
    sizes = (f"distributed.{name}_size" for name in ("tp", "cp", "pp", "ep", "dp_replicate"))
    for key in trainer.parallel_sizes(run, sizes):
        if key in ("distributed.pp_size", "distributed.ep_size"):
            run.set("backend.name", "megatron", key)
    run.take("distributed.dp_size")


def _precision(run: RecipeImport) -> None:
    dtype: Any = run.take("model.torch_dtype", "model.dtype")
    names = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "float32": "float32"}
    run.set(
        "model.dtype",
        names.get(last_name(f".{dtype}"), "bfloat16"),
        "model.torch_dtype" if dtype else f"{NAME}'s default",
    )
    attention = run.take("model.attn_implementation")
    if attention in ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"):
        run.set("model.attention", attention, "model.attn_implementation")


def _defaults(run: RecipeImport) -> None:
    run.default("data.truncation", "right")
    if "data.max_length" not in run.settings:
        run.changed("dataset.seq_length", "null", "NeMo does not truncate; the limit here is 2048 (data.max_length)")
    run.default("optim.weight_decay", 0.01)
    trainer.defaults(run, epochs=10.0, micro_batch=1)
    trainer.lora_defaults(run, 8, 32, 0.0, ["all-linear"])
