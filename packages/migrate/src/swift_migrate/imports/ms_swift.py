"""ms-swift's commands, shell scripts, YAML files and args.json.

Most of its flags are swift's own. The tables have those of models and methods that swift does not support, and the
different names of `megatron sft`.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

from swift.config import names_in
from swift.contracts import TrainingCommand
from swift_migrate.flags.environment import IGNORED_MEDIA_VARIABLES, MEDIA_VARIABLES, VARIABLES_OF_OBJECTIVE
from swift_migrate.imports import gkd, grpo, ppo, trainer
from swift_migrate.imports.galore import MS_SWIFT, low_rank
from swift_migrate.imports.recipe import RecipeImport, is_off, number, ratio
from swift_migrate.imports.rules import Table, absent, apply, as_flag, changed, choice, to, unneeded

NAME = "ms-swift"

OBJECTIVES = ("dpo", "kto", "orpo", "simpo", "cpo", "rm", "grpo", "gkd", "ppo")
_ONLINE = {"grpo": grpo, "gkd": gkd, "ppo": ppo}
SCORING = ("seq_cls", "embedding", "reranker", "generative_reranker")
"""Tasks of ms-swift's `swift sft` that are objectives here."""
_BETAS = {"simpo": 2.0}
_GENERATING = unneeded("applies only to generation")
_FASTER = unneeded("changes only speed or memory")

TABLE: Table = {
    **trainer.TABLE,
    "add_non_thinking_prefix": changed("the chat template decides it; set data.template_kwargs to change it"),
    "loss_weights": absent("an objective has one loss"),
    "callbacks": absent("observers of swift are packages with entry points: see swift plugins"),
    "optimizer": choice(
        {**trainer.OPTIMIZERS, "lorap": {}, "adam": {"optim.name": "adamw"}},
        trainer.NO_OPTIMIZER,
    ),
    "tuner_backend": absent("adapters use PEFT", "peft"),
    "experts_impl": to("model.experts_impl"),
    "f_divergence_type": absent("dpo has only the reverse KL divergence", "reverse_kl"),
    "sft_alpha": absent("dpo has no likelihood term; cpo and orpo have one"),
    "ld_alpha": absent("LD-DPO is not implemented"),
    "reference_free": absent("objectives without a reference are cpo, orpo and simpo"),
    "template": changed(trainer.TEMPLATE),
    **{variable: unneeded(f"is not read: {why}") for variable, why in IGNORED_MEDIA_VARIABLES.items()},
    **{variable: to(key) for variable, key in MEDIA_VARIABLES.items()},
    **dict.fromkeys(
        (
            "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "num_beams", "stream",
            "stop_words", "infer_backend", "vllm_max_model_len", "logprobs", "max_batch_size", "eval_use_evalscope",
        ),
        _GENERATING,
    ),
    **dict.fromkeys(
        (
            "write_batch_size", "move_model_batches", "download_mode", "ds3_gather_for_generation",
            "local_repo_path", "init_strategy",
        ),
        _FASTER,
    ),
    **dict.fromkeys(
        (
            "use_flash_ckpt", "load_args", "load_data_args", "ignore_args_error", "swanlab_project", "swanlab_exp_name",
            "swanlab_mode", "swanlab_workspace", "wandb_project", "wandb_exp_name", "max_shard_size", "template_mode",
            "acc_steps", "global_world_size", "rank", "local_world_size", "model_suffix", "model_info", "model_meta",
            "model_dir", "hub", "ckpt_dir", "training_args", "val_dataset_shuffle", "disable_auto_column_mapping",
            "port", "host", "dataset_info", "eval_generation_config", "eval_dataset_args", "eval_limit",
            "swift_version",
        ),
        unneeded("configures ms-swift itself, and does not change the training"),
    ),
}  # fmt: skip

MEGATRON: Table = {
    **TABLE,
    **dict.fromkeys(
        ("no_save_optim", "no_save_rng", "optimizer_cpu_offload", "optimizer_offload_fraction"),
        unneeded("changes only memory or checkpoints"),
    ),
    "mcore_model": absent("set model.path to a folder in Hugging Face format"),
    "mcore_adapter": absent("set tuner.adapter to a PEFT adapter"),
    **dict.fromkeys(
        (
            "bias_activation_fusion", "offload_bridge", "linear_decoupled_in_proj", "exp_avg_dtype", "exp_avg_sq_dtype",
            "main_grads_dtype", "main_params_dtype", "offload_model", "offload_optimizer",
            "microbatch_group_size_per_vp_stage",
        ),
        unneeded("changes only speed, memory or rounding; see the section backend"),
    ),
    **dict.fromkeys(
        ("use_persistent_ckpt_worker", "dist_ckpt_save_pre_mcore_014"), unneeded("swift has its own checkpoint format")
    ),
}  # fmt: skip


def translate(run: RecipeImport) -> None:
    """Translate `swift pt | sft | rlhf` and `megatron pt | sft | rlhf`; raise `NotTrainable` for other commands."""
    command = run.recipe.command
    megatron = command.startswith("megatron")
    _environment(run)
    _objective(run, command.removeprefix("megatron").strip())
    _names(run)
    _order(run)
    _quantisation(run)
    (_megatron if megatron else _trainer)(run)
    if "data.max_length" not in run.settings:
        run.changed(
            "max_length", "", "the default is 2048 (data.max_length), and the model's context length in ms-swift"
        )
    run.default("data.truncation", "delete")
    if run.command == "rlhf" and run.get("objective.name") not in ("rm", *_ONLINE):
        run.default("objective.beta", _BETAS.get(str(run.get("objective.name")), 0.1))


def _trainer(run: RecipeImport) -> None:
    low_rank(run, MS_SWIFT)
    trainer.shared(run)
    if (online_program := _ONLINE.get(str(run.get("objective.name")))) is not None:
        online_program.ms_swift(run, TABLE)
    else:
        _accumulate(run)
        apply(run, TABLE)
    run.default("train.gradient_checkpointing", True)
    _peak(run)
    run.defaults("optim", schedule="cosine", weight_decay=0.1, beta2=0.95)
    trainer.defaults(run, micro_batch=1)
    trainer.lora_defaults(run, 8, 32, 0.05, ["all-linear"])


def _megatron(run: RecipeImport) -> None:
    run.set("backend.name", "megatron", "megatron")
    trainer.precision(run, "bfloat16")
    trainer.trackers(run)
    trainer.resuming(run)
    trainer.trust(run)
    trainer.saving(run)
    trainer.evaluation(run)
    floor = number(run.take("min_lr"))
    run.default("tuner.kind", "full")
    if (online_program := _ONLINE.get(str(run.get("objective.name")))) is not None:
        online_program.ms_swift(run, MEGATRON)
    else:
        apply(run, MEGATRON)
    _peak(run)
    if floor:
        run.set("optim.min_lr_ratio", ratio(floor, float(run.get("optim.lr"))), "min_lr")
    run.defaults("train", global_batch=16, gradient_checkpointing=True)
    run.defaults("optim", schedule="cosine", weight_decay=0.1, beta2=0.95)
    if run.get("train.max_steps") is None and "train.epochs" not in run.settings:
        run.lose("num_train_epochs", "", "neither epochs nor train_iters are set: set train.epochs")
    trainer.defaults(run, epochs=1.0, micro_batch=1)
    trainer.lora_defaults(run, 8, 32, 0.05, ["all-linear"])


def _objective(run: RecipeImport, command_name: str) -> None:
    """Set the objective by the command, and by --rlhf_type for rlhf."""
    kind = str(run.take("rlhf_type") or "")
    command_name = command_name or ("rlhf" if kind else "sft")
    if command_name not in ("pt", "sft", "rlhf"):
        raise trainer.refuse(run, f"swift {command_name}")
    kind = kind or "dpo"
    if command_name == "rlhf" and kind not in OBJECTIVES:
        raise trainer.refuse(run, kind.upper())
    run.command = cast(TrainingCommand, command_name)
    run.set(
        "objective.name",
        kind if command_name == "rlhf" else command_name,
        "rlhf_type" if command_name == "rlhf" else f"swift {command_name}",
    )
    task = run.take("task_type")
    if task is None and command_name == "sft" and not is_off(run.values.get("num_labels")):
        task = "seq_cls"  # as ms-swift does
    if task in SCORING and command_name == "sft":
        _scoring(run, str(task))
    elif task not in (None, "causal_lm", *SCORING):
        raise trainer.refuse(run, f"the task {task}")


def _scoring(run: RecipeImport, task: str) -> None:
    """Set the objective of a task whose model returns scores or vectors, with ms-swift's defaults."""
    run.set("objective.name", task, "task_type")
    if task == "seq_cls":
        run.changed(
            "task_type", task, "a conversation that ends with the user is scored without the assistant's header"
        )
    else:
        run.take("num_labels")
    loss = run.take("loss_type")
    if loss is None and task != "seq_cls":
        run.changed("loss_type", "", "ms-swift has no default; swift's own is used (objective.loss)")
    elif "reranker" in task:
        run.set("objective.loss", "listwise" if "listwise" in str(loss) else "pointwise", "loss_type")
    elif task == "embedding":
        run.set("objective.loss", loss, "loss_type")
    for variable, option in VARIABLES_OF_OBJECTIVE.get(task, {}).items():
        value = run.take(variable)
        if value is not None and variable.startswith("INFONCE_") and loss not in (None, "infonce"):
            run.unneeded(variable, value, f"has no effect on the loss {loss}")
        elif value is not None:
            run.set(f"objective.{option}", value, variable)


def _names(run: RecipeImport) -> None:
    """Translate different names, and settings of models and data sets."""
    if run.take("lora_bias", "bias") not in (None, "none"):
        run.lose("lora_bias", "", "set tuner.bias")
    kind = run.take("tuner_type", "train_type", "sft_type")
    if kind is not None:
        as_flag(run, "train_type", kind)
    else:
        run.default("tuner.kind", "full" if run.recipe.command.startswith("megatron") else "lora")
    loss = run.values.get("loss_scale")
    if loss is not None and str(loss) not in ("default", "all", "last_round"):
        run.lose("loss_scale", run.take("loss_scale"), "only default, all and last_round are supported")
    named = any("self-cognition" in str(name) for name in names_in(run.values.get("dataset", ())))
    for key, mark in (("model_name", "{{NAME}}"), ("model_author", "{{AUTHOR}}")):
        if (reason := run.take(key)) is not None and named:
            run.lose(key, reason, f"replace {mark} in the data set itself")
        elif reason is not None:
            run.unneeded(key, reason, "applies only to the data set swift/self-cognition")
    if isinstance(columns := run.values.get("columns"), str):
        run.values["columns"] = _object(columns)
    ratio = number(run.values.get("split_dataset_ratio"))
    if ratio == 0:
        run.take("split_dataset_ratio")
    hub = run.take("use_hf")
    if is_off(hub):
        run.changed("use_hf", "", "names refer to the Hugging Face hub; write ms::NAME for a data set of ModelScope")


def _order(run: RecipeImport) -> None:
    """Translate the two shuffles: of the file once, and of the rows in each epoch."""
    names = ("dataset_shuffle", "train_dataloader_shuffle")
    values = {name: run.take(name) for name in names}
    off = [name for name in names if values[name] is not None and is_off(values[name])]
    if len(off) == len(names):
        run.set("data.shuffle", False, " and ".join(names))
    for name, value in values.items():
        if len(off) == 1 and name in off:
            run.changed(name, value, "rows are shuffled in each epoch; set data.shuffle: false for the file's order")


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _environment(run: RecipeImport) -> None:
    """Translate the ENV of ms-swift's YAML, as far as it sets options."""
    environment = run.take("ENV")
    for name, value in (environment if isinstance(environment, dict) else {}).items():
        if name == "NPROC_PER_NODE" and (count := number(value)):
            run.processes = int(count)
        elif any(name in options for options in VARIABLES_OF_OBJECTIVE.values()):
            run.values.setdefault(name, value)
        else:
            run.unneeded(f"ENV.{name}", value, "is an environment variable: set it before the command")


def _quantisation(run: RecipeImport) -> None:
    bits, method = run.take("quant_bits", "quantization_bit"), str(run.take("quant_method") or "bnb")
    kind = str(run.take("bnb_4bit_quant_type") or "nf4")
    run.take("bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant")
    trainer.low_bit_of(run, "quant_bits", bits, method, kind)


def _accumulate(run: RecipeImport) -> None:
    """Accumulate to 16 rows over all processes, ms-swift's default."""
    if run.values.get("gradient_accumulation_steps") is None:
        rows = number(run.values.get("per_device_train_batch_size")) or 1
        steps = max(1, math.ceil(16 / rows / max(1, run.processes)))
        run.default("train.accumulation", steps)


def _peak(run: RecipeImport) -> None:
    run.default("optim.lr", 1e-5 if run.get("tuner.kind") == "full" else 1e-4)
