"""Texts longer than a model has positions, by scaling its rotary positions: `--rope_scaling` and `--max_model_len`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from tiny_runs import conversations, run_training, write_model
from transformers import AutoConfig, AutoModelForCausalLM

from swift.config.sections import ModelSection
from swift.errors import ModelError
from swift.models.source import open_source

LONGER = {"model.max_model_len": 128, "data.max_length": 512, "train.max_steps": 2}
ORIGINAL = {"original_max_position_embeddings": 16}
# The settings that transformers documents for four times as many positions.
EXPECTED: dict[str, dict[str, Any]] = {
    "linear": {},
    "yarn": ORIGINAL,
    "llama3": {**ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("short"), max_position_embeddings=16)


@pytest.mark.parametrize("kind", EXPECTED)
def test_scaled_model_gives_the_numbers_of_transformers(kind: str, short: Path, tmp_path: Path) -> None:
    """Logits are those of transformers' model with the scaling that its documentation describes, and other ones."""
    section = ModelSection(path=str(short), rope_scaling=kind, max_model_len=64)
    made = open_source(section, say=print).build(dtype=torch.float32)
    config = AutoConfig.from_pretrained(short)
    config.rope_parameters |= {"rope_type": kind, "factor": 4.0, **EXPECTED[kind]}
    if kind != "linear":
        config.max_position_embeddings = 64
    expected = AutoModelForCausalLM.from_pretrained(short, config=config, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(short, dtype=torch.float32)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        logits, theirs, unscaled = (model(ids, use_cache=False).logits for model in (made, expected, plain))
    assert torch.equal(logits, theirs)
    assert not torch.allclose(logits, unscaled, atol=1e-3)


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_scaling_is_trained_and_exported(tuner: str, short: Path, tmp_path: Path) -> None:
    """The export's config.json has the scaling, and the export is verified against the weights in training."""
    settings = {**LONGER, "model.rope_scaling": "yarn", "tuner.kind": tuner}
    run = run_training(short, tmp_path / "runs", conversations(8), settings)
    assert typed(["export", str(run.folder), "--to", "hf", "--out", "exported"], tmp_path).code == 0
    written = AutoConfig.from_pretrained(tmp_path / "exported")
    assert written.rope_parameters["rope_type"] == "yarn"
    assert written.rope_parameters["factor"] == 8.0
    plain = run_training(short, tmp_path / "linear", conversations(8), {**settings, "model.rope_scaling": "linear"})
    assert plain.losses != run.losses
    if tuner == "lora":
        asked = typed(["infer", str(run.folder), "--prompt", "Hi"], tmp_path)
        assert asked.code == 2
        assert "Merge it first: swift export" in asked.output


def test_layers_with_windows_keep_their_positions(tmp_path: Path) -> None:
    gemma = write_model(tmp_path / "gemma", architecture="Gemma3Text", max_position_embeddings=16)
    section = ModelSection(path=str(gemma), rope_scaling="linear", max_model_len=64)
    ropes = open_source(section, say=print).config.rope_parameters
    assert ropes["full_attention"]["factor"] == 4.0
    assert ropes["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("architecture", "changes", "length", "message"),
    [
        ("Qwen3", {"max_position_embeddings": 16}, 16, "has 16 positions, and --max_model_len 16 needs no more"),
        (
            "Qwen3",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            4096,
            r"already scales rotary positions \(linear\)",
        ),
        ("GPT2", {"n_positions": 32}, 1024, "gpt2 model, which has no rotary positions"),
    ],
    ids=["not longer", "scaled already", "learned positions"],
)
def test_what_cannot_be_scaled_is_refused(
    architecture: str, changes: dict[str, Any], length: int, message: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", architecture=architecture, **changes)
    with pytest.raises(ModelError, match=message):
        open_source(ModelSection(path=str(model), rope_scaling="yarn", max_model_len=length), say=print)


def test_config_show_refuses_half_a_choice(short: Path, tmp_path: Path) -> None:
    words = ["config", "show", "sft", "--model", str(short)]
    alone = typed([*words, "--rope_scaling", "yarn"], tmp_path)
    assert alone.code == 2
    assert "model.rope_scaling needs model.max_model_len" in alone.output
    length = typed([*words, "--max_model_len", "64"], tmp_path)
    assert length.code == 2
    assert "Type --rope_scaling yarn" in length.output
    both = typed([*words, "--max_model_len", "64", "--rope_scaling", "yarn", "--max_length", "64"], tmp_path)
    assert both.code == 0
    assert "positions" not in both.output
    assert json.loads((short / "config.json").read_text())["max_position_embeddings"] == 16
