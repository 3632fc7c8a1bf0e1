"""TRL's trainers, as its commands, scripts and YAML files set them: `trl sft`, `trl dpo`, `trl kto`.

Also the recipes of the alignment handbook, which are TRL's with a mixture of data sets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swift.errors import ConfigError
from swift.imports import critics, distilling, online, trainer
from swift.imports.carrying import Carrying, is_off, number, words
from swift.imports.rules import Table, absent, apply, changed, each, to, unneeded
from swift.untrusted import open_regular

NAME = "TRL"

TASKS = (
    "sft",
    "dpo",
    "kto",
    "orpo",
    "cpo",
    "simpo",
    "reward",
    "grpo",
    "rloo",
    "gkd",
    "ppo",
    "online_dpo",
    "prm",
    "bco",
)
_RATES = {"sft": 2e-5, "reward": 1e-4, "prm": 1e-5, "ppo": 5e-5}
_ONLINE = {"grpo": online, "gkd": distilling, "ppo": critics}
_LINE = 1 << 20
_LINE_BREAK = (
    "TRL counts all that a chat template writes after an answer as part of it; here an answer ends with the token that "
    "ends its turn, without the line break that ChatML puts after it"
)

TABLE: Table = {
    **trainer.TABLE,
    "dataset_streaming": to("data.streaming"),
    "chat_template_path": to("model.chat_template"),
    "lora_modules_to_save": to("tuner.modules_to_save"),
    "chat_template": absent("save the template in a file, and name that as model.chat_template"),
    "padding_free": to("data.padding_free"),
    "max_prompt_length": changed("swift has one limit for prompt and answer together: data.max_length"),
    "max_completion_length": changed("swift has one limit for prompt and answer together: data.max_length"),
    "truncation_mode": changed("samples are shortened at the end (data.truncation: right)"),
    "shuffle_dataset": changed("data.shuffle permutes the samples in each epoch"),
    "dataset_test_split": unneeded("names a part of the data set: to evaluate, write data.validation"),
    "dataset_kwargs": changed("swift adds what the chat template adds, and no more"),
    "disable_dropout": absent("dropout of a model's own is off in training only by its config.json", "true"),
    "precompute_ref_log_probs": changed("a reference without adapters is computed once: objective.reference"),
    "sync_ref_model": absent("the reference stays as it was"),
    "use_weighting": absent("weighted DPO is not available"),
    "ld_alpha": absent("LD-DPO is not available"),
    "reference_free": absent("without a reference: cpo, orpo or simpo"),
    "f_divergence_type": absent("swift's dpo has the reverse KL divergence", "reverse_kl"),
    "loss_weights": absent("an objective has one loss here"),
    "eos_token": absent("the tokenizer says it: set it in tokenizer_config.json"),
    "pad_token": unneeded("padding is never learned from or attended to"),
    "lora_target_parameters": absent("adapters of parameters that are no modules are not available"),
    "ref_model_init_kwargs": changed("the reference is the model that training begins with"),
    "generate_during_eval": changed("evaluation measures losses; for answers: swift infer"),
    "ignore_bias_buffers": unneeded("is for a library that swift does not use"),
    **each(
        (
            "dataset_batch_size", "precompute_ref_batch_size",
            "use_bnb_nested_quant", "lora_task_type", "label_pad_token_id", "padding_value",
            "is_encoder_decoder", "f_alpha_divergence_coef", "discopop_tau", "ref_model_mixup_alpha",
            "ref_model_sync_steps", "eval_packing", "chars_per_token", "num_of_sequences", "trace", "log_completions",
            "ref_adapter_name", "model_adapter_name", "force_use_ref_model", "wandb_entity", "wandb_project",
            "wandb_run_group", "env",
        ),
        unneeded("is about how TRL runs, not about what is learned"),
    ),
}  # fmt: skip


def translate(run: Carrying) -> None:
    """Translate what trains by a loss that swift has; raises `NotTrainable` for others."""
    task = _task(run)
    if task not in ("sft", "dpo", "kto", "orpo", "cpo", "simpo", "reward", "prm", "grpo", "gkd", "ppo"):
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
        run.lose("max_length", "null", "TRL shortens nothing; swift leaves out what is longer than data.max_length")
    precision_of_weights(run)
    trainer.shared(run)
    apply(run, TABLE)
    run.default("data.max_length", 1024)
    run.default("data.truncation", "delete" if task == "reward" else "right")
    _defaults(run, task)


def _defaults(run: Carrying, task: str) -> None:
    run.default("train.gradient_checkpointing", True)
    trainer.defaults(run, lr=_RATES.get(task, 1e-6))
    trainer.lora_defaults(run, 16, 32, 0.05, ["q_proj", "v_proj"])


def precision_of_weights(run: Carrying) -> None:
    """Compute in bfloat16 as TRL does, unless the recipe says otherwise."""
    half, single = run.values.get("fp16"), run.values.get("bf16")
    weights = run.take("torch_dtype", "dtype")
    if weights is not None and str(weights) not in ("auto", "float32"):
        run.changed("dtype", weights, "weights that train are held in float32 here")
    if (half is None or is_off(half)) and single is None:
        run.default("model.dtype", "bfloat16")


def _task(run: Carrying) -> str:
    """Return TRL's trainer: of the command, or by what the file and its keys are called."""
    if run.recipe.command:
        return run.recipe.command
    path = Path(run.recipe.source.split(":")[0])
    named = " ".join((path.name, path.parent.name, str(run.values.get("output_dir", "")))).lower()
    for task in ("grpo", "gkd", "ppo", "dpo", "kto", "orpo", "cpo", "reward", "prm", "sft"):
        if task in named:
            break
    else:
        task = "dpo" if {"beta", "max_prompt_length"} & run.values.keys() else "sft"
    run.changed("task", task, "the file does not say which trainer it is for: this is by its name and keys")
    return task


def _preference(run: Carrying, task: str) -> None:
    if task == "sft":
        run.set("objective.name", "sft", "trl sft")
        loss = run.take("loss_type")
        if loss not in (None, "nll", "chunked_nll"):
            run.lose("loss_type", loss, "swift learns from the likelihood of the text (nll)")
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
    losses = words(run.take("loss_type") or [])
    run.set("objective.name", "simpo" if task == "cpo" and losses == ["simpo"] else task, f"trl {task}")
    if losses in (["hinge"], ["ipo"], ["sigmoid"]) and task in ("dpo", "cpo"):
        run.set("objective.loss", losses[0], "loss_type")
    elif losses and losses not in ([task], ["simpo"]):
        run.lose("loss_type", losses, "swift has the losses sigmoid, hinge and ipo")
    beta = run.take("beta")
    run.set("objective.beta", 0.1 if beta is None else beta, "beta" if beta is not None else f"{run.program}'s default")


def _adapters(run: Carrying) -> None:
    peft = run.take("use_peft")
    adapters = peft is not None and not is_off(peft)
    run.set("tuner.kind", "lora" if adapters else "full", "use_peft")
    targets = run.take("lora_target_modules")
    four, eight = run.take("load_in_4bit"), run.take("load_in_8bit")
    run.take("bnb_4bit_quant_type")
    if not adapters:
        for key in ("lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"):
            run.take(key)
        return
    if targets is None:
        run.changed("lora_target_modules", "", "PEFT chooses by the architecture: mostly q_proj and v_proj")
    elif words(targets):
        run.set("tuner.targets", words(targets), "lora_target_modules")
    if four is not None and not is_off(four):
        run.set("tuner.quantize", "bnb-nf4", "load_in_4bit")
    elif eight is not None and not is_off(eight):
        run.set("tuner.quantize", "bnb-int8", "load_in_8bit")


def _data(run: Carrying) -> None:
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
            run.lose("dataset_mixer", older, "a data set is read whole, or its first N rows: name#N")
    for key, value in (("dataset_train_split", part), ("dataset_splits", run.take("dataset_splits"))):
        if value is not None and "train" not in words(value):
            run.lose(key, value, "swift reads the split train: download the part, and name its file")


def _entry(run: Carrying, entry: Any) -> str | None:
    """Return one data set of a mixture as swift names it."""
    if not isinstance(entry, dict):
        return str(entry)
    name, subset = entry.get("id", entry.get("path")), entry.get("config", entry.get("name"))
    if name is None:
        return None
    for key, harmless in (("split", "train"), ("weight", 1.0), ("fraction", 1.0)):
        value = entry.get(key, harmless)
        if value not in (harmless, None):
            run.lose(f"datasets.{name}.{key}", value, "swift reads the split train, whole or its first N rows (name#N)")
    return f"{name}:{subset}" if subset else str(name)


def _learned(run: Carrying) -> None:
    """Translate which text is learned: TRL learns the whole of `text` and `messages`, unless it is told otherwise."""
    assistant, completion = run.take("assistant_only_loss"), run.take("completion_only_loss")
    only = any(value is not None and not is_off(value) for value in (assistant, completion))
    columns = _columns(run)
    if only or (completion is None and {"prompt", "completion"} <= columns):
        run.set("data.loss_on", "assistant", "completion_only_loss" if completion else "assistant_only_loss")
        return
    run.set("data.loss_on", "all", f"{run.program}'s default")
    if not columns:
        run.changed(
            "completion_only_loss", "", "TRL learns the whole of messages and text, as written here, but of prompt and "
            "completion only the completion: for such data write data.loss_on: assistant",
        )  # fmt: skip


def _columns(run: Carrying) -> set[str]:
    """Return the columns of the first data set where it is a file of JSON lines here; else none."""
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
