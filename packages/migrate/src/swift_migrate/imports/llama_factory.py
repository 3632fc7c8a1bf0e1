"""LLaMA-Factory's YAML, with names of its dataset_info.json."""

from __future__ import annotations

from pathlib import Path

from swift.config import names_in
from swift.contracts import TrainingCommand
from swift.data import DATASET_INFO_FILE
from swift_migrate.imports import trainer
from swift_migrate.imports.galore import LLAMA_FACTORY, low_rank
from swift_migrate.imports.recipe import RecipeImport, is_off, number
from swift_migrate.imports.rules import Table, absent, apply, changed, choice, to, unneeded, when_on

NAME = "LLaMA-Factory"

_STAGES: dict[str, tuple[TrainingCommand, str]] = {
    "pt": ("pt", "pt"),
    "sft": ("sft", "sft"),
    "dpo": ("rlhf", "dpo"),
    "kto": ("rlhf", "kto"),
    "rm": ("rlhf", "rm"),
}
_MULTIMODAL = absent("data.max_pixels limits video frames, and audio has the model's sampling rate")

TABLE: Table = {
    **trainer.TABLE,
    "cutoff_len": to("data.max_length"),
    "template": changed(trainer.TEMPLATE),
    "train_on_prompt": when_on({"data.loss_on": "all"}),
    "mask_history": when_on({"data.loss_on": "last_round"}),
    "neat_packing": when_on({"data.packing": True}),
    "disable_shuffling": when_on({"data.shuffle": False}),
    "adapter_name_or_path": to("tuner.adapter"),
    "train_from_scratch": to("model.random_weights"),
    "flash_attn": choice(
        {
            "auto": {"model.attention": "auto"},
            "disabled": {"model.attention": "eager"},
            "sdpa": {"model.attention": "sdpa"},
            "fa2": {"model.attention": "flash_attention_2"},
            "flash_attention_2": {"model.attention": "flash_attention_2"},
            "fa3": {"model.attention": "flash_attention_3"},
        },
        "model.attention is auto, flash_attention_3, flash_attention_2, flex_attention, sdpa or eager",
    ),
    "early_stopping_steps": to("train.early_stopping"),
    "pref_beta": to("objective.beta"),
    "dpo_label_smoothing": to("objective.label_smoothing"),
    "kto_chosen_weight": to("objective.desirable_weight"),
    "kto_rejected_weight": to("objective.undesirable_weight"),
    "pref_ftx": absent("dpo has no likelihood term; cpo and orpo have one"),
    "pref_bco_weight": absent("BCO is not implemented"),
    "ld_alpha": absent("LD-DPO is not implemented"),
    "use_asft_loss": absent("this loss is not implemented; you can write it as an objective"),
    "use_eaft_loss": absent("this loss is not implemented; you can write it as an objective"),
    "use_llama_pro": absent("add blocks first: swift convert MODEL --expand-blocks 4 --out OUT"),
    "loraplus_lr_embedding": changed("embeddings use optim.lr"),
    "shift_attn": absent("S²-Attention is not implemented"),
    "mixture_of_depths": absent("mixture of depths is not implemented"),
    "add_special_tokens": absent("the vocabulary cannot be extended"),
    "use_kt": absent("KTransformers is not supported"),
    **dict.fromkeys(
        (
            "oft_block_size", "oft_target", "oft_rank", "module_dropout", "kt_cpu_activation", "kt_config",
            "num_expand", "badam_mode", "badam_switch_mode", "badam_switch_interval", "badam_verbose",
            "badam_update_ratio", "freeze_trainable_modules", "freeze_extra_modules",
        ),
        unneeded("is an option of a method that is not imported"),
    ),
    **dict.fromkeys(
        ("use_unsloth_gc", "use_v1_kernels"), changed("swift's kernels are used; model.liger selects Liger's")
    ),
    **dict.fromkeys(("upcast_layernorm", "upcast_lmhead_output"), changed("trained weights are float32")),
    **dict.fromkeys(
        (
            "video_max_pixels", "video_min_pixels", "audio_sampling_rate",
        ),
        _MULTIMODAL,
    ),
    **dict.fromkeys(
        (
            "use_fast_tokenizer", "use_reentrant_gc", "include_effective_tokens_per_second", "print_param_status",
            "ignore_pad_token_for_loss", "data_shared_file_system", "compute_accuracy", "eval_on_each_dataset",
            "infer_backend", "pissa_convert", "pissa_iter", "create_new_adapter", "ray_run_name", "ray_storage_path",
            "ray_num_workers", "placement_strategy", "resources_per_worker", "use_kv_cache", "temperature", "top_p",
            "top_k", "max_new_tokens", "do_sample", "num_beams", "fp8_backend", "fp8_enable_fsdp_float8_all_gather",
            "asft_alpha", "eaft_alpha",
        ),
        unneeded("configures LLaMA-Factory itself, and does not change the training"),
    ),
}  # fmt: skip


def translate(run: RecipeImport) -> None:
    """Translate a recipe for training; raise `NotTrainable` for others."""
    stage = str(run.take("stage") or "sft")
    if stage not in _STAGES:
        raise trainer.refuse(run, "PPO" if stage == "ppo" else f"the stage {stage}")
    run.command, objective = _STAGES[stage]
    _preference(run, objective)
    _tuner(run)
    _quantisation(run)
    _data(run)
    _pure_precision(run)
    off = run.take("disable_gradient_checkpointing")
    run.take("gradient_checkpointing")
    run.set("train.gradient_checkpointing", is_off(off), "disable_gradient_checkpointing")
    if run.take("seed") is None:
        run.default("train.seed", 42)
    low_rank(run, LLAMA_FACTORY)
    trainer.shared(run)
    apply(run, TABLE)
    trainer.defaults(run)
    rank = number(run.get("tuner.rank", 8)) or 8
    trainer.lora_defaults(run, 8, 2 * rank, 0.0, ["all-linear"])
    run.default("data.max_length", 2048)
    run.default("data.truncation", "right")
    if objective == "rm":
        run.changed("stage", stage, "the head has no bias, and scores the last token of the conversation")
    elif run.command == "rlhf":
        run.default("objective.beta", 0.1)
    elif run.command == "sft":
        run.default("data.loss_on", "assistant")


def _preference(run: RecipeImport, objective: str) -> None:
    loss = str(run.take("pref_loss") or "sigmoid")
    margin = run.take("simpo_gamma")
    if objective == "dpo" and loss in ("orpo", "simpo"):
        objective = loss
    elif objective == "dpo" and loss in ("sigmoid", "hinge", "ipo"):
        run.set("objective.loss", loss, "pref_loss")
    elif objective == "dpo":
        run.lose("pref_loss", loss, "dpo has the losses sigmoid, hinge and ipo")
    run.set("objective.name", objective, "stage")
    if objective == "simpo":
        run.set("objective.gamma", 0.5 if margin is None else margin, "simpo_gamma")


def _tuner(run: RecipeImport) -> None:
    kind = str(run.take("finetuning_type") or "lora")
    if kind in ("lora", "full"):
        run.set("tuner.kind", kind, "finetuning_type")
    else:
        run.lose("finetuning_type", kind, "only lora and full are imported (partial training: tuner.freeze)")
        run.set("tuner.kind", "full" if kind == "freeze" else "lora", "finetuning_type")
    targets = run.take("lora_target")
    if targets is not None:
        names = names_in(targets)
        run.set("tuner.targets", ["all-linear"] if names == ["all"] else names, "lora_target")


def _quantisation(run: RecipeImport) -> None:
    bits, method = run.take("quantization_bit"), str(run.take("quantization_method") or "bnb").lower()
    kind, double = str(run.take("quantization_type") or "nf4"), run.take("double_quantization")
    stored = trainer.low_bit_of(run, "quantization_bit", bits, method, kind)
    if stored and double is not None and is_off(double):
        run.unneeded("double_quantization", double, "changes only how the scales are stored")


def _pure_precision(run: RecipeImport) -> None:
    pure = run.take("pure_bf16")
    if not is_off(pure):
        run.set("model.dtype", "bfloat16", "pure_bf16")
        run.changed("pure_bf16", pure, "trained weights are float32")


def _data(run: RecipeImport) -> None:
    """Translate names of data sets: `folder/name` where their dataset_info.json is not in ./data."""
    folder, limit = str(run.take("dataset_dir") or "data"), number(run.take("max_samples"))
    for key, ours in (("dataset", "data.train"), ("eval_dataset", "data.validation")):
        listed = run.take(key)
        if listed is None:
            continue
        names = [_located(run, name, folder) for name in names_in(listed)]
        run.set(ours, [f"{name}#{int(limit)}" for name in names] if limit else names, key)
    held_out = number(run.take("val_size"))
    if held_out and held_out < 1:
        run.set("data.split_ratio", held_out, "val_size")
    elif held_out:
        run.lose("val_size", held_out, "set the fraction of rows to hold out: data.split_ratio")


def _located(run: RecipeImport, name: str, folder: str) -> str:
    """Return the name of a data set for swift, with the folder of dataset_info.json unless that is ./data or here."""
    for parent in (Path(folder), run.recipe.folder / folder, run.recipe.folder):
        if (parent / DATASET_INFO_FILE).is_file():
            return name if parent in (Path(), Path("data")) else str(parent / name)
    return name if folder == "data" else f"{folder}/{name}"
