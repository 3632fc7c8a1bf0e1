"""Flags and their aliases: what people know how to type sets the keys that they mean."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from swift.config.flags import read_flags
from swift.errors import ConfigError, PluginError, UsageError
from swift.parsing import Parsed, parse
from swift.parsing.aliases import aliases, training_flags

BASE = "--model m --dataset d"


def parsed(line: str, command: str = "sft") -> Parsed:
    return parse(shlex.split(f"{BASE} {line}"), command)


def value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


MEANINGS: list[tuple[str, dict[str, Any]]] = [
    ("--val_dataset v w --packing", {"data.validation": ("v", "w"), "data.packing": True}),
    ("--train_type full --split_dataset_ratio 0.1", {"tuner.kind": "full", "data.split_ratio": 0.1}),
    ("--tuner_type lora --lora_rank 64", {"tuner.kind": "lora", "tuner.rank": 64}),
    ("--train_type qlora", {"tuner.kind": "lora", "tuner.quantize": "bnb-nf4"}),
    ("--train_type dora", {"tuner.kind": "lora", "tuner.dora": True}),
    ("--train_type sft", {"objective.name": "sft", "tuner.kind": "lora"}),
    ("--lora_alpha 16 --lora_dropout 0", {"tuner.alpha": 16.0, "tuner.dropout": 0.0}),
    ("--target_modules q_proj v_proj --learning_rate 1e-5", {"tuner.targets": ("q_proj", "v_proj"), "optim.lr": 1e-5}),
    ("--lora_target_modules q_proj,v_proj --optim.lr 2e-5", {"tuner.targets": ("q_proj", "v_proj"), "optim.lr": 2e-5}),
    ("--lora_target all --weight_decay 0", {"tuner.targets": ("all-linear",), "optim.weight_decay": 0.0}),
    ("--target_modules ALL --max_grad_norm 0.5", {"tuner.targets": ("all-linear",), "optim.max_grad_norm": 0.5}),
    ("--target_modules .*q_proj", {"tuner.target_regex": ".*q_proj", "tuner.targets": ("all-linear",)}),
    ("--target_regex '.*[qv]_proj'", {"tuner.target_regex": ".*[qv]_proj"}),
    ("--lora_bias lora_only --init_lora_weights gaussian", {"tuner.bias": "lora_only", "tuner.init": "gaussian"}),
    ("--init_weights true --max_steps 20", {"tuner.init": "default", "train.max_steps": 20}),
    (
        """--rank_pattern '{"q_proj": 4}' --alpha_pattern '{"q_proj": 8}'""",
        {"tuner.rank_pattern": {"q_proj": 4}, "tuner.alpha_pattern": {"q_proj": 8.0}},
    ),
    ("--use_peft --num_train_epochs 3", {"tuner.kind": "lora", "train.epochs": 3.0}),
    ("--use_peft false --max_epochs 3", {"tuner.kind": "full", "train.epochs": 3.0}),
    ("--finetuning_type full --freeze_parameters model.embed_tokens", {"tuner.freeze": ("model.embed_tokens*",)}),
    ("--train_type full --freeze_parameters '*.mlp.*'", {"tuner.freeze": ("*.mlp.*",)}),
    ("--freeze_vit false --freeze_aligner true", {"tuner.freeze_vit": False, "tuner.freeze_aligner": True}),
    ("--freeze_language_model true --max_steps -1", {"tuner.freeze_llm": True, "train.max_steps": None}),
    (
        "--train_type full --freeze_parameters_ratio 1 --trainable_parameters lm_head model.norm",
        {"tuner.freeze_ratio": 1.0, "tuner.unfreeze": ("lm_head*", "model.norm*")},
    ),
    ("--train_type full --trainable_parameters lm_head", {"tuner.train_only": ("lm_head*",), "tuner.unfreeze": ()}),
    ("--quant_bits 4", {"tuner.quantize": "bnb-nf4", "tuner.double_quant": True}),
    ("--quant_bits 4 --quant_method torchao", {"tuner.quantize": "torchao-nf4"}),
    ("--quantization_bit 8 --quantization_method bitsandbytes", {"tuner.quantize": "bnb-int8"}),
    ("--load_in_4bit --load_in_8bit false", {"tuner.quantize": "bnb-nf4"}),
    ("--load_in_8bit true --packing false", {"tuner.quantize": "bnb-int8", "data.packing": False}),
    ("--load_in_4bit --bnb_4bit_quant_type fp4 --bnb_4bit_use_double_quant false", {"tuner.quantize": "bnb-fp4"}),
    ("--load_in_4bit --bnb_4bit_use_double_quant false", {"tuner.double_quant": False}),
    ("--train_type qlora --quant_bits 4 --bnb_4bit_quant_type nf4", {"tuner.quantize": "bnb-nf4"}),
    ("--train_type qlora --bnb_4bit_quant_type fp4", {"tuner.quantize": "bnb-fp4"}),
    ("--quant_bits 4 --bnb_4bit_compute_dtype bfloat16", {"model.dtype": "bfloat16"}),
    ("--quant_bits none --max_length 4096", {"tuner.quantize": "none", "data.max_length": 4096}),
    ("--lr_scheduler_type linear --torch_dtype bfloat16", {"optim.schedule": "linear", "model.dtype": "bfloat16"}),
    (
        "--lr_scheduler_type constant_with_warmup --torch-dtype fp16",
        {"optim.schedule": "constant", "model.dtype": "float16"},
    ),
    ("--warmup_ratio 0.1 --warmup_steps 7", {"optim.warmup_ratio": 0.1, "optim.warmup_steps": 7}),
    ("--adam_beta1 0.8 --adam_beta2 0.99 --bf16", {"optim.beta1": 0.8, "optim.beta2": 0.99, "model.dtype": "bfloat16"}),
    ("--per_device_train_batch_size 4 --fp16 true", {"train.micro_batch": 4, "model.dtype": "float16"}),
    ("--gradient_accumulation_steps 8 --use_fp16", {"train.accumulation": 8, "model.dtype": "float16"}),
    ("--streaming true --max-steps 5 --seed 7", {"data.streaming": True, "train.max_steps": 5, "train.seed": 7}),
    ("--bf16 false --fp16 --use_flash_attn 1", {"model.dtype": "float16", "model.attention": "flash_attention_2"}),
    (
        "--attn_impl flash_attn --output_dir out",
        {"model.attention": "flash_attention_2", "logging.output": Path("out")},
    ),
    ("--gradient_checkpointing", {"train.gradient_checkpointing": True}),
    ("--parallel_method ddp --model_type qwen3", {"backend.name": "torch", "model.path": "m"}),
    ("--backend torch --backend.device cpu", {"backend.name": "torch", "backend.device": "cpu"}),
    ("--save_steps 10 --save_total_limit 2", {"checkpoint.save_steps": 10, "checkpoint.keep": 2}),
    ("--eval_steps 5 --logging_steps 1", {"train.eval_steps": 5, "logging.steps": 1}),
    ("--resume_from_checkpoint c --merge_lora true", {"checkpoint.resume": "c", "export.to": "hf"}),
    ("--resume_from_checkpoint", {"checkpoint.resume": "last"}),
    ("--report_to tensorboard", {"logging.report_to": ("console", "jsonl", "report", "tensorboard")}),
    ("--report_to none", {"logging.report_to": ("console", "jsonl", "report")}),
    ("""--columns '{"a": "query"}'""", {"data.columns": {"a": "query"}}),
    ("--data.columns.My-Text query", {"data.columns": {"My-Text": "query"}}),
    ("--data.template-kwargs.enable_thinking false", {"data.template_kwargs": {"enable_thinking": False}}),
    ("--system 'Be brief.' --loss_scale last_round", {"data.system": "Be brief.", "data.loss_on": "last_round"}),
    ("--system '- one\n- two'", {"data.system": "- one\n- two"}),
    ("--truncation_strategy right --dataset e#5 f", {"data.truncation": "right", "data.train": ("d", "e#5", "f")}),
    ("--local_rank=3 --objective.label_smoothing 0.1", {"objective.label_smoothing": 0.1}),
]


@pytest.mark.parametrize(("line", "meaning"), MEANINGS, ids=[line for line, _ in MEANINGS])
def test_flag_sets_its_keys(line: str, meaning: dict[str, Any]) -> None:
    config = parsed(line).config
    assert {key: value(config, key) for key in meaning} == meaning


def test_dashes_and_underscores_are_equal() -> None:
    dashes = parsed("--per-device-train-batch-size 4 --optim.weight-decay 0.2 --lora-rank=3").config
    underscores = parsed("--per_device_train_batch_size=4 --optim.weight_decay=0.2 --lora_rank 3").config
    assert dashes == underscores


def test_rlhf_selects_objective_and_options() -> None:
    kto = parsed("--rlhf_type kto --beta 0.3", command="rlhf")
    assert kto.config.objective.name == "kto"
    assert kto.objective.options.model_dump()["beta"] == 0.3
    dpo = parsed("", command="rlhf")
    assert dpo.config.objective.name == "dpo"
    assert any("dpo" in note for note in dpo.notes)


def test_repeated_flag_uses_last_value_with_note() -> None:
    """The last value of a repeated flag counts, and a note reports it."""
    twice = parsed("--learning_rate 1e-5 --seed 7 --learning-rate 2e-5 --seed 7")
    assert twice.config.optim.lr == 2e-5
    (note,) = [note for note in twice.notes if "twice" in note]
    assert note == "--learning-rate is given twice, as '1e-5' and '2e-5'; the last one counts."
    assert parsed("--val_dataset v --val-dataset w").config.data.validation == ("v", "w")
    assert not any("twice" in note for note in parsed("--val_dataset v --val-dataset w").notes)


def test_flags_without_effect_are_reported() -> None:
    assert any("--lora_rank has no effect" in note for note in parsed("--train_type full --lora_rank 4").notes)
    assert any("--model_type qwen3" in note for note in parsed("--model_type qwen3").notes)


MISTAKES = [
    ("--learning_rat 1", "Unknown flag --learning_rat. Did you mean '--learning_rate'?"),
    ("--optim.lrr 1", "Did you mean '--optim.lr'?"),
    ("--tuner.freeze lm_head*", "--tuner.freeze is an option of the tuner 'full', but tuner.kind is lora"),
    ("--rank 4", "Did you mean '--tuner.rank'?"),
    ("-tp 2", "Unknown flag -tp. Did you mean '--tp'?"),
    ("--lr abc", "--lr must be a number, not 'abc'"),
    ("--lr -1", "--lr must be greater than 0"),
    ("--optim.beta1 2", "--optim.beta1 must be at most 1"),
    ("--max_length 1.5", "--max_length must be a whole number"),
    ("--packing perhaps", "--packing must be true or false"),
    ("--lr", "--lr needs a value"),
    ("--val_dataset", "--val_dataset needs at least one value"),
    ("--lr 1 2", "--lr takes one value"),
    ("--model tiny data.jsonl", "Did you mean --dataset data.jsonl?"),
    ("--bf16 --fp16", "--bf16 and --fp16 contradict each other"),
    ("--lr 1 --learning_rate 2", "--lr and --learning_rate contradict each other"),
    ("--torch_dtype fp8", "Unknown value 'fp8' for --torch_dtype"),
    ("--train_type lorra", "Did you mean 'lora'?"),
    ("--attn_impl flash_attenion_2", "Did you mean 'flash_attention_2'?"),
    ("--columns {a:b}", "--columns must be a JSON object"),
    ("--columns [1]", "--columns must be a JSON object"),
    ("--data.truncation cut", "--data.truncation must be one of 'delete', 'right', 'left' or 'split'"),
    ("--beta 0.1", "unknown key 'objective.beta' for the objective 'sft'"),
    ("--backend.devise cpu", "for the backend 'torch'. Did you mean '--backend.device'?"),
    ("--backend megatron --backend.bucket_mb 3", "is an option of the backend 'torch', but backend.name is megatron"),
    ("--backend.device tpu", "--backend.device must be one of 'auto', 'cpu' or 'cuda'"),
    ("--nproc zero", "--nproc must be a number of processes"),
    ("--train_type cpt", "swift sft does not train the objective 'pt' (--train_type)"),
    ("--rlhf_type dpo", "Type: swift rlhf"),
    ("--sequence_parallel_size 2", "--ulysses 2"),
    ("--parallel_method megatron --sequence_parallel_size 2", "--cp 2"),
    ("--parallel_method megatron --sequence_parallel_size two", "must be a whole number"),
]


@pytest.mark.parametrize(("line", "sentence"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_invalid_flag_error_is_one_sentence(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        parsed(line)
    assert caught.value.exit_code == 2
    assert "pydantic" not in str(caught.value)


def test_missing_observer_or_exporter_fails_early(without_vllm: None) -> None:
    with pytest.raises(PluginError, match="Did you mean 'megatron'"):
        parsed("--backend megatorn")
    with pytest.raises(PluginError, match="no observer 'wandbb'"):
        parsed("--report_to wandbb")
    with pytest.raises(PluginError, match=r"core\[vllm\]"):
        parsed("--export.to vllm")


@pytest.mark.parametrize("command", ["pt", "sft", "rlhf", "train"])
def test_missing_model_or_data_error_has_example(command: str) -> None:
    with pytest.raises(UsageError, match=f"swift {command} needs --dataset") as caught:
        parse(["--model", "m"], command)
    shown = re.search(rf"swift {command} (.*)", caught.value.hint or "")
    assert shown is not None
    assert parse(shlex.split(shown.group(1)), command).config.model.path == "m"
    with pytest.raises(UsageError, match=r"needs --model .* and --dataset"):
        parse([], command)


@pytest.mark.parametrize(
    ("line", "sentence", "hint"),
    [
        ("--init_lora_weights pissa --use_dora true", "cannot be used with tuner.dora", "Leave one"),
        ("--init_lora_weights corda", "is not implemented", ""),
        ("--tuner.init pissa --tuner.init_batches 4", "needs tuner.init eva or lora_ga", "Leave it out"),
        ("--tuner.init orthogonal --lora_rank 3", "needs even ranks", "--lora_rank 8"),
        ("--target_modules all-router", "routers of mixtures", ""),
        ("--target_modules all q_proj", "either all-linear or names", ""),
        ("--target_regex '(q'", "must be a regular expression", ""),
        ("--target_regex .*q --target_modules k_proj", "cannot be used together", "Keep one"),
        ("--train_type full --tuner.unfreeze lm_head", "nothing is frozen", "--tuner.freeze_ratio 1"),
        ("--quant_method awq", "is not supported for training; QLoRA needs bitsandbytes", "--quant w4a16"),
        ("--quant_method hqq --quant_bits 4", "Unknown value 'hqq'", "--quant_method bnb"),
        ("--quant_method bnb", "needs a number of bits", "--quant_bits 4"),
        ("--quant_bits 3", "must be 4 or 8", ""),
        ("--quant_bits 8 --load_in_4bit", "contradict each other", ""),
        ("--quant_bits 8 --train_type qlora", "contradict each other", ""),
        ("--quant_bits 8 --quant_method torchao", "supports 4 bits, not 8", "bnb"),
        ("--quant_bits 4 --fp16 --bnb_4bit_compute_dtype bfloat16", "in the model's precision", "Keep one"),
    ],
)
def test_invalid_tuner_options_name_reason(line: str, sentence: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parsed(line)
    assert sentence in refusal.value.message
    assert hint in (refusal.value.hint or "")


def test_four_bit_flags_without_effect_are_noted() -> None:
    assert parsed("--bnb_4bit_quant_type nf4").notes == [
        "--bnb_4bit_quant_type has no effect without 4-bit weights (--quant_bits 4)."
    ]
    stored = parsed("--quant_bits 4 --bnb_4bit_quant_storage uint8")
    assert any("--bnb_4bit_quant_storage is not needed" in note for note in stored.notes)


def test_model_folder_without_flag_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="Did you mean --model "):
        parse([str(tmp_path), "--dataset", "d"], "sft")


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Unexpected argument 'data\.jsonl'\.\nDid you mean --dataset data\.jsonl\?"):
        parse(["data.jsonl", "--model", "m"], "sft")


INTERFACE = """
model model_type model_id dataset val_dataset split_dataset_ratio train_type tuner_type lora_rank lora_alpha
lora_dropout target_modules learning_rate lr_scheduler_type warmup_ratio warmup_steps weight_decay adam_beta1
adam_beta2 max_grad_norm num_train_epochs max_epochs max_steps per_device_train_batch_size
gradient_accumulation_steps max_length packing torch_dtype bf16 fp16 use_fp16 attn_impl use_flash_attn
gradient_checkpointing deepspeed parallel_method fsdp tensor_parallel_size tp pipeline_parallel_size pp
context_parallel_size expert_parallel_size sequence_parallel save_steps save_total_limit eval_steps logging_steps
output_dir resume_from_checkpoint seed report_to merge_lora columns system loss_scale truncation_strategy streaming
rlhf_type beta vit_lr aligner_lr freeze_vit freeze_aligner freeze_llm
"""


def test_every_flag_accepts_both_spellings() -> None:
    """Every flag of the interface is known with both spellings."""
    for name in INTERFACE.split():
        assert name in aliases()
        for spelled in (name, name.replace("_", "-")):
            line = read_flags([f"--{spelled}", "1"], training_flags())
            assert (list(line.flags), line.positional) == ([name], [])


def test_contradicting_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match="--deepspeed and --parallel_method contradict each other"):
        parsed("--deepspeed zero3 --parallel_method megatron")
    with pytest.raises(
        ConfigError, match="One backend trains the whole model: Megatron for the vision encoder and ZeRO 3"
    ):
        parsed("--backend megatron --deepspeed zero3")


@pytest.mark.parametrize("line", ["", "--report_to none", "--report_to all"])
def test_core_alone_reports_to_what_is_installed(line: str, without_trackers: None) -> None:
    assert parsed(line).config.observers == ("console", "jsonl")


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "tensorboard"), ("report", "trackers"), ("aim", "aim")])
def test_named_tracker_not_installed_names_install(name: str, extra: str, without_trackers: None) -> None:
    with pytest.raises(PluginError, match=f"observer '{name}' is not installed") as caught:
        parsed(f"--report_to {name}")
    assert f'core[{extra}]"' in (caught.value.hint or "")


@pytest.mark.parametrize("line", ["--optim galore", "--use_muon true", "--optim adamw_8bit"])
def test_missing_optimizer_names_install(line: str, without_tuning: None) -> None:
    with pytest.raises(PluginError, match=r"optimizer '.*' .*is not installed") as caught:
        parsed(line)
    assert 'core[tuning]"' in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("command", "line"), [("rlhf", ""), ("rlhf", "--rlhf_type kto"), ("sft", "--task_type embedding")]
)
def test_missing_objective_names_install(command: str, line: str, without_objectives: None) -> None:
    with pytest.raises(PluginError, match=r"(objective|command) '.*' is not installed") as caught:
        parsed(line, command)
    assert 'core[objectives]"' in (caught.value.hint or "")
