"""TRL's commands, scripts and YAML files: `trl sft`, `trl dpo`, `trl kto`, and recipes of the alignment handbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swift.config import names_in
from swift.errors import ConfigError
from swift.untrusted import open_regular
from swift_migrate.imports import gkd, grpo, ppo, trainer
from swift_migrate.imports.recipe import RecipeImport, is_off, number
from swift_migrate.imports.rules import Table, absent, apply, changed, to, unneeded

NAME = "TRL"

_IMPORTED = ("sft", "dpo", "kto", "orpo", "cpo", "simpo", "reward", "prm", "grpo", "gkd", "ppo")
TASKS = (*_IMPORTED, "rloo", "online_dpo", "bco")
_RATES = {"sft": 2e-5, "reward": 1e-4, "prm": 1e-5, "ppo": 5e-5}
_ONLINE = {"grpo": grpo, "gkd": gkd, "ppo": ppo}
_LINE = 1 << 20
_LINE_BREAK = (
    "in TRL a completion includes everything that the chat template writes after it; here it ends with the end-of-turn "
    "token, without the line break of ChatML"
)

TABLE: Table = {
    **trainer.TABLE,
    "dataset_streaming": to("data.streaming"),
    "chat_template_path": to("model.chat_template"),
    "lora_modules_to_save": to("tuner.modules_to_save"),
    "chat_template": absent("save the template in a file, and set model.chat_template to it"),
    "max_prompt_length": changed("prompt and completion have one limit together: data.max_length"),
    "max_completion_length": changed("prompt and completion have one limit together: data.max_length"),
    "truncation_mode": changed("samples are truncated on the right (data.truncation)"),
    "shuffle_dataset": changed("data.shuffle shuffles the samples in each epoch"),
    "dataset_test_split": unneeded("to evaluate, set data.validation"),
    "dataset_kwargs": changed("swift adds only the special tokens of the chat template"),
    "disable_dropout": absent("set the model's dropout in its config.json", "true"),
    "precompute_ref_log_probs": changed("a reference without adapters is computed once: objective.reference"),
    "sync_ref_model": absent("the reference does not change"),
    "use_weighting": absent("weighted DPO is not implemented"),
    "ld_alpha": absent("LD-DPO is not implemented"),
    "reference_free": absent("objectives without a reference are cpo, orpo and simpo"),
    "f_divergence_type": absent("dpo has only the reverse KL divergence", "reverse_kl"),
    "loss_weights": absent("an objective has one loss"),
    "eos_token": absent("set it in the model's tokenizer_config.json"),
    "pad_token": unneeded("padding is masked"),
    "lora_target_parameters": to("tuner.target_parameters"),
    "ref_model_init_kwargs": changed("the reference is the model at the start of training"),
    "generate_during_eval": changed("evaluation measures losses; to generate text use swift infer"),
    "ignore_bias_buffers": unneeded("applies to a library that swift does not use"),
    **dict.fromkeys(
        (
            "dataset_batch_size", "precompute_ref_batch_size", "use_bnb_nested_quant", "lora_task_type",
            "label_pad_token_id", "padding_value", "is_encoder_decoder", "f_alpha_divergence_coef", "discopop_tau",
            "ref_model_mixup_alpha", "ref_model_sync_steps", "eval_packing", "chars_per_token", "num_of_sequences",
            "trace", "log_completions", "ref_adapter_name", "model_adapter_name", "force_use_ref_model", "wandb_entity",
            "wandb_project", "wandb_run_group", "env",
        ),
        unneeded("configures TRL itself, and does not change the training"),
    ),
}  # fmt: skip


def translate(run: RecipeImport) -> None:
    """Translate a recipe whose loss swift supports; raise `NotTrainable` for others."""
    task = _task(run)
    if task not in _IMPORTED:
        raise trainer.refuse(run, task.upper())
    run.command = "sft" if task == "sft" else "rlhf"
    _adapters(run)
    _data(run)
    if task in _ONLINE:
        precision_of_weights(run)
        trainer.shared(run)
        _ONLINE[task].trl(run, TABLE)
        _defaults(run, task)
        return
    _preference(run, task)
    if task == "sft":
        _learned(run)
    elif task not in ("reward", "prm") and "chat_template" not in run.values:
        run.changed("chat_template", "", _LINE_BREAK)
    longest = run.values.get("max_length", run.values.get("max_seq_length"))
    if "max_length" in run.empty or is_off(longest or 1):
        run.take("max_length", "max_seq_length")
        run.lose("max_length", "null", "TRL does not truncate; swift drops samples longer than data.max_length")
    precision_of_weights(run)
    trainer.shared(run)
    apply(run, TABLE)
    run.default("data.max_length", 1024)
    run.default("data.truncation", "delete" if task == "reward" else "right")
    _defaults(run, task)


def _defaults(run: RecipeImport, task: str) -> None:
    run.default("train.gradient_checkpointing", True)
    trainer.defaults(run, lr=_RATES.get(task, 1e-6))
    trainer.lora_defaults(run, 16, 32, 0.05, ["q_proj", "v_proj"])


def precision_of_weights(run: RecipeImport) -> None:
    """Compute in bfloat16 as TRL does, unless the recipe sets the precision."""
    half, single = run.values.get("fp16"), run.values.get("bf16")
    weights = run.take("torch_dtype", "dtype")
    if weights is not None and str(weights) not in ("auto", "float32"):
        run.changed("dtype", weights, "trained weights are float32")
    if (is_off(half)) and single is None:
        run.default("model.dtype", "bfloat16")


def _task(run: RecipeImport) -> str:
    """Return TRL's trainer: that of the command, or guessed from the names of the file and its keys."""
    if run.recipe.command:
        return run.recipe.command
    path = Path(run.recipe.source.split(":")[0])
    named = " ".join((path.name, path.parent.name, str(run.values.get("output_dir", "")))).lower()
    for task in ("grpo", "gkd", "ppo", "dpo", "kto", "orpo", "cpo", "reward", "prm", "sft"):
        if task in named:
            break
    else:
        task = "dpo" if {"beta", "max_prompt_length"} & run.values.keys() else "sft"
    run.changed("task", task, "the file does not name its trainer: guessed from its name and keys")
    return task


def _preference(run: RecipeImport, task: str) -> None:
    if task == "sft":
        run.set("objective.name", "sft", "trl sft")
        loss = run.take("loss_type")
        if loss not in (None, "nll", "chunked_nll"):
            run.lose("loss_type", loss, "the loss of sft is cross entropy (nll)")
        return
    if task == "reward":
        run.set("objective.name", "rm", "trl reward")
        return
    if task == "prm":
        run.set("objective.name", "prm", "trl prm")
        for key in ("step_separator", "train_on_last_step_only"):
            if (value := run.take(key)) is not None:
                run.set(f"objective.{key}", value, key)
        return
    losses = names_in(run.take("loss_type") or [])
    run.set("objective.name", "simpo" if task == "cpo" and losses == ["simpo"] else task, f"trl {task}")
    if losses in (["hinge"], ["ipo"], ["sigmoid"]) and task in ("dpo", "cpo"):
        run.set("objective.loss", losses[0], "loss_type")
    elif losses and losses not in ([task], ["simpo"]):
        run.lose("loss_type", losses, "dpo has the losses sigmoid, hinge and ipo")
    beta = run.take("beta")
    run.set("objective.beta", 0.1 if beta is None else beta, "beta" if beta is not None else f"{run.program}'s default")


def _adapters(run: RecipeImport) -> None:
    peft = run.take("use_peft")
    adapters = not is_off(peft)
    run.set("tuner.kind", "lora" if adapters else "full", "use_peft")
    targets = run.take("lora_target_modules")
    trainer.low_bit(run, adapters=adapters)
    run.take("bnb_4bit_quant_type")
    if not adapters:
        run.take("lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora")
        return
    if targets is None:
        run.changed("lora_target_modules", "", "PEFT's default depends on the architecture, mostly q_proj and v_proj")
    elif names_in(targets):
        run.set("tuner.targets", names_in(targets), "lora_target_modules")


def _data(run: RecipeImport) -> None:
    name, subset, part = run.take("dataset_name"), run.take("dataset_config"), run.take("dataset_train_split")
    if name is not None:
        run.set("data.train", [f"{name}:{subset}" if subset else str(name)], "dataset_name")
    mixture = run.take("dataset_mixture")
    listed = mixture.get("datasets") if isinstance(mixture, dict) else run.take("datasets")
    if isinstance(listed, list):
        run.set("data.train", [text for entry in listed if (text := _entry(run, entry))], "datasets")
    held_out = (
        run.take("test_split_size") or (mixture or {}).get("test_split_size") if isinstance(mixture, dict) else None
    )
    if (size := number(held_out)) is not None and 0 < size < 1:
        run.set("data.split_ratio", size, "test_split_size")
    older = run.take("dataset_mixer")
    if isinstance(older, dict):
        run.set("data.train", list(older), "dataset_mixer")
        if any(number(share) != 1 for share in older.values()):
            run.lose("dataset_mixer", older, "a data set is read completely, or its first N rows (NAME#N)")
    for key, value in (("dataset_train_split", part), ("dataset_splits", run.take("dataset_splits"))):
        if value is not None and "train" not in names_in(value):
            run.lose(key, value, "only the split train can be read: download the other split as a file")


def _entry(run: RecipeImport, entry: Any) -> str | None:
    """Return the name of a data set of a mixture for swift."""
    if not isinstance(entry, dict):
        return str(entry)
    name, subset = entry.get("id", entry.get("path")), entry.get("config", entry.get("name"))
    if name is None:
        return None
    for key, harmless in (("split", "train"), ("weight", 1.0), ("fraction", 1.0)):
        value = entry.get(key, harmless)
        if value not in (harmless, None):
            run.lose(f"datasets.{name}.{key}", value, "only the split train, or its first N rows (NAME#N), can be read")
    return f"{name}:{subset}" if subset else str(name)


def _learned(run: RecipeImport) -> None:
    """Translate the tokens with loss: TRL trains on all of `text` and `messages` by default."""
    assistant, completion = run.take("assistant_only_loss"), run.take("completion_only_loss")
    only = any(not is_off(value) for value in (assistant, completion))
    columns = _columns(run)
    if only or (completion is None and {"prompt", "completion"} <= columns):
        run.set("data.loss_on", "assistant", "completion_only_loss" if completion else "assistant_only_loss")
        return
    run.set("data.loss_on", "all", f"{run.program}'s default")
    if not columns:
        run.changed(
            "completion_only_loss", "", "TRL trains on all of messages and text, but only on the completion of rows "
            "with prompt and completion: for such data set data.loss_on: assistant",
        )  # fmt: skip


def _columns(run: RecipeImport) -> set[str]:
    """Return the columns of the first data set if it is a local JSON Lines file, else none."""
    names = run.get("data.train") or [""]
    path = Path(str(names[0]))
    try:
        if path.suffix != ".jsonl" or not path.is_file():
            return set()
        with open_regular(path, ConfigError) as file:
            row = json.loads(file.readline(_LINE))
    except (OSError, ValueError, RecursionError, ConfigError):
        return set()
    return set(row) if isinstance(row, dict) else set()
