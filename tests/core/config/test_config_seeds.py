"""Commands of the articles give the right configuration, or one error with a hint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from swift.errors import UnsupportedLayout
from swift.parsing import Parsed, parse

ZERO3 = "sft --model_type qwen-7b --dataset your_data --deepspeed ds_config_zero3.json"
MEGATRON = (
    "sft --model_type llama-7b --dataset alpaca-en --parallel_method megatron --tensor_parallel_size 4 "
    "--pipeline_parallel_size 2 --sequence_parallel_size 2 --use_flash_attn true"
)
MIXED = "train --model_id qwen/Qwen-72B --train_type cpt --deepspeed_config ds_zero3.json --tp=4 --pp=2"


def said(command: str) -> Parsed:
    command_name, *argv = shlex.split(command)
    return parse(argv, command_name)


def test_deepspeed_flag_sets_config_file(stand_ins: Path) -> None:
    parsed = said(ZERO3)
    assert parsed.config.model.path == "Qwen/Qwen2.5-7B"  # the nearest: its name is in the folder and the header
    assert any("cannot load 'qwen-7b'; using the nearest supported model, Qwen/Qwen2.5-7B" in n for n in parsed.notes)
    assert parsed.config.data.train == ("your_data",)
    assert parsed.config.backend.name == "deepspeed"
    assert options(parsed)["config"] == "ds_config_zero3.json"


def test_megatron_gets_layout_and_sequence_parallel_switch(stand_ins: Path) -> None:
    """Megatron gets its layout, and sequence parallelism is a switch."""
    parsed = said(MEGATRON)
    plan = parsed.config.parallel
    assert (plan.tp, plan.pp, plan.sequence_parallel, plan.ulysses, plan.cp) == (4, 2, True, 1, 1)
    assert parsed.config.model.attention == "flash_attention_2"
    assert ["--sequence_parallel_size 2 turns on Megatron's sequence parallelism" in note for note in parsed.notes] == [
        True,
        False,
    ]


def test_pipeline_under_zero3_names_other_backends(stand_ins: Path) -> None:
    with pytest.raises(
        UnsupportedLayout, match=r"deepspeed backend \(--deepspeed_config\) does not support parallel\.pp 2"
    ) as caught:
        said(f"{MIXED} --dataset d")
    assert "Installed backends that support it: megatron" in str(caught.value)
    mended = said(f"{MIXED.replace(' --pp=2', '')} --dataset d --local_rank=1")
    assert mended.config.parallel.tp == 4
    assert mended.config.objective.name == "pt"


def options(parsed: Parsed) -> dict[str, Any]:
    return parsed.backend_options.model_dump()
