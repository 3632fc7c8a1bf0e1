"""`swift config show` and a run refuse the same before anything heavy is imported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import typed

import swift.cli.main as cli
from swift.config.incompatibilities import no_gpu_to_see

BASE = ["--model", "m", "--dataset", "d"]
REFUSED = [
    ("--streaming true", "data.streaming needs train.max_steps"),
    (
        "--streaming true --max_steps 5 --split_dataset_ratio 0.1",
        "data.split_ratio (--split_dataset_ratio) cannot be used with data.streaming,",
    ),
    ("--optim adamw_8bit --deepspeed zero2", "needs the position of each shard"),
    ("--attn_impl flash_attn --device cpu", "the device is cpu"),
    ("--attn_impl flex_attention --device cpu", "flex_attention (--attn_impl) cannot be used"),
    ("--dataset chats.jsnl data.jsonl", "There is no file or folder 'data.jsonl'"),
    ("--val_dataset ./test.jsonl", "There is no file or folder './test.jsonl'"),
    ("--model ./nowhere", "Folder ./nowhere does not exist"),
    ("--model tinny", "There is no model folder 'tinny'. Did you mean 'tiny'?"),
    ("--resume_from_checkpoint nowhere", "There is no checkpoint at nowhere"),
    ("--tuner.adapter nowhere", "nowhere is not an adapter"),
    (
        "--global_batch_size 3 --nproc 2",
        "train.global_batch 3 (--global_batch_size) cannot be divided",
    ),
    ("--parallel.dp_replicate 4 --nproc 2", "parallel.dp_replicate is 4, but 2 processes were started"),
    ("--backend fsdp --tp 2 --nproc 3", "The layout tp 2 needs 2 processes, but 3 were started"),
    ("--backend fsdp --tp 2", "The layout tp 2 needs 2 processes, but 1 were started"),
    (
        "--backend fsdp --tp 2 --nproc 2 --quant_bits 4 --quant_method bnb",
        "parallel.tp 2 cannot shard weights that tuner.quantize bnb-nf4 (--quant_bits) stores",
    ),
    ("--deepspeed zero3 --tp 4 --nproc 4", "parallel.tp 4 cannot be combined with ZeRO 3"),
    ("--deepspeed ds.json --nproc 2", "micro-batch 1 × accumulation 1 × 2 data ranks is 2"),
    ("--backend megatron --pp 2 --vpp 2 --nproc 3", "needs 2 processes, but 3 were started"),
    ("--backend megatron --vpp 2", "parallel.vpp 2 divides the stages of a pipeline"),
    ("--model tiny --backend fsdp --tp 3 --nproc 3", "attention heads"),
    ("--model tiny --backend megatron --pp 5 --nproc 5", "layers are not divisible by pp 5 stages"),
    ("--model encoder", "encoder is an encoder (bert). swift trains encoders as embedding models, rerankers and"),
    ("--model encoder --task_type embedding --backend megatron", "Megatron does not train bert"),
    ("--model tiny --target_modules q_porj", "the model has no module 'q_porj'. Did you mean 'q_proj'?"),
    ("--train_type full --export.to adapter", "trains none"),
    ("--train_type full --tuner.quantize bnb-nf4", "tuner.kind full (--train_type) cannot train weights"),
    ("--early_stopping_patience 3", "train.early_stopping (--early_stopping_patience) needs evaluations"),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED, ids=[line for line, _ in REFUSED])
def test_config_show_and_run_raise_same_errors(
    line: str, sentence: str, tiny: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("tiny").symlink_to(tiny)
    Path("encoder").mkdir()
    Path("encoder/config.json").write_text('{"model_type": "bert"}')
    batch = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    Path("ds.json").write_text(json.dumps(batch))
    said = []
    for command in (["config", "show", "sft"], ["sft"]):
        assert cli.run([*command, *BASE, *line.split()]) == 2
        said.append(capsys.readouterr().err)
    assert sentence in said[0]
    assert said[0] == said[1]


def test_config_validate_ignores_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["config", "validate", "sft", "--model", "m", "--dataset", "elsewhere.jsonl", "--device", "cuda"]
    assert cli.run(line) == 0
    assert cli.run([*line, "--streaming", "true"]) == 2
    assert "data.streaming needs train.max_steps" in capsys.readouterr().err


def test_config_validate_checks_layout_with_world_size(capsys: pytest.CaptureFixture[str]) -> None:
    """config validate checks the layout where the number of processes is given."""
    line = ["config", "validate", "sft", *BASE, "--backend", "fsdp", "--tp", "2"]
    assert cli.run(line) == 0
    assert cli.run([*line, "--nproc", "4"]) == 0
    assert cli.run([*line, "--nproc", "3"]) == 2
    assert "The layout tp 2 needs 2 processes, but 3 were started" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "--deepspeed zero3 --nproc 8",
        "--deepspeed zero2 --tp 2 --nproc 2",
        "--backend fsdp --tp 2 --nproc 4",
        "--backend megatron --pp 2 --nproc 2",
        "--target_modules q_proj lm_head",
    ],
)
def test_config_show_accepts_fitting_layout(line: str, tiny: Path) -> None:
    """Config show accepts what fits the model and the processes."""
    assert cli.run(["config", "show", "sft", *BASE, "--model", str(tiny), *line.split()]) == 0


def test_missing_size_in_config_json_is_accepted(tiny: Path, tmp_path: Path) -> None:
    content = json.loads((tiny / "config.json").read_text())
    del content["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    line = ["--model", str(tmp_path), "--model.random_weights", "true", "--dataset", "d"]
    assert cli.run(["config", "show", "sft", *line, "--backend", "fsdp", "--tp", "3", "--nproc", "3"]) == 0


def test_missing_gpu_is_reported_only_when_certain() -> None:
    """A machine is reported to have no GPU only where that is certain."""
    assert no_gpu_to_see("cpu", {})
    assert no_gpu_to_see("auto", {"CUDA_VISIBLE_DEVICES": ""})
    assert no_gpu_to_see("auto", {"CUDA_VISIBLE_DEVICES": "-1"})


@pytest.mark.parametrize("command", ["sft", "rlhf"])
def test_config_show_help_covers_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "show", command, "-h"]) == 0
    shown = capsys.readouterr().out
    assert cli.run([command, "--help"]) == 0
    assert shown == capsys.readouterr().out


def test_launcher_environment_sets_layout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    assert cli.run(["config", "show", "sft", *BASE]) == 0
    assert "# processes on this machine: 4 = dp 4" in capsys.readouterr().out
    assert cli.run(["config", "show", "sft", *BASE, "--nnodes", "2", "--nproc_per_node", "2"]) == 0
    assert "# processes on 2 machines: 4 = dp 4" in capsys.readouterr().out


def test_samples_are_refused_before_the_configuration_is_printed(tiny: Path, tmp_path: Path) -> None:
    """What only opening the tokenizer shows does not stand below 160 lines of YAML."""
    model = shutil.copytree(tiny, tmp_path / "model")
    (model / "tokenizer.json").write_text("{")
    (tmp_path / "data.jsonl").write_text('{"query": "a", "response": "b"}\n')
    words = ["config", "show", "sft", "--model", "model", "--dataset", "data.jsonl", "--sample", "1"]
    shown = typed(words, tmp_path)
    assert shown.code == 2
    assert "tokenizer" in shown.output
    assert "data:" not in shown.output
