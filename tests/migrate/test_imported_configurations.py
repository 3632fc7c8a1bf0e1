"""Third-party configurations: small recipes with the keys of published ones, and their imports."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import typed

from swift.parsing import parse

LLAMA_FACTORY = """
model_name_or_path: someone/some-model
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_target: q_proj,v_proj
lora_rank: 4
dataset: chats, more
template: llama3
cutoff_len: 512
max_samples: 100
overwrite_cache: true
preprocessing_num_workers: 2
output_dir: saves
logging_steps: 10
plot_loss: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 2e-4
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
use_badam: true
"""
AXOLOTL = """
base_model: someone/some-model
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_linear: true
datasets:
  - {path: someone/chats, name: main, type: alpaca, split: "train[:200]"}
  - {path: someone/other, type: chat_template, split: "train[10%:]"}
sequence_len: 1024
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 2
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
val_set_size: 0.05
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
wandb_project:
special_tokens: {pad_token: "<pad>"}
plugins: [axolotl.integrations.liger.LigerPlugin]
deepspeed:
"""
TRL = """
model_name_or_path: someone/some-model
dataset_mixture:
  datasets: [{id: someone/chats, config: all, split: train, weight: 1.0}]
  test_split_size: 0.1
learning_rate: 2e-5
num_train_epochs: 1
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
max_length: 256
packing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
push_to_hub: true
max_steps: -1
save_strategy: epoch
output_dir: some-sft
"""
MS_SWIFT = r"""#!/bin/bash
# two GPUs
nproc_per_node=2
MODEL=someone/some-model
CUDA_VISIBLE_DEVICES=0,1 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model "$MODEL" --tuner_type full --dataset 'someone/chats#500' others.jsonl#20 \
    --torch_dtype bfloat16 --per_device_train_batch_size 1 --learning_rate 1e-5 --max_length 2048 \
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) --save_total_limit 2 --deepspeed zero2 \
    --attn_impl flash_attn > log.txt 2>&1

swift export --ckpt_dir output --merge_lora true
swift rlhf --rlhf_type dpo --model $MODEL --dataset pairs.jsonl --freeze_vit true; swift infer --stream true
"""
TORCHTUNE = """
output_dir: /tmp/tune
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, path: /tmp/model/tokenizer.model, max_seq_len: null}
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
  lora_dropout: 0.0
checkpointer: {_component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: /tmp/model/,
               output_dir: "${output_dir}"}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: True, split: "train[:95%]"}
seed: 7
shuffle: True
batch_size: 4
batch_size_val: ${batch_size}
optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 3e-4}
lr_scheduler: {_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 100}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
epochs: 1
max_steps_per_epoch: null
gradient_accumulation_steps: 8
clip_grad_norm: null
dtype: bf16
enable_activation_checkpointing: True
"""
NEMO = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 8, ckpt_every_steps: 100, num_epochs: 2}
rng: {_target_: nemo_automodel.components.training.rng.StatefulRNG, seed: 1111}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path: someone/some-model}
peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, target_modules: '*_proj', dim: 16, alpha: 32}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 2, cp_size: 1}
dataset:
  _target_: nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset
  path_or_dataset_id: someone/chats
  split: train
dataloader: {_target_: torchdata.stateful_dataloader.StatefulDataLoader, shuffle: false}
optimizer: {_target_: torch.optim.Adam, betas: [0.9, 0.95], eps: 1e-8, lr: 1.0e-5, weight_decay: 0}
lr_scheduler: {lr_decay_style: cosine, min_lr: 1.0e-6}
qlora_extra: {rank: 3}
"""
TRAINER = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "learning_rate": 3e-5,
    "adam_beta1": 0.9,
    "warmup_steps": 0.1,
    "lr_scheduler_type": "linear",
    "bf16": True,
    "group_by_length": False,
    "eval_strategy": "no",
    "max_steps": 30,
    "optim": "adamw_torch_fused",
    "neftune_noise_alpha": 5,
}
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

CASES: dict[str, tuple[str, str, dict[str, dict[str, Any]], list[str], str]] = {
    "LLaMA-Factory": (
        "run.yaml",
        LLAMA_FACTORY,
        {
            "model": {"path": "someone/some-model", "dtype": "bfloat16"},
            "data": {"train": ["chats#100", "more#100"], "max_length": 512, "truncation": "right", "workers": 2,
                     "loss_on": "assistant"},
            "tuner": {"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0.0, "targets": ["q_proj", "v_proj"]},
            "optim": {"lr": 2e-4, "schedule": "cosine", "warmup_ratio": 0.1, "weight_decay": 0.0, **ADAM},
            "train": {"epochs": 3.0, "micro_batch": 2, "accumulation": 8, "gradient_checkpointing": True},
            "checkpoint": {"save_steps": 500},
        },
        ["use_badam"],
        "swift sft made.yaml --trust_remote_code true",
    ),
    "axolotl": (
        "run.yml",
        AXOLOTL,
        {
            "model": {"dtype": "auto"},
            "data": {"train": ["someone/chats:main#200", "someone/other"], "max_length": 1024, "packing": True,
                     "split_ratio": 0.05, "truncation": "delete"},
            "tuner": {"quantize": "bnb-nf4", "rank": 32, "alpha": 16, "dropout": 0.0, "targets": ["all-linear"]},
            "optim": {"name": "adamw_8bit", "lr": 2e-5, "warmup_steps": 10, "weight_decay": 0.0, **ADAM},
            "train": {"epochs": 2, "micro_batch": 2, "accumulation": 4, "gradient_checkpointing": False},
        },
        ["datasets.split"],
        "swift sft made.yaml",
    ),
    "TRL": (
        "run.yaml",
        TRL,
        {
            "model": {"path": "someone/some-model", "dtype": "bfloat16"},
            "data": {"train": ["someone/chats:all"], "max_length": 256, "packing": True, "loss_on": "all",
                     "split_ratio": 0.1},
            "tuner": {"kind": "full"},
            "optim": {"lr": 2e-5, "schedule": "cosine", "min_lr_ratio": 0.1, "warmup_steps": 0, **ADAM},
            "train": {"epochs": 1, "micro_batch": 8, "accumulation": 1, "gradient_checkpointing": True},
        },
        ["push_to_hub"],
        "swift sft made.yaml",
    ),
    "ms-swift": (
        "run.sh",
        MS_SWIFT,
        {
            "model": {"path": "someone/some-model", "dtype": "bfloat16", "attention": "flash_attention_2"},
            "data": {"train": ["someone/chats#500", "others.jsonl#20"], "max_length": 2048, "truncation": "delete"},
            "tuner": {"kind": "full"},
            "optim": {"lr": 1e-5, "schedule": "cosine", "warmup_steps": 0, "weight_decay": 0.1, "beta2": 0.95},
            "train": {"epochs": 3.0, "micro_batch": 1, "accumulation": 8, "gradient_checkpointing": True},
            "checkpoint": {"save_steps": 500, "keep": 2},
            "backend": {"name": "deepspeed"},
        },
        [],
        "swift sft made.yaml --nproc 2",
    ),
    "torchtune": (
        "run.yaml",
        TORCHTUNE,
        {
            "model": {"path": "/tmp/model/", "dtype": "bfloat16"},
            "data": {"train": ["yahma/alpaca-cleaned"], "packing": True, "loss_on": "all", "split_ratio": 0.05},
            "tuner": {"rank": 64, "alpha": 128,
                      "targets": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
            "optim": {"lr": 3e-4, "warmup_steps": 100, "weight_decay": 0.01, "max_grad_norm": 0.0, **ADAM},
            "train": {"epochs": 1, "micro_batch": 4, "accumulation": 8, "eval_batch": 4, "seed": 7,
                      "gradient_checkpointing": True},
        },
        [],
        "swift sft made.yaml",
    ),
    "NeMo Automodel": (
        "run.yaml",
        NEMO,
        {
            "data": {"train": ["someone/chats"], "shuffle": False},
            "tuner": {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": ["all-linear"]},
            "optim": {"lr": 1e-5, "min_lr_ratio": 0.1, "beta2": 0.95, "weight_decay": 0, "schedule": "cosine"},
            "train": {"epochs": 2, "global_batch": 64, "micro_batch": 8, "seed": 1111},
            "parallel": {"tp": 2},
            "backend": {"name": "fsdp"},
            "checkpoint": {"save_steps": 100},
        },
        ["qlora_extra.rank"],
        "swift sft made.yaml",
    ),
    "Hugging Face Trainer": (
        "training_args.json",
        json.dumps(TRAINER),
        {
            "model": {"dtype": "bfloat16"},
            "tuner": {"kind": "full"},
            "optim": {"lr": 3e-5, "schedule": "linear", "warmup_ratio": 0.1, "weight_decay": 0.0, **ADAM},
            "train": {
                "max_steps": 30, "micro_batch": 4, "accumulation": 1, "gradient_checkpointing": False,
                "neftune_alpha": 5.0,
            },
        },
        [],
        "swift sft made.yaml",
    ),
}  # fmt: skip


def made(folder: Path, source: str, *flags: str) -> tuple[int, str, dict[str, Any]]:
    ended = typed(["config", "import", source, *flags, "--out", "made.yaml", "--exist_ok"], folder)
    assert (folder / "made.yaml").exists(), ended.output
    return ended.code, ended.output, yaml.safe_load((folder / "made.yaml").read_text())


@pytest.mark.parametrize("program", CASES)
def test_recipe_keeps_settings_and_program_defaults(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import keeps the settings of a recipe and the defaults of its program, and names every other key."""
    name, content, expected, lost, command = CASES[program]
    (tmp_path / name).write_text(content)
    code, said, configuration = made(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    parsed = parse(["made.yaml"], command.split()[1], complete=False).config.model_dump(mode="json")
    for section, keys in expected.items():
        assert {key: configuration[section].get(key) for key in keys} == keys, section
        assert {key: parsed[section].get(key) for key in keys} == keys, section
    for key in lost:
        assert f"Not imported: {key}:" in said
    assert said.count("Not imported:") == len(lost), said
    assert code == (1 if lost else 0)
    assert f"Next: {command}\n" in said
    text = (tmp_path / "made.yaml").read_text()
    assert f"# {program}: {name}" in text
    if name.endswith(".sh"):
        keys = [word.lstrip("-") for word in content.split("swift export")[0].split() if word.startswith("--")]
    else:
        keys = list(yaml.safe_load(content))
    assert not [key for key in keys if key not in text]


def test_script_with_several_commands_gives_each_training(tmp_path: Path) -> None:
    """A script with several commands gives each of those that train."""
    (tmp_path / "run.sh").write_text(MS_SWIFT)
    code, said, configuration = made(tmp_path, "run.sh", "--number", "2")
    assert (code, configuration["objective"]["name"], configuration["model"]["path"]) == (
        0,
        "dpo",
        "someone/some-model",
    )
    assert configuration["train"]["accumulation"] == 16
    assert "this is training command 2 of 2" in said
    assert "Next: swift rlhf made.yaml" in said
    assert str(configuration["tuner"]["freeze_vit"]).lower() == "true"
    refused = typed(["config", "import", "run.sh", "--number", "3"], tmp_path)
    assert (refused.code, "only 2 training commands" in refused.output) == (2, True)


COMMANDS = {
    "trl dpo --model_name_or_path m --dataset_name d --beta 0.3": ("rlhf", "dpo", {"lr": 1e-6}),
    "accelerate launch --config_file zero2.yaml --num_processes 4 trl/scripts/kto.py --model_name_or_path m "
    "--dataset_name d --use_peft --lora_target_modules all-linear": ("rlhf", "kto", {"lr": 1e-6}),
    "python trl/scripts/sft.py --model_name_or_path m --dataset_name d --no_gradient_checkpointing": ("sft", "sft", {}),
    "NPROC_PER_NODE=4 megatron sft --model m --dataset d --lr 1e-4 --min_lr 1e-5 --lr_warmup_fraction 0.05 "
    "--tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 8 --num_train_epochs 1 --max_length 8192 "
    "--recompute_granularity full --cross_entropy_loss_fusion true":
        ("sft", "sft", {"lr": 1e-4, "min_lr_ratio": 0.1, "warmup_ratio": 0.05}),
    "llamafactory-cli train --stage kto --model_name_or_path m --dataset d --finetuning_type full":
        ("rlhf", "kto", {"lr": 5e-5}),
}  # fmt: skip


COMPARING = {
    "INFONCE_TEMPERATURE=0.2 swift sft --model m --dataset d --task_type embedding --loss_type infonce":
        ("sft", {"name": "embedding", "loss": "infonce", "temperature": 0.2}),
    "INFONCE_TEMPERATURE=0.2 swift sft --model m --dataset d --task_type embedding --loss_type contrastive":
        ("sft", {"name": "embedding", "loss": "contrastive"}),
    "swift sft --model m --dataset d --task_type reranker --loss_type listwise_reranker --num_labels 1":
        ("sft", {"name": "reranker", "loss": "listwise"}),
    "swift sft --model m --dataset d --task_type generative_reranker --loss_type generative_reranker":
        ("sft", {"name": "generative_reranker", "loss": "pointwise"}),
}  # fmt: skip


@pytest.mark.parametrize("command", COMPARING)
def test_embedding_and_reranker_recipes_keep_objective_and_env(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe of vectors or rerankers keeps its objective and its variables."""
    command_name, objective = COMPARING[command]
    code, said, configuration = made(tmp_path, command)
    assert (code, configuration["objective"]) == (0, objective), said
    assert f"Next: swift {command_name} made.yaml" in said
    monkeypatch.chdir(tmp_path)
    task = parse(["made.yaml"], command_name).config.model.task
    assert task == {"embedding": "embedding", "reranker": "seq_cls"}.get(objective["name"], "causal_lm")


@pytest.mark.parametrize("command", COMMANDS)
def test_quoted_command_is_imported(command: str, tmp_path: Path) -> None:
    command_name, objective, optim = COMMANDS[command]
    code, said, configuration = made(tmp_path, command)
    assert code == 0, said
    assert configuration["objective"]["name"] == objective
    assert {key: configuration["optim"].get(key) for key in optim} == optim
    assert f"Next: swift {command_name} made.yaml" in said
    assert ("--nproc 4" in said) == ("4 " in command)
    if "no_gradient" in command:
        assert configuration["train"]["gradient_checkpointing"] is False


def test_unquoted_command_is_imported(tmp_path: Path) -> None:
    words = ["trl", "sft", "--model_name_or_path", "m", "--dataset_name", "d", "--learning_rate", "3e-4"]
    ended = typed(["config", "import", *words], tmp_path)
    assert ended.code == 0
    assert "lr: 0.0003  # learning_rate" in ended.output
    typed(["config", "import", *words, "--out", "made.yaml"], tmp_path)
    assert yaml.safe_load((tmp_path / "made.yaml").read_text())["optim"]["lr"] == 3e-4


SCORING = {
    "trl reward --model_name_or_path m --dataset_name d --center_rewards_coefficient 0.01": (
        "objective:\n  name: rm", "center_rewards_coefficient: 0.01", "truncation: delete", "lr: 0.0001",
    ),
    "llamafactory-cli train --stage rm --model_name_or_path m --dataset d": (
        "objective:\n  name: rm", "has no bias",
    ),
    "swift rlhf --rlhf_type rm --model m --dataset d --center_rewards_coefficient 0.1": (
        "objective:\n  name: rm", "center_rewards_coefficient: 0.1",
    ),
    "swift sft --task_type seq_cls --num_labels 3 --problem_type single_label_classification --model m --dataset d": (
        "objective:\n  name: seq_cls", "num_labels: 3", "problem_type: single_label_classification",
    ),
}  # fmt: skip
"""Recipe of a model that scores → expected settings."""


@pytest.mark.parametrize("command", SCORING)
def test_scoring_recipes_are_imported_and_read_back(command: str, tmp_path: Path) -> None:
    """Recipes of models that score are imported and read again."""
    ended = typed(["config", "import", command, "--out", "made.yaml"], tmp_path)
    assert ended.code == 0, ended.output
    made = (tmp_path / "made.yaml").read_text()
    written = re.sub(r" +#.*", "", made)
    assert [part for part in SCORING[command] if part not in written + ended.output + made] == []
    command_name = "sft" if "seq_cls" in command else "rlhf"
    config = parse([str(tmp_path / "made.yaml")], command_name, complete=False).config
    assert config.model.task == ("seq_cls" if command_name == "sft" else "reward")


NOT_TRAINED = {
    "trl rloo --model_name_or_path m": "RLOO",
    "llamafactory-cli train --stage ppo --model_name_or_path m": "PPO",
    "llamafactory-cli export merge.yaml": "has no training command",
    "megatron rlhf --use_ray true --config there/no.yaml": "which does not exist",
    "ls -l": "no known command",
}


@pytest.mark.parametrize("command", NOT_TRAINED)
def test_unsupported_recipe_is_refused_by_name(command: str, tmp_path: Path) -> None:
    ended = typed(["config", "import", command, "--out", "made.yaml"], tmp_path)
    assert ended.code == 2
    assert NOT_TRAINED[command] in ended.output
    assert not (tmp_path / "made.yaml").exists()


def test_dataset_info_next_to_recipe_is_found(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "run.yaml").write_text(LLAMA_FACTORY)
    (recipes / "dataset_info.json").write_text('{"chats": {"file_name": "a.json"}, "more": {"file_name": "b.json"}}')
    _, _, configuration = made(tmp_path, "recipes/run.yaml")
    assert configuration["data"]["train"] == ["recipes/chats#100", "recipes/more#100"]


def test_ms_swift_args_json_is_imported(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({
        "model": "someone/some-model", "model_type": "qwen3", "dataset": ["a.jsonl"], "train_type": "lora",
        "num_train_epochs": 2.0, "lora_rank": 8, "max_length": 100, "learning_rate": 1e-4, "adapters": [], "rank": -1,
        "gradient_accumulation_steps": 2, "global_world_size": 1, "per_device_train_batch_size": 1,
    }))  # fmt: skip
    code, said, configuration = made(tmp_path, "args.json")
    assert (code, configuration["train"]["epochs"], configuration["train"]["accumulation"]) == (0, 2.0, 2), said


def test_upload_and_tokens_are_not_imported(tmp_path: Path) -> None:
    """An upload is not imported and no token is written down."""
    command = "trl sft --model_name_or_path m --dataset_name d --hub_token hf_secret --hub_model_id me/mine"
    for switch, lost in (("--push_to_hub true", True), ("--push_to_hub false", False), ("", False)):
        code, said, _ = made(tmp_path, f"{command} {switch}")
        assert (code, "swift export RUN --push OWNER/NAME" in said) == ((1, True) if lost else (0, False))
        assert "hf_secret" not in said + (tmp_path / "made.yaml").read_text()


@pytest.mark.parametrize(
    ("shuffles", "remarked"),
    {"--dataset_shuffle false --train_dataloader_shuffle false": 0, "--train_dataloader_shuffle false": 1}.items(),
)
def test_row_order_is_kept_only_if_both_shuffles_are_off(shuffles: str, remarked: int, tmp_path: Path) -> None:
    """Ms-swift's rows stay in order only where both of its shuffles are off."""
    _, _, configuration = made(tmp_path, f"swift sft --model m --dataset d.jsonl {shuffles}")
    assert configuration["data"].get("shuffle", True) is bool(remarked)
    assert (tmp_path / "made.yaml").read_text().count("rows are shuffled in each epoch") == remarked


def test_pickle_is_refused_unopened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.write_text, (tmp_path / "sprung", "x"))

    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(Trap()))
    ended = typed(["config", "import", "training_args.bin"], tmp_path)
    assert (ended.code, "is a pickle" in ended.output) == (2, True)
    assert not (tmp_path / "sprung").exists()


def test_training_with_third_party_file_suggests_import(tmp_path: Path) -> None:
    for program in ("LLaMA-Factory", "axolotl", "TRL", "torchtune", "NeMo Automodel"):
        (tmp_path / "theirs.yaml").write_text(CASES[program][1])
        for words in (["sft", "theirs.yaml"], ["config", "show", "sft", "theirs.yaml"]):
            ended = typed(words, tmp_path)
            assert ended.code == 2
            assert f"is a configuration of {program}, not of swift" in ended.output
            assert "swift config import theirs.yaml --out run.yaml" in ended.output


def test_folder_import_prints_line_per_recipe(tmp_path: Path) -> None:
    for number, (name, content, *_) in enumerate(CASES.values()):
        (tmp_path / f"{number}-{name}").write_text(content)
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    ended = typed(["config", "import", "."], tmp_path)
    lines = ended.output.splitlines()
    assert ended.code == 0
    assert len(lines) == len(CASES) + 1 + 2  # the script trains twice
    assert sum("keys set" in line for line in lines) == len(CASES) + 1
    assert any("invalid YAML" in line for line in lines)
    assert any("a DeepSpeed configuration" in line for line in lines)


HOSTILE = {
    "a.yaml": "stage: !!python/object/apply:os.system ['true']\nfinetuning_type: lora",
    "b.yaml": "finetuning_type: lora\nstage: sft\nlearning_rate: [1, 2]\nlora_rank: {a: 1}\ndataset: {a: b}",
    "c.yaml": "base_model: 3\ndatasets: 7\nadapter: [1]\nmicro_batch_size: no\nfsdp_config: 3\nfsdp: {a: b}",
    "d.yaml": "optimizer: {_component_: 3, lr: '${optimizer.lr}'}\nmodel: {_component_: null}\ndataset: [1]\nloss: 3",
    "e.yaml": "step_scheduler: 3\nmodel: []\noptimizer: {betas: 4}\npeft: {target_modules: 3}\nrecipe: {_target_: 4}",
    "f.sh": "A=$A$A; swift sft --model '\"unclosed $(x --dataset",
    "g.json": '{"per_device_train_batch_size": {}, "adam_beta1": [], "fsdp": 3, "report_to": 7}',
    "h.yaml": 'model_name_or_path: "a\\nb"\ndataset_name: "x # y\\u0007"\n"key\\nwith lines": "# no comment"\n',
    "i.yaml": "a: ${b}\nb: ${a}\nbatch_size: ${a}\noptimizer: {_component_: torch.optim.AdamW}\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_garbage_file_is_error_or_valid_config(name: str, tmp_path: Path) -> None:
    """A file of nonsense ends in an error or a readable configuration."""
    (tmp_path / name).write_text(HOSTILE[name])
    ended = typed(["config", "import", name, "--out", "made.yaml"], tmp_path)
    assert ended.code in (0, 1, 2)
    assert "Traceback" not in ended.output
    if ended.code != 2:
        assert isinstance(yaml.safe_load((tmp_path / "made.yaml").read_text()), dict)
