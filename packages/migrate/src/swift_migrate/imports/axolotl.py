"""axolotl's YAML."""

from __future__ import annotations

from typing import Any

from swift.config import names_in
from swift_migrate.imports import grpo, trainer
from swift_migrate.imports.recipe import RecipeImport, is_off, number, ratio
from swift_migrate.imports.rules import Table, absent, apply, as_flag, changed, choice, to, unneeded, when_on

NAME = "axolotl"

_SIZES = (
    "tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "dp_shard_size", "dp_replicate_size",
    "expert_parallel_size",
)  # fmt: skip
_RL = ("dpo", "ipo", "orpo", "kto", "simpo")
_LIBRARY = unneeded("configures axolotl itself, and does not change the training")
_SPEED = unneeded("changes only speed or memory")
_VOCABULARY = absent("the vocabulary cannot be extended: change the model's tokenizer first")
_LOSS = absent("this loss is not implemented; you can write it as an objective")

TABLE: Table = {
    **trainer.TABLE,
    "base_model": to("model.path"),
    "revision_of_model": to("model.revision"),
    "num_epochs": to("train.epochs"),
    "val_set_size": to("data.split_ratio"),
    "dataset_processes": to("data.workers"),
    "dataset_prepared_path": changed("tokenized data is cached in data.cache"),
    "chat_template": changed("the model's template is used; for another, set model.chat_template to a Jinja file"),
    "chat_template_jinja": absent("save the template in a file, and set model.chat_template to it"),
    "optimizer": choice(trainer.OPTIMIZERS, trainer.NO_OPTIMIZER),
    "lora_model_dir": to("tuner.adapter"),
    "lora_modules_to_save": to("tuner.modules_to_save"),
    "peft_use_rslora": to("tuner.rslora"),
    "peft_use_dora": to("tuner.dora"),
    "peft_init_lora_weights": absent("set tuner.init"),
    "lora_target_parameters": to("tuner.target_parameters"),
    "lora_layers_to_transform": absent("select the layers with a pattern in tuner.target_regex"),
    "unfrozen_parameters": to("tuner.train_only"),
    "flash_attention": when_on({"model.attention": "flash_attention_2"}),
    "sdp_attention": when_on({"model.attention": "sdpa"}),
    "eager_attention": when_on({"model.attention": "eager"}),
    "xformers_attention": changed("the fastest kernel on the machine is used"),
    "flex_attention": changed("the fastest kernel on the machine is used"),
    "sequence_parallel_degree": to("parallel.cp"),
    "dp_shard_size": to("parallel.dp_shard"),
    "dp_replicate_size": to("parallel.dp_replicate"),
    "dpo_label_smoothing": to("objective.label_smoothing"),
    "kto_desirable_weight": to("objective.desirable_weight"),
    "kto_undesirable_weight": to("objective.undesirable_weight"),
    "rpo_alpha": absent("dpo has no likelihood term; cpo and orpo have one"),
    "group_by_length": absent("samples are not sorted by length, so their order differs"),
    "curriculum_sampling": when_on({"data.shuffle": False}),
    "shuffle_merged_datasets": changed("data.shuffle shuffles the samples in each epoch"),
    "shuffle_before_merging_datasets": changed("data.shuffle shuffles the samples in each epoch"),
    "dataset_exact_deduplication": absent("duplicate samples are kept"),
    "min_sample_len": absent("short samples are kept"),
    "sample_packing_sequentially": changed("packing is best-fit"),
    "pad_to_sequence_len": _SPEED,
    "hub_model_id": trainer.UPLOADING,
    "special_tokens": changed("the model's own special tokens are used; padding is masked"),
    "eot_tokens": changed("the chat template ends a turn"),
    "tokens": _VOCABULARY,
    "added_tokens_overrides": _VOCABULARY,
    "resize_token_embeddings_to_32x": changed("embeddings are not resized"),
    "lr_quadratic_warmup": absent("the warm-up is linear"),
    "cosine_constant_lr_ratio": absent("write optim.schedule: wsd"),
    **dict.fromkeys(
        ("lr_groups", "embedding_lr", "embedding_lr_scale"),
        absent("separate learning rates are not implemented"),
    ),
    **dict.fromkeys(("model_config", "overrides_of_model_config"), absent("edit the model's config.json")),
    "rope_scaling": absent("type --rope_scaling yarn --max_model_len N"),
    **dict.fromkeys(
        ("model_quantization_config", "model_quantization_config_kwargs"),
        changed("a quantized model is loaded by its config.json"),
    ),
    "reinit_weights": to("model.random_weights"),
    "noisy_embedding_alpha": to("train.neftune_alpha"),
    "relora": absent("ReLoRA is not implemented"),
    "lisa_n_layers": absent("LISA is a tuner: --train_type lisa --tuner.layers N"),
    "gptq": absent("models quantized by GPTQ cannot be trained"),
    "qat": absent("quantization-aware training is not implemented; swift export --quant quantizes afterwards"),
    "fp8": absent("FP8 is an option of the backend: --fp8 hybrid"),
    "peft": absent("further options of PEFT are not supported"),
    "trl": absent("applies only to online learning"),
    "use_onebitllms": absent("1-bit training is not implemented"),
    "pretraining_dataset": to("data.train"),
    **dict.fromkeys(("use_eaft", "eaft_alpha", "eaft_k", "ebft"), _LOSS),
    **dict.fromkeys(("use_wandb", "use_swanlab", "use_mlflow", "use_comet", "use_tensorboard", "use_trackio"),
           changed("losses are in logging.jsonl, report.html and TensorBoard; --report_to selects trackers")),
    **dict.fromkeys(
        (
            "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "liger_rope", "liger_cross_entropy",
            "liger_fused_linear_cross_entropy", "liger_rms_norm_gated", "cut_cross_entropy", "lora_mlp_kernel",
            "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel", "use_kernels", "use_scattermoe",
            "use_sonicmoe", "fused_attn_kernel", "experts_implementation", "activation_offloading", "tiled_mlp",
            "flash_attn_cross_entropy", "flash_attn_rms_norm", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv",
            "flash_optimum", "flex_attn_compile_kwargs", "gemma4_hybrid_attn_impl", "llama4_linearized_experts",
            "sample_packing_eff_est", "sample_packing_seq_len_multiplier", "sample_packing_bin_size",
            "sample_packing_group_size", "max_packed_sequence_len", "total_num_tokens", "eval_sample_packing",
            "streaming_multipack_buffer_size", "torchdistx_path", "use_dsv4_kernels", "use_glm_dsa_kernels",
            "dsv4_fp4_grouped_mode", "quantize_moe_experts", "expert_parallel_num_nvl_bytes",
            "expert_parallel_token_capacity", "ring_attn_func", "heads_k_stride", "sdp_kernel", "bnb_config_kwargs",
        ),
        _SPEED,
    ),
    **dict.fromkeys(
        (
            "model_type", "tokenizer_type", "tokenizer_config", "base_model_config", "tokenizer_use_fast",
            "tokenizer_legacy", "tokenizer_use_mistral_common", "is_falcon_derived_model", "is_llama_derived_model",
            "is_mistral_derived_model", "is_qwen_derived_model", "cls_model_config", "processor_type",
            "skip_prepare_dataset", "strict", "wandb_project", "wandb_entity", "wandb_watch", "wandb_name",
            "wandb_run_id", "wandb_log_model", "swanlab_project", "swanlab_experiment_name", "swanlab_description",
            "swanlab_mode", "swanlab_log_completions", "swanlab_completion_log_interval",
            "swanlab_completion_max_buffer", "mlflow_experiment_name", "use_otel_metrics", "otel_metrics_host",
            "otel_metrics_port", "loss_watchdog_threshold", "loss_watchdog_patience", "eval_table_size",
            "eval_max_new_tokens", "hf_use_auth_token", "push_dataset_to_hub", "device_map", "device",
            "experimental_skip_move_to_device", "auto_resume_from_checkpoints", "lora_fan_in_fan_out", "lora_on_cpu",
            "ddp", "ddp_timeout", "gptq_groupsize", "gptq_model_v1", "gptq_disable_exllama", "fsdp_version",
            "base_model_ignore_patterns", "project_name", "provider", "gpu", "gpu_count", "node_count", "volumes",
            "secrets", "branch", "dockerfile_commands", "memory", "timeout", "memory_preprocess", "timeout_preprocess",
            "use_ray", "ray_num_workers", "ray_run_name", "resources_per_worker", "nvfp4_merge_aware", "test_value",
            "image_size", "image_resize_algorithm", "freeze_mm_modules", "vllm", "relora_prune_ratio",
            "relora_cpu_offload", "jagged_restart_steps", "jagged_restart_warmup_steps", "jagged_restart_anneal_steps",
            "lisa_step_interval", "lisa_layers_attribute", "fp8_enable_fsdp_float8_all_gather",
            "dataset_keep_in_memory",
        ),
        _LIBRARY,
    ),
}  # fmt: skip


def translate(run: RecipeImport) -> None:
    """Translate a recipe of pre-training, fine-tuning or preference learning; raise `NotTrainable` for others."""
    _objective(run)
    _adapter(run)
    _data(run)
    _cadence(run)
    _precision(run)
    _schedule(run)
    checkpointing = run.take("gradient_checkpointing")
    run.set("train.gradient_checkpointing", not is_off(checkpointing), "gradient_checkpointing")
    attention = run.take("attn_implementation")
    if attention in ("flash_attention_3", "flash_attention_2", "flex_attention", "sdpa", "eager"):
        run.set("model.attention", attention, "attn_implementation")
    elif attention is not None:
        run.changed("attn_implementation", attention, "the fastest kernel on the machine is used")
    for plugin in names_in(run.take("plugins") or []):
        _plugin(run, plugin)
    for key in trainer.parallel_sizes(run, _SIZES):
        run.set("backend.name", "fsdp", key)
    trainer.sharding(run)
    trainer.resuming(run)
    trainer.trust(run)
    run.take("report_to")
    if run.get("objective.name") == "grpo":
        grpo.trl(run, TABLE)
    else:
        apply(run, TABLE)
    run.default("data.max_length", 512)
    run.default("data.truncation", "delete")
    run.default("optim.schedule", "cosine")
    trainer.defaults(run, epochs=1.0, micro_batch=1)
    if run.get("tuner.kind") == "lora":
        run.default("tuner.dropout", 0.0)
        trainer.lora_defaults(run, 8, 8, 0.0, ["q_proj", "v_proj"])


def _objective(run: RecipeImport) -> None:
    method = str(run.take("rl") or "")
    scores = not is_off(run.take("reward_model"))
    if not is_off(run.take("process_reward_model")):
        raise trainer.refuse(run, "a process reward model")
    if method == "grpo":
        _grpo(run)
        return
    if (method and method not in _RL) or run.values.get("diffusion"):
        raise trainer.refuse(run, method.upper() or "diffusion")
    if scores:
        _reward(run)
        return
    if "num_labels" in run.values:
        raise trainer.refuse(run, "a classifier")
    beta, dpo_beta, orpo = run.take("rl_beta"), run.take("dpo_beta"), run.take("orpo_alpha")
    if not method:
        return
    run.command = "rlhf"
    run.set("objective.name", "dpo" if method == "ipo" else method, "rl")
    if method == "ipo":
        run.set("objective.loss", "ipo", "rl")
    chosen = next((each for each in (beta, dpo_beta, orpo) if each is not None), 0.1)
    run.set("objective.beta", chosen, "rl_beta")


def _grpo(run: RecipeImport) -> None:
    """Read the settings of the section `trl` as those of TRL's trainer, to which axolotl passes them."""
    run.command = "rlhf"
    run.set("objective.name", "grpo", "rl")
    section = run.take("trl")
    for key, value in section.items() if isinstance(section, dict) else ():
        if value is not None:
            run.values.setdefault(key, value)
    if not is_off(run.values.get("use_vllm")):
        run.values.setdefault("vllm_mode", "server")  # the server of `axolotl vllm-serve`
    if is_off(run.values.get("sync_ref_model")):
        run.take("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps")
    else:
        run.values.setdefault("ref_model_mixup_alpha", 0.9)
        run.values.setdefault("ref_model_sync_steps", 64)


def _reward(run: RecipeImport) -> None:
    run.command = "rlhf"
    run.set("objective.name", "rm", "reward_model")
    labels, coefficient = run.take("num_labels"), run.take("center_rewards_coefficient")
    if number(labels) not in (None, 1):
        run.lose("num_labels", labels, "a reward model returns one number")
    if coefficient is not None:
        run.set("objective.center_rewards_coefficient", coefficient, "center_rewards_coefficient")


def _adapter(run: RecipeImport) -> None:
    kind = run.take("adapter")
    linear, targets = run.take("lora_target_linear"), run.take("lora_target_modules")
    trainer.low_bit(run, adapters=not is_off(kind))
    if is_off(kind):
        run.set("tuner.kind", "full", "adapter" if kind is not None else f"{run.program}'s default")
        run.take("lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save")
        return
    if kind not in ("lora", "qlora"):
        run.lose("adapter", kind, "only lora and qlora are imported")
    run.set("tuner.kind", "lora", "adapter")
    if not is_off(linear):
        run.set("tuner.targets", ["all-linear"], "lora_target_linear")
    elif targets is not None:
        names = names_in(targets) if isinstance(targets, list) else [str(targets)]
        run.set("tuner.targets", ["all-linear"] if names == ["all-linear"] else names, "lora_target_modules")


def _data(run: RecipeImport) -> None:
    """Translate the data sets; swift detects the format of rows (`type`) itself."""
    learned = run.take("train_on_inputs")
    chats = 0
    for key, ours in (
        ("datasets", "data.train"),
        ("pretraining_dataset", "data.train"),
        ("test_datasets", "data.validation"),
    ):
        listed = run.take(key)
        if listed is None:
            continue
        entries = listed if isinstance(listed, list) else [listed]
        run.set(ours, [name for entry in entries if (name := _name(run, key, entry))], key)
        chats += sum(isinstance(entry, dict) and entry.get("type") == "chat_template" for entry in entries)
        if key == "pretraining_dataset" or (
            all(isinstance(entry, dict) and entry.get("type") == "completion" for entry in entries) and entries
        ):
            run.command = "pt"
    if run.command == "sft":
        everything = not is_off(learned)
        run.set(
            "data.loss_on",
            "all" if everything else "assistant",
            "train_on_inputs" if learned is not None else f"{NAME}'s default",
        )
    excess = run.take("excess_length_strategy")
    if excess is not None:
        run.set("data.truncation", "right" if excess == "truncate" else "delete", "excess_length_strategy")
    if is_off(run.values.get("val_set_size", 0)):
        run.take("val_set_size")
    elif (held_out := number(run.values["val_set_size"])) and held_out >= 1:
        run.lose("val_set_size", run.take("val_set_size"), "set the fraction of rows to hold out: data.split_ratio")


_HARMLESS = {
    "type", "path", "name", "conversation", "field_chosen", "field_rejected", "field_thinking",
    "template_thinking_key", "chat_template", "field_messages", "message_property_mappings", "roles",
    "message_field_role", "message_field_content", "roles_to_train", "train_on_eos", "ds_type", "trust_remote_code",
    "revision", "field", "text_column", "drop_system_message", "split_thinking", "message_field_training",
}  # fmt: skip


def _name(run: RecipeImport, key: str, entry: Any) -> str | None:
    """Return the name of a data set for swift, and note settings of its entry that are not imported."""
    if not isinstance(entry, dict):
        return str(entry)
    path, subset, split = entry.get("path"), entry.get("name"), str(entry.get("split") or "train")
    if path is None:
        return None
    kind = entry.get("type")
    if run.get("objective.name") == "grpo" and kind is not None and kind != "chat_template":
        run.lose(f"{key}.type", kind, "a Python function makes the prompts: write its rows to a file, and use that")
    elif kind not in (None, "completion", "chat_template", "alpaca", "sharegpt") or isinstance(kind, dict):
        run.changed(f"{key}.type", kind, "swift detects columns by name: check with config show --sample 1")
    rows = trainer.first_rows(run, f"{key}.split", split)
    for name, value in entry.items():
        if name not in _HARMLESS and name != "split" and value not in (None, False, 1, "", []):
            run.lose(f"{key}.{name}", value, "a data set is read completely, or its first N rows (NAME#N)")
    return f"{path}:{subset}{rows}" if subset else f"{path}{rows}"


def _cadence(run: RecipeImport) -> None:
    """Translate how often axolotl saves and evaluates: every N steps, or N times per epoch."""
    for times, steps, ours in (
        ("saves_per_epoch", "save_steps", "checkpoint.save_steps"),
        ("evals_per_epoch", "eval_steps", "train.eval_steps"),
    ):
        often, every = run.take(times), run.take(steps)
        if not is_off(every):
            run.set(ours, every, steps)
        elif (count := number(often)) is not None and count > 1:
            run.changed(times, often, f"once per epoch; set {ours} for an interval in steps")
    for key in ("save_strategy", "eval_strategy", "evaluation_strategy"):
        strategy = run.take(key)
        if strategy not in (None, "steps", "epoch"):
            run.changed(key, strategy, "once per epoch; the best and the newest checkpoints are kept")
    rows, together = number(run.values.get("micro_batch_size")) or 1, number(run.take("batch_size"))
    if together is not None and "gradient_accumulation_steps" not in run.values:
        run.set("train.accumulation", max(1, int(together // rows)), "batch_size")
    trainer.duration(run)
    if "train.max_steps" in run.settings:
        run.take("num_epochs")


def _precision(run: RecipeImport) -> None:
    half, brain = run.take("fp16", "float16"), run.take("bf16", "bfloat16")
    if str(brain).lower() == "auto":
        run.set("model.dtype", "auto", "bf16")
        return
    if not is_off(brain):
        run.set("model.dtype", "bfloat16", "bf16")
    elif not is_off(half):
        run.set("model.dtype", "float16", "fp16")
    run.default("model.dtype", "float32")
    run.take("torch_dtype")


def _schedule(run: RecipeImport) -> None:
    kind, options, floor = run.take("lr_scheduler"), run.take("lr_scheduler_kwargs"), number(run.take("eta_min"))
    if floor and (peak := number(run.values.get("learning_rate"))):
        run.set("optim.min_lr_ratio", ratio(floor, peak), "eta_min")
    if kind is not None and not as_flag(run, "lr_scheduler_type", kind):
        run.lose("lr_scheduler", kind, "unknown schedule: see optim.schedule")
    if options and not as_flag(run, "lr_scheduler_kwargs", options):
        run.lose("lr_scheduler_kwargs", options, "set optim.min_lr_ratio, optim.decay_ratio or optim.schedule_options")
    trainer.schedule(run)
    if "optim.warmup_ratio" not in run.settings and "optim.warmup_steps" not in run.settings:
        run.set("optim.warmup_ratio", 0.03, f"{NAME}'s default")


def _plugin(run: RecipeImport, plugin: str) -> None:
    if plugin.endswith(("CutCrossEntropyPlugin", "LigerPlugin", "KernelsPlugin", "ExpertParallelPlugin")):
        run.unneeded("plugins", plugin, "changes only speed or memory")
    else:
        run.lose("plugins", plugin, "plugins of swift are packages with entry points: see swift plugins")
