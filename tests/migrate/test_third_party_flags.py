"""Third-party command lines work, get a note, or are refused with a hint."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from swift.config.fields import core_fields
from swift.config.flags import nearest_flag
from swift.config.meanings import Default, NotNeeded, Refused
from swift.errors import SwiftError, UsageError
from swift.parsing import Parsed, config_from_mapping, parse
from swift.parsing.aliases import aliases, training_flags
from swift.parsing.plugin_flags import third_party_flag, third_party_flags
from swift.plugins.vocabularies import flag_topics

BASE = "--model m --dataset d"


def parsed(line: str, command: str = "sft") -> Parsed:
    return parse(shlex.split(f"{BASE} {line}"), command)


def value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return config


SETS: list[tuple[str, dict[str, Any]]] = [
    ("--bf16 false", {"model.dtype": "float32"}),
    ("--bf16 false --fp16 false", {"model.dtype": "float32"}),
    ("--bf16 False --torch_dtype float16", {"model.dtype": "float16"}),
    ("--fp16 false", {"model.dtype": "auto"}),
    ("--bf16 true --fp16 false", {"model.dtype": "bfloat16"}),
    ("--flash_attn fa2 --use_cpu", {"model.attention": "flash_attention_2", "backend.device": "cpu"}),
    ("--flash_attn auto --no_cuda true", {"model.attention": "auto", "backend.device": "cpu"}),
    ("--flash_attn sdpa --device cpu", {"model.attention": "sdpa", "backend.device": "cpu"}),
    ("--flash_attn disabled --enable_liger_kernel true", {"model.attention": "eager", "model.liger": True}),
    ("--flash_attn false --default_system 'Be brief.'", {"model.attention": "sdpa", "data.system": "Be brief."}),
    ("--flash_attn --no_packing", {"model.attention": "flash_attention_2", "data.packing": False}),
    ("--cutoff_len 1024", {"data.max_length": 1024, "data.truncation": "right"}),
    ("--cutoff_len 1024 --truncation_strategy delete", {"data.truncation": "delete"}),
    ("--sequence_len 1024", {"data.max_length": 1024, "data.truncation": "delete"}),
    ("--model_max_length 1024 --no-packing", {"data.max_length": 1024, "data.packing": False}),
    ("--packing_length 4096 --no_packing false", {"data.max_length": 4096, "data.packing": True}),
    ("--packing_length 4096 --max_length 4096 --neat_packing 1", {"data.max_length": 4096, "data.packing": True}),
    ("--truncation_strategy raise", {"data.truncation": "delete", "data.strict": True}),
    ("--sample_packing true --no_dataset_shuffle", {"data.packing": True, "data.shuffle": False}),
    ("--val_size 0.1 --train_dataloader_shuffle false", {"data.split_ratio": 0.1, "data.shuffle": False}),
    ("--max_samples 10", {"data.train": ("d#10",)}),
    ("--max_samples 10 --dataset e#5 --val_dataset v", {"data.train": ("d#10", "e#5"), "data.validation": ("v#10",)}),
    ("--dataset a.jsonl,b.jsonl", {"data.train": ("d", "a.jsonl", "b.jsonl")}),
    ("--preprocessing_num_workers 4 --dataset_text_field body", {"data.workers": 4, "data.columns": {"body": "text"}}),
    ("--enable_thinking false", {"data.template_kwargs": {"enable_thinking": False}}),
    ("--completion_only_loss true", {"data.loss_on": "last_round"}),
    ("--completion_only_loss false", {"data.loss_on": "all"}),
    ("--completion_only_loss true --assistant_only_loss false", {"data.loss_on": "last_round"}),
    ("--assistant_only_loss true", {"data.loss_on": "assistant"}),
    ("--train_on_inputs false", {"data.loss_on": "auto"}),
    ("--train_on_prompt true", {"data.loss_on": "all"}),
    ("--mask_history true", {"data.loss_on": "last_round"}),
    ("--train_type full --freeze_parameters model.embed lm_*", {"tuner.freeze": ("model.embed*", "lm_*")}),
    ("--per_gpu_train_batch_size 4 --per_gpu_eval_batch_size 3", {"train.micro_batch": 4, "train.eval_batch": 3}),
    ("--early_stopping_patience 3 --data_seed 7 --seed 6", {"train.early_stopping": 3, "train.data_seed": 7}),
    ("--optim adamw_hf", {"optim.name": "adamw"}),
    (
        "--use_galore true --galore_rank 64 --galore_update_proj_gap 50 --galore_scale 0.5 --galore_proj_type left "
        "--galore_target_modules q_proj,v_proj",
        {
            **{"optim.name": "galore", "optim.rank": 64, "optim.update_proj_gap": 50, "optim.scale": 0.5},
            **{"optim.proj_type": "left", "optim.targets": ("q_proj", "v_proj")},
        },
    ),
    (
        "--optim apollo_adamw --optim_args proj=random,rank=1,scale=128.0,scale_type=tensor --optim_target_modules all",
        {"optim.name": "apollo", "optim.rank": 1, "optim.scale": 128.0, "optim.scale_type": "tensor"},
    ),
    ("--use_muon true", {"optim.name": "muon"}),
    ("--report_to tensorboard,jsonl", {"logging.report_to": ("console", "jsonl", "report", "tensorboard")}),
]


@pytest.mark.parametrize(("line", "meaning"), SETS, ids=[line for line, _ in SETS])
def test_third_party_flag_sets_its_keys(line: str, meaning: dict[str, Any]) -> None:
    config = parsed(line).config
    assert {key: value(config, key) for key in meaning} == meaning


WORKS = """
--num_train_epochs 3 --warmup_steps 10 --lr_scheduler_type cosine --gradient_checkpointing true --torch_dtype bf16
--lr_scheduler_type linear --warmup_ratio 0.1 --lora_rank 16 --min_lr 1e-6 --dtype float32 --attn_impl sdpa
--lr_scheduler_type polynomial --warmup_steps 0.1 --lora_r 16 --lora_alpha 32 --lora_dropout 0 --bf16 True
--lr_scheduler_type constant_with_warmup --lora_target_modules q_proj v_proj --attn_impl eager --report_to none
--lr_scheduler_type cosine_with_min_lr --min_lr 1e-6 --lora_target_modules ALL --report_to all --train_type lora
--lr_scheduler_type cosine_with_restarts --lora_target all --attn_implementation flash_attention_2 --packing no
--lr_scheduler_type inverse_sqrt --target_modules all-linear --use_liger_kernel true --resume_from_checkpoint false
--lr_scheduler_kwargs '{"min_lr": 1e-6}' --target_modules all --use_rslora true --use_dora --lora_bias none
--lr_scheduler cosine --target_regex '.*q_proj' --modules_to_save embed_tokens lm_head --init_lora_weights gaussian
--quant_bits 4 --quant_method bnb --bnb_4bit_compute_dtype bfloat16 --torch_dtype bfloat16 --tuner_type lora
--bnb_4bit_quant_type nf4 --load_in_4bit --lorap_lr_ratio 16 --packing 1 --optim adamw_torch --local_rank 0
--load_in_4bit true --loraplus_lr_ratio 16 --packing yes --optim adamw_torch_fused --nproc 2
--load_in_8bit true --adapters x --packing on --optim adamw_8bit --metric_for_best_model loss
--quantization_bit 4 --use_peft --padding_free true --optim adamw_bnb_8bit --metric_for_best_model eval_loss
--train_type qlora --max_length 1024 --truncation_strategy left --optim lion_32bit --greater_is_better false
--sft_type full --max_seq_length 1024 --truncation_strategy right --optim adafactor --save_total_limit 2
--dataset e.jsonl#5 --val_dataset v.jsonl --optim muon --dataset_shuffle false --dataset_num_proc 4 --strict true
--eval_dataset v.jsonl --optim sgd --columns '{"q": "query"}' --system 'You are' --loss_scale default --packing
--split_dataset_ratio 0.1 --optim adamw_torch_4bit --loss_scale all --report_to tensorboard --run_name abc
--streaming true --max_steps 5 --output_dir out --resume_from_checkpoint true --merge_lora true --nproc_per_node 2
--adam_beta1 0.9 --adam_beta2 0.999 --max_grad_norm 0.5 --weight_decay 0 --label_smoothing_factor 0.1
--torch_compile true --gradient_accumulation_steps 4 --per_device_train_batch_size 4 --early_stop_interval 3
--global_batch_size 8 --trust_remote_code true --model_revision main --task_type causal_lm
--learning_rate 1e-4 --learning_rate 1e-4 --random_weights true --learning-rate=1e-4
"""


@pytest.mark.parametrize("line", WORKS.strip().splitlines())
def test_supported_flag_has_no_note(line: str) -> None:
    assert parsed(line).notes == parsed("").notes


NOTED = """
--do_train true --do_eval --disable_tqdm true --remove_unused_columns false --dataloader_num_workers 4
--dataloader_pin_memory true --dataloader_prefetch_factor 2 --dataloader_persistent_workers true
--dataloader_drop_last false --lazy_tokenize true --load_from_cache_file true --length_column_name length
--label_names labels --include_num_input_tokens_seen true --average_tokens_across_devices true
--eval_accumulation_steps 4 --acc_strategy token --log_level info --logging_dir logs --overwrite_output_dir
--save_safetensors true --save_on_each_node false --hub_strategy every_save --push_to_hub false
--ddp_find_unused_parameters false --ddp_backend nccl --torch_compile_backend inductor --template qwen3
--template_backend jinja --agent_template hermes --tools_prompt react_en --use_chat_template true --use_hf true
--check_model false --device_map auto --low_cpu_mem_usage true --vit_gradient_checkpointing true
--video_max_pixels 100 --model_kwargs '{}' --use_logits_to_keep true --use_lomo false --use_unsloth 0
--use_swift_lora false --lora_dtype float32
--do_train --template default --use_hf
--loss_type cross_entropy --dataset_text_field text --cutoff_len 100 --master_port 29501 --bf16 None --model_type llama
--bf16 false
--fp16 false
"""


@pytest.mark.parametrize("line", NOTED.strip().splitlines())
def test_unneeded_flags_are_noted_one_by_one(line: str) -> None:
    plain, noted = parsed(""), parsed(line)
    notes = [note for note in noted.notes if note not in plain.notes]
    flags = [word for word in line.split() if word.startswith("--")]
    assert sorted(re.split(r"[ :]", note)[0] for note in notes) == sorted(flags)
    assert not any("\n" in note for note in notes)
    if all(third_party_flag(flag.strip("-")) is not None for flag in flags):
        assert noted.config == plain.config


REFUSED: list[tuple[str, str]] = [
    ("--do_train false", "swift eval"),
    ("--predict_with_generate true", "swift infer"),
    ("--auto_find_batch_size true", "--per_device_train_batch_size"),
    ("--batch_size 4", "--global_batch_size"),
    ("--train_batch_size 16", "--per_device_train_batch_size"),
    ("--use_dft_loss true", "cross entropy"),
    ("--loss_type dft", "cross entropy"),
    ("--activation_cpu_offload true", "--gradient_checkpointing true"),
    ("--use_lomo true", "--optim adamw_4bit or q_galore"),
    ("--galore_quantization true", "--optim q_galore"),
    ("--galore_layerwise true", "--optim q_galore"),
    ("--apollo_proj svd", "--optim galore"),
    ("--use_badam true", "--train_type badam"),
    ("--optim_args a=b", "--adam_beta1"),
    ("--embedding_lr 1e-5", "--learning_rate"),
    ("--optim paged_adamw_8bit", "--deepspeed zero2_offload"),
    ("--optim lion_8bit", "adafactor"),
    ("--optim galore_adamw_8bit", "--optim q_galore"),
    ("--optim galore_adamw_layerwise", "--optim galore"),
    ("--optim lomo", "--deepspeed zero3_offload"),
    ("--group_by_length true", "--padding_free true"),
    ("--dataloader_drop_last true", "smaller step"),
    ("--interleave_prob 0.5 0.5", "#5000"),
    ("--mix_strategy interleave_under", "#5000"),
    ("--shuffle_buffer_size 1000", "4,096"),
    ("--cached_dataset x", "--dataset FILE"),
    ("--cache_dir c", "HF_HOME"),
    ("--val_size 100", "--val_dataset"),
    ("--packing_length 10 --max_length 20", "--max_length 10"),
    ("--max_samples many", "whole number"),
    ("--model_author me", "--dataset"),
    ("--custom_register_path x.py", "plugin"),
    ("--external_plugins x.py", "plugin"),
    ("--use_chat_template false", "swift pt"),
    ("--response_template x", "--loss_scale"),
    ("--response_prefix x", "--chat_template"),
    ("--loss_scale ignore_empty_think", "--loss_scale default"),
    ("--loss_scale hermes", "last_round"),
    ("--use_unsloth true", "--use_liger_kernel true"),
    ("--use_hf false", "ms::OWNER/NAME"),
    ("--device_map sequential", "--backend fsdp"),
    ("--device cuda:1", "CUDA_VISIBLE_DEVICES=1"),
    ("--max_memory 20GB", "--backend fsdp"),
    ("--new_special_tokens <a> <b>", "--modules_to_save"),
    ("--resize_vocab true", "resize_token_embeddings"),
    ("--max_position_embeddings 4096", "--max_length"),
    ("""--model_kwargs '{"a": 1}'""", "config.json"),
    ("--freeze_parameters_ratio 0.5", "--freeze_parameters"),
    ("--freeze_parameters model.embed_tokens", "--tuner.kind full"),
    ("--finetuning_type freeze", "--trainable_parameters"),
    ("--train_type longlora", "--ulysses 2"),
    ("--train_type adalora", "--init_lora_weights eva"),
    ("--train_type reft", "--train_type lora"),
    ("--train_type prefix", "--train_type lora"),
    ("--train_type fourierft", "--train_type lora"),
    ("--train_type lora_ga", "--init_lora_weights lora_ga"),
    ("--train_type eva", "--init_lora_weights eva"),
    ("--ref_model x", "--model REFERENCE"),
    ("--add_version false", "--run_name"),
    ("--push_to_hub true", "swift export RUN --push"),
    ("--hub_model_id me/m", "swift export RUN --push"),
    ("--hub_token abc", "HF_TOKEN"),
    ("--ignore_data_skip true", "--resume_only_model true"),
    ("--zero_hpz_partition_size 2", "swift config deepspeed zero3"),
    ("--bf16 false --torch_dtype bfloat16", "contradict"),
    ("--trainable_parameters_regex .*", "--tuner.kind full"),
    ("--recompute_granularity full", "--backend megatron"),
    ("--fp8 true", "'hybrid'"),
    ("--optim.lr 1e-5 --learning_rate 1e-4", "Keep one"),
    ("-model tiny", "--model"),
    ("-d x", "--dataset"),
]


@pytest.mark.parametrize(("line", "named"), REFUSED, ids=[line for line, _ in REFUSED])
def test_flags_that_change_results_are_refused(line: str, named: str) -> None:
    """What would change the result is refused with what to type."""
    with pytest.raises(UsageError) as refused:
        parsed(line)
    assert line.split()[0] in str(refused.value)
    assert named in str(refused.value)
    assert refused.value.hint


OUT_OF_BOUNDS = """
--logging_steps 0
--num_train_epochs 0
--learning_rate 0
--learning_rate 1e-4,
--lora_rank 0
--max_length 0
--per_device_train_batch_size 0
--gradient_accumulation_steps auto
--init_weights corda
"""


@pytest.mark.parametrize("line", OUT_OF_BOUNDS.strip().splitlines())
def test_invalid_value_error_is_one_sentence(line: str) -> None:
    with pytest.raises(SwiftError) as refused:
        parsed(line)
    flag, typed = line.split()
    assert refused.value.message.startswith(flag)
    assert repr(typed) in refused.value.message


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--tp 2", "--parallel.tp 1"),
        ("--task_type value", "--model.task causal_lm"),
        ("--task_type prm", "swift rlhf --objective prm"),
        ("--loss_type sigmoid", "unknown key 'objective.loss' for the objective 'sft'"),
        ("--report_to nosuch", "swift plugins"),
    ],
)
def test_conflicting_flags_name_each_other(line: str, named: str) -> None:
    """Flags that do not go with the rest are refused with what they do go with."""
    with pytest.raises(SwiftError) as refused:
        parsed(line)
    assert named in str(refused.value)


@pytest.mark.usefixtures("stand_ins")
def test_deepspeed_preset_names_match_ms_swift() -> None:
    for typed, preset in [("zero3_cpu_offload", "zero3_offload"), ("default-zero3", "zero3"), ("own.json", "own.json")]:
        assert parsed(f"--deepspeed {typed}").backend_options.model_dump()["config"] == preset
    assert parsed("--deepspeed zero3 --deepspeed_autotp_size 2").config.parallel.tp == 2


def test_hub_token_is_not_printed() -> None:
    with pytest.raises(UsageError) as refused:
        parsed("--hub_token hf_secret")
    assert "hf_secret" not in str(refused.value)


def test_list_flag_ends_before_config_file(tmp_path: Path) -> None:
    """The values of a third-party list flag end before a configuration file."""
    file = tmp_path / "run.yaml"
    file.write_text("lora_rank: 4\nuse_lomo: false\ndo_train: true\npush_to_hub:\n")
    read = parse(["--disable_tqdm", str(file), *BASE.split()], "sft")
    assert read.config.tuner.model_extra is not None
    assert read.config.tuner.model_extra["rank"] == 4
    assert [note.partition(" is not needed")[0] for note in read.notes] == [
        f"{file}:2: use_lomo false",
        f"{file}:3: do_train",
        "--disable_tqdm",
    ]


def test_file_and_keyword_errors_match_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: m\nuse_lomo: true\n")
    with pytest.raises(UsageError, match=rf"{re.escape(str(file))}:2: use_lomo is not supported: updates"):
        parse([str(file), "--dataset", "d"], "sft")
    with pytest.raises(UsageError, match="gradient clipping"):
        config_from_mapping({"model": "m", "use_lomo": True}, "sft")
    keywords = config_from_mapping({"model": "m", "dataset": "d", "bf16": False, "disable_tqdm": True}, "sft")
    assert keywords.config.model.dtype == "float32"
    assert len(keywords.notes) == 2


def test_precision_flag_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("bf16: false\n")
    assert parse([str(file), *BASE.split(), "--fp16", "true"], "sft").config.model.dtype == "float16"
    file.write_text("bf16: true\n")
    assert parse([str(file), *BASE.split(), "--bf16", "false"], "sft").config.model.dtype == "float32"


def test_file_name_with_comma_is_one_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a,b.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    assert parsed("--val_dataset a,b.jsonl").config.data.validation == ("a,b.jsonl",)
    assert parsed("--val_dataset a,c.jsonl").config.data.validation == ("a", "c.jsonl")


def test_table_rows_do_not_overlap_aliases() -> None:
    rows = [flag for topic in flag_topics() if not topic.commands for flags in topic.meanings for flag in flags]
    assert [flag for flag, count in Counter(rows).items() if count > 1] == []
    assert set(rows) & (aliases().keys() | core_fields().keys() | training_flags().about_command.keys()) == set()


def test_table_rows_form_complete_messages() -> None:
    for flag, meaning in third_party_flags().items():
        assert re.fullmatch(r"[a-z0-9_]+", flag), flag
        if isinstance(meaning, NotNeeded | Default):
            assert not meaning.note.endswith("."), flag
        if isinstance(meaning, Refused | Default):
            assert meaning.reason.endswith("."), flag
            assert meaning.hint, flag


def test_hints_name_existing_flags() -> None:
    table = training_flags()
    elsewhere = {"push", "metric", "logdir", "help"}  # of swift export, swift eval and TensorBoard
    for flag, meaning in third_party_flags().items():
        said = meaning.note if isinstance(meaning, NotNeeded) else f"{meaning.reason} {meaning.hint}"
        for named in re.findall(r"--([\w.]+)", said):
            assert named in elsewhere or table.arity(named.strip(".")) not in (None, "words"), (flag, named)


SLIPS = [
    ("learnign_rate", "learning_rate"),
    ("lora_rnak", "lora_rank"),
    ("gradient_accumulation_step", "gradient_accumulation_steps"),
    ("pakcing", "packing"),
    ("num_epochs", "num_train_epochs"),
]
THIRD_PARTY = (
    "evaluation_strategy", "tf32", "lora_bias", "init_lora_weights", "quant_method",
    "use_peft", "fsdp_config", "use_unsloth", "val_size", "mix_strategy", "max_samples", "logging_dir", "add_version",
    "hub_token", "hub_strategy", "ddp_backend", "load_best_model_at_end", "use_lomo", "group_by_length",
    "length_column_name", "ddp_timeout", "data_seed", "agent_template", "model_author",
    "ref_model", "use_hf", "label_names", "log_level", "disable_tqdm", "eval_on_start",
    "acc_strategy", "train_on_prompt", "response_template", "max_memory", "task_mode", "use_dft_loss", "lora_dtype",
    "use_cpu", "no_cuda", "fp8", "fp8_recipe", "cached_dataset", "enable_thinking", "load", "attention_backend",
    "moe_permute_fusion", "no_save_optim",
)  # fmt: skip


@pytest.mark.parametrize(("typed", "meant"), SLIPS)
def test_misspelled_flag_gets_suggestion(typed: str, meant: str) -> None:
    assert f"'--{meant}'" in training_flags().unknown(f"--{typed}").message


def test_similar_looking_flag_is_not_suggested() -> None:
    """No similar-looking flag is suggested for a third-party flag."""
    own = [flag for flag in (*aliases(), *core_fields()) if flag not in THIRD_PARTY]
    for typed in THIRD_PARTY:
        guess = nearest_flag(typed, own)
        words = set(re.split(r"[._]", typed))
        assert (
            guess is None
            or words & set(re.split(r"[._]", guess))
            or (difflib.SequenceMatcher(None, typed, guess).ratio() >= 0.85)
        ), (typed, guess)
    # These guesses are never shown: each of these flags is explained or taken as it is.
    assert {typed: guess for typed in THIRD_PARTY if (guess := nearest_flag(typed, own))} == {
        "init_lora_weights": "init_weights", "val_size": "eval_batch_size", "max_samples": "max_resample_times",
        "data_seed": "train.data_seed", "ref_model": "sync_ref_model", "eval_on_start": "eval_at_start",
        "train_on_prompt": "train_on_inputs",
    }  # fmt: skip
