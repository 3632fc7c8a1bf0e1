"""Texts longer than a model has positions: known by config.json, and refused before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from safetensors.torch import load_file, save_file
from tiny_runs import conversations, run_training, write_model
from transformers import FalconConfig, GPT2Config, LlamaConfig, OPTConfig

from swift.errors import DataError
from swift.models.config_file import StoredConfig
from swift.models.positions import positions_of, rope_by_length

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
# As published: count of positions in config.json, how far they reach, and the kind of scaling.
PUBLISHED: dict[str, tuple[dict[str, Any], tuple[int, float, str] | None]] = {
    "GPT-2": ({"n_positions": 1024}, (1024, 1024, "")),
    "Qwen2.5": ({"max_position_embeddings": 32768}, (32768, 32768, "")),
    "Qwen2.5 with YaRN": (
        {
            "max_position_embeddings": 32768,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        (32768, 131072, "yarn"),
    ),
    "Llama 3.1": (
        {
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        },
        (131072, 131072, ""),
    ),
    "by kind of layer": (
        {
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_type": "default"},
            },
        },
        (4096, 32768, "linear"),
    ),
    "in a part": ({"text_config": {"max_position_embeddings": 512}}, (512, 512, "")),
    "without any": ({"alibi": True, "max_position_embeddings": 2048}, None),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_positions_are_those_of_the_published_configuration(model: str) -> None:
    content, expected = PUBLISHED[model]
    found = positions_of(StoredConfig(content))
    assert (None if found is None else (found.count, found.reach, found.scaling)) == expected


def test_positions_are_those_of_transformers_configurations_too() -> None:
    counts = (
        (GPT2Config(n_positions=77), 77),
        (OPTConfig(max_position_embeddings=66), 66),
        (LlamaConfig(max_position_embeddings=55), 55),
    )
    for config, count in counts:
        found = positions_of(config)
        assert found is not None
        assert (found.count, found.reach) == (count, count)
    assert positions_of(FalconConfig(alibi=True)) is None
    scaled = positions_of(LlamaConfig(max_position_embeddings=32, rope_parameters=YARN))
    assert scaled is not None
    assert (scaled.reach, scaled.scaling) == (128, "yarn")


def test_too_long_sample_is_refused_before_weights_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with a longer sample is refused before weights are read."""
    short = write_model(tmp_path / "short", max_position_embeddings=16)
    weights = {name: tensor.clone() for name, tensor in load_file(short / "model.safetensors").items()}
    broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}
    save_file(broken, short / "model.safetensors", {"format": "pt"})  # they are refused where they are read
    settings = {"data.max_length": 512, "train.max_steps": 1}
    with pytest.raises(
        DataError, match=r"longest sample has \d+ tokens, but .*short has only 16 positions.*\n.*length 16:"
    ):
        run_training(short, tmp_path / "runs", conversations(8), settings)
    capsys.readouterr()
    stretched = write_model(tmp_path / "stretched", max_position_embeddings=16, rope_parameters=YARN)
    run_training(stretched, tmp_path / "runs", conversations(8), settings)
    assert "has 16 positions, which its rope scaling (yarn) stretches" in capsys.readouterr().out
    save_file(weights, short / "model.safetensors", {"format": "pt"})
    shortened = {"data.max_length": 16, "data.truncation": "left"}
    assert run_training(short, tmp_path / "runs", conversations(8), {**settings, **shortened}).losses


def test_config_show_reports_rope_scaling_of_typed_length(tmp_path: Path) -> None:
    short = write_model(tmp_path / "short", max_position_embeddings=32)
    shown = typed(["config", "show", "sft", "--model", str(short), "--max_length", "64"], tmp_path)
    assert shown.code == 0
    assert "# data.max_length is 64, and " in shown.output
    assert "has 32 positions" in shown.output
    assert "positions" not in typed(["config", "show", "sft", "--model", str(short)], tmp_path).output


PHI3 = {
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
}


def test_rope_by_length_counts_from_the_original_length() -> None:
    phi3 = StoredConfig(PHI3)
    assert rope_by_length(4096, phi3) is None
    assert rope_by_length(4097, phi3) == "longrope"


def test_rope_of_fixed_scale_is_not_by_length() -> None:
    """YaRN and Llama 3 scale all samples alike."""
    for model in ("Qwen2.5 with YaRN", "Llama 3.1"):
        assert rope_by_length(30_000, StoredConfig(PUBLISHED[model][0])) is None
