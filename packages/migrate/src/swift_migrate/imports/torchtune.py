"""torchtune's recipes: YAML whose sections name Python objects with `_component_`."""

from __future__ import annotations

import re

from swift.config import names_in
from swift_migrate.imports import trainer
from swift_migrate.imports.components import adam, last_name, skip_own_objects
from swift_migrate.imports.recipe import RecipeImport, is_off, number
from swift_migrate.imports.rules import Table, absent, apply, changed, choice, to, unneeded

NAME = "torchtune"

_LIBRARY = unneeded("configures torchtune itself, and does not change the training")
_SOURCES = {
    "alpaca_dataset": "tatsu-lab/alpaca",
    "alpaca_cleaned_dataset": "yahma/alpaca-cleaned",
    "slimorca_dataset": "Open-Orca/SlimOrca-Dedup",
    "samsum_dataset": "Samsung/samsum",
    "grammar_dataset": "liweili/c4_200m",
    "stack_exchange_paired_dataset": "lvwerra/stack-exchange-paired",
    "hh_rlhf_helpful_dataset": "RLHFlow/HH-RLHF-Helpful-standard",
    "wikitext_dataset": "EleutherAI/wikitext_document_level",
    "cnn_dailymail_articles_dataset": "ccdv/cnn_dailymail",
}
_LEARN_ALL = ("alpaca_dataset", "alpaca_cleaned_dataset")
_PLAIN_TEXT = ("text_completion_dataset", "wikitext_dataset", "cnn_dailymail_articles_dataset")
_OPTIMIZERS = {
    **dict.fromkeys(("AdamW", "PagedAdamW"), "adamw"),
    **dict.fromkeys(("PagedAdamW8bit", "AdamW8bit"), "adamw_8bit"),
}
_OTHER_METHODS = {
    "kd_loss": "distillation",
    "teacher_model": "distillation",
    "ppo_epochs": "PPO or GRPO",
    "grpo_samples": "GRPO",
    "orchestration": "GRPO",
    "quantizer": "quantization-aware training, or quantization",
}

TABLE: Table = {
    "epochs": to("train.epochs"),
    "batch_size": to("train.micro_batch"),
    "batch_size_val": to("train.eval_batch"),
    "gradient_accumulation_steps": to("train.accumulation"),
    "enable_activation_checkpointing": to("train.gradient_checkpointing"),
    "compile": to("train.compile"),
    "seed": to("train.seed"),
    "shuffle": to("data.shuffle"),
    "output_dir": to("logging.output"),
    "log_every_n_steps": to("logging.steps"),
    "run_val_every_n_steps": to("train.eval_steps"),
    "clip_grad_norm": to("optim.max_grad_norm"),
    "save_every_n_steps": to("checkpoint.save_steps"),
    "tokenizer.max_seq_len": to("data.max_length"),
    "dataset.packed": to("data.packing"),
    "dtype": choice(
        {"bf16": {"model.dtype": "bfloat16"}, "fp16": {"model.dtype": "float16"}, "fp32": {"model.dtype": "float32"}},
        "model.dtype is bfloat16, float16 or float32",
    ),
    "optimizer.lr": to("optim.lr"),
    "optimizer.weight_decay": to("optim.weight_decay"),
    "optimizer.eps": to("optim.eps"),
    "lr_scheduler.num_warmup_steps": to("optim.warmup_steps"),
    "loss.beta": to("objective.beta"),
    "loss.label_smoothing": to("objective.label_smoothing"),
    "tensor_parallel_dim": to("parallel.tp"),
    "context_parallel_dim": to("parallel.cp"),
    "data_parallel_replicate_dim": to("parallel.dp_replicate"),
    "max_steps_per_epoch": absent("an epoch is the whole data set; set train.max_steps to limit the run"),
    "dataset.column_map": changed("set data.columns"),
    "dataset.new_system_prompt": to("data.system"),
    "dataset.conversation_style": unneeded("swift detects the format of the rows"),
    "dataset.conversation_column": changed("swift reads messages and conversations; set data.columns for another name"),
    "dataset.column": changed("swift reads the column text; set data.columns for another name"),
    "dataset.prompt_template": absent("the model's chat template writes prompts"),
    "tokenizer.prompt_template": absent("the model's chat template writes prompts"),
    "tensor_parallel_plan._component_": changed("the backend selects the layers to divide"),
    "optimizer.fused": unneeded("changes only speed"),
    "optimizer_in_bwd": changed("updates follow the backward pass, with more memory and gradient clipping"),
    "save_adapter_weights_only": unneeded("a checkpoint has the adapter and the optimizer state"),
    "custom_sharded_layers": unneeded("the backend selects what it shards"),
    "model.quantize_base": changed("quantization is 4 bits by bitsandbytes (nf4)"),
    "model.lora_dropout": to("tuner.dropout"),
    "model.lora_rank": to("tuner.rank"),
    "model.lora_alpha": to("tuner.alpha"),
    "model.use_dora": to("tuner.dora"),
    "keep_last_n_checkpoints": to("checkpoint.keep"),
    "checkpointer.keep_last_n_checkpoints": to("checkpoint.keep"),
    **dict.fromkeys(
        ("enable_activation_offloading", "fsdp_reshard_after_forward", "ac_mode", "ac_option", "use_flex",
         "memory_efficient_fsdp_wrap", "low_cpu_ram", "data_parallel_shard_dim"),
        unneeded("changes only speed or memory"),
    ),
    **dict.fromkeys(
        ("device", "log_peak_memory_stats", "log_level", "name", "base_model_path", "save_every_n_epochs",
         "use_distributed_state_dict", "enable_async_checkpointing", "save_last_epoch_only", "collate_fn",
         "debug_logging_enabled", "debug_num_samples_per_step", "dataset_val", "recipe", "cudnn_deterministic_mode"),
        _LIBRARY,
    ),
}  # fmt: skip

_QUIET = re.compile(
    r"(profiler|metric_logger|checkpointer|tokenizer|model|ref_checkpointer|dataset_val|dataset|loss)\."
)
"""Sections whose other keys are about torchtune's own objects."""
_MEANT = re.compile(
    r"(dataset\.(source|split|subset|data_files|data_dir|train_on_input|partition|filter_fn)|loss\.(gamma|tau))"
)


def translate(run: RecipeImport) -> None:
    """Translate a recipe for fine-tuning or DPO; raise `NotTrainable` for others."""
    for key, what in _OTHER_METHODS.items():
        if any(name == key or name.startswith(f"{key}.") for name in run.values):
            raise trainer.refuse(run, what)
    if "optimizer._component_" not in run.values:
        raise trainer.refuse(run, "generation, evaluation or conversion")
    _objective(run)
    _model(run)
    _data(run)
    _optimizer(run)
    offload = run.take("fsdp_cpu_offload", "fsdp.cpu_offload")
    if not is_off(offload):
        run.set("backend.name", "fsdp", "fsdp_cpu_offload")
        run.set("backend.offload", True, "fsdp_cpu_offload")
    resume = run.take("resume_from_checkpoint")
    if not is_off(resume):
        run.lose("resume_from_checkpoint", resume, "torchtune's checkpoints cannot be read")
    _sizes(run)
    replicas = number(run.values.get("data_parallel_replicate_dim"))
    if replicas is not None and replicas <= 1:
        run.take("data_parallel_replicate_dim")
    skip_own_objects(run, TABLE, _QUIET, _MEANT)
    apply(run, TABLE, flags=False)
    _defaults(run)


def _sizes(run: RecipeImport) -> None:
    """Select a backend with tensor parallelism, and read max_steps_per_epoch of a single epoch as max_steps."""
    ways, steps = number(run.values.get("tensor_parallel_dim")), number(run.values.get("max_steps_per_epoch"))
    if ways is not None and ways > 1:
        run.set("backend.name", "fsdp", "tensor_parallel_dim")
    if steps and number(run.values.get("epochs", 1)) == 1:
        run.set("train.max_steps", int(steps), "max_steps_per_epoch")
        run.take("max_steps_per_epoch", "epochs")
        run.take("epochs")


def _objective(run: RecipeImport) -> None:
    loss = last_name(run.take("loss._component_"))
    losses = {"DPOLoss": "sigmoid", "RSOLoss": "hinge", "IPOLoss": "ipo"}
    if loss in losses:
        run.command = "rlhf"
        run.set("objective.name", "dpo", "loss._component_")
        run.set("objective.loss", losses[loss], "loss._component_")
    elif "CrossEntropy" in loss or "CEWithChunkedOutput" in loss or not loss:
        run.set("objective.name", "sft", "loss._component_")
    else:
        raise trainer.refuse(run, f"the loss {loss}")


def _model(run: RecipeImport) -> None:
    built = last_name(run.take("model._component_"))
    folder, kind = run.take("checkpointer.checkpoint_dir"), last_name(run.take("checkpointer._component_"))
    if folder is not None:
        run.set("model.path", str(folder), "checkpointer.checkpoint_dir")
    if kind and "HF" not in kind:
        run.lose("checkpointer._component_", kind, "download the weights in Hugging Face format")
    adapters = built.startswith(("lora_", "qlora_"))
    run.set("tuner.kind", "lora" if adapters else "full", f"model {built}")
    if "vision" in built or "encoder_trainable" in str(list(run.values)):
        raise trainer.refuse(run, "a model with images")
    modules = names_in(run.take("model.lora_attn_modules") or [])
    mlp, output = run.take("model.apply_lora_to_mlp"), run.take("model.apply_lora_to_output")
    quantised = run.take("model.quantize_base")
    if not adapters:
        return
    names = ["o_proj" if name == "output_proj" else name for name in modules]
    names += ["gate_proj", "up_proj", "down_proj"] if not is_off(mlp) else []
    names += ["lm_head"] if not is_off(output) else []
    run.set("tuner.targets", names or ["q_proj", "v_proj"], "model.lora_attn_modules")
    if built.startswith("qlora_") or (not is_off(quantised)):
        run.set("tuner.quantize", "torchao-nf4", f"model {built}")


def _data(run: RecipeImport) -> None:
    built, source = last_name(run.take("dataset._component_")), run.take("dataset.source")
    files, subset = run.take("dataset.data_files"), run.take("dataset.subset", "dataset.name")
    split, listed = str(run.take("dataset.split") or "train"), run.take("dataset", "datasets")
    name = source if source not in (None, "json", "csv", "parquet") else None
    name = name or (names_in(files)[0] if files else None) or _SOURCES.get(built)
    if isinstance(listed, list):
        run.lose("dataset", [last_name(each.get("_component_")) for each in listed if isinstance(each, dict)],
                 "set data.train to the data sets")  # fmt: skip
    elif name is None:
        run.lose("dataset._component_", built, "its data is unknown: set data.train")
    else:
        run.set("data.train", [f"{name}:{subset}" if subset else str(name)], "dataset")
    if built in _PLAIN_TEXT:
        run.command = "pt"
        run.set("objective.name", "pt", f"dataset {built}")
    elif built:
        run.changed("dataset._component_", built, "the model's chat template writes prompts: check with config show "
                    "--sample 1")  # fmt: skip
    _part(run, split)
    everything = run.take("dataset.train_on_input")
    learned = (built in _LEARN_ALL) if everything is None else not is_off(everything)
    if run.command == "sft":
        origin = f"{NAME}'s default" if everything is None else "dataset.train_on_input"
        run.set("data.loss_on", "all" if learned else "assistant", origin)
    run.take("dataset_val._component_", "dataset_val.split")


def _part(run: RecipeImport, split: str) -> None:
    """Translate `train[:95%]`, which holds out the rest."""
    share = re.fullmatch(r"train\[:(\d+)%\]", split)
    if share is not None and 50 <= int(share[1]) < 100:
        run.set("data.split_ratio", round(1 - int(share[1]) / 100, 4), "dataset.split")
        run.changed("dataset.split", split, "the other rows are the validation set, selected at random")
    elif split != "train":
        run.lose("dataset.split", split, "only the split train, or its first N rows (NAME#N), can be read")


def _optimizer(run: RecipeImport) -> None:
    built = last_name(run.take("optimizer._component_"))
    name = _OPTIMIZERS.get(built)
    if name is None:
        run.lose("optimizer._component_", built, "not imported: set optim.name")
    run.set("optim.name", name or "adamw", "optimizer._component_")
    adam(run)
    schedule = last_name(run.take("lr_scheduler._component_"))
    if schedule in ("", "get_cosine_schedule_with_warmup"):
        run.set(
            "optim.schedule", "cosine" if schedule else "constant", "lr_scheduler" if schedule else f"{NAME}'s default"
        )
    else:
        run.lose("lr_scheduler._component_", schedule, "unknown schedule: see optim.schedule")


def _defaults(run: RecipeImport) -> None:
    run.default("train.epochs", 1)
    run.defaults("optim", weight_decay=0.01, max_grad_norm=0.0)
    run.default("data.truncation", "right")
    if run.command == "rlhf":
        run.default("objective.beta", 0.1)
    if "data.max_length" not in run.settings:
        run.changed(
            "tokenizer.max_seq_len", "null", "torchtune does not truncate; the limit here is 2048 (data.max_length)"
        )
    trainer.defaults(run, epochs=1.0, micro_batch=1)
    trainer.lora_defaults(run, 8, 16, 0.0, ["q_proj", "v_proj"])
