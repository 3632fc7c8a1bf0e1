"""The recipes that `python -m benchmarks imports` trains with their own programs too: what their imports say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from benchmarks.recipes import RECIPES
from commands import typed

TRAIN = {"epochs": 1, "micro_batch": 2, "accumulation": 2, "seed": 42}
ADAM = {"name": "adamw", "lr": 1e-3, "max_grad_norm": 1.0, "beta1": 0.9, "eps": 1e-8}
BY_PROGRAM: dict[str, dict[str, dict[str, Any]]] = {
    "ms-swift": {
        "data": {"max_length": 512, "truncation": "delete", "shuffle": False},
        "optim": {**ADAM, "schedule": "cosine", "warmup_ratio": 0.25, "weight_decay": 0.1, "beta2": 0.95},
        "train": {**TRAIN, "gradient_checkpointing": True},
    },
    "LLaMA-Factory": {
        "data": {"max_length": 512, "truncation": "right", "shuffle": False},
        "optim": {**ADAM, "schedule": "cosine", "warmup_ratio": 0.25, "weight_decay": 0.0, "beta2": 0.999},
        "train": {**TRAIN, "gradient_checkpointing": True},
    },
    "TRL": {
        "data": {"max_length": 1024, "truncation": "right", "shuffle": False},
        "optim": {**ADAM, "schedule": "linear", "warmup_steps": 2, "weight_decay": 0.0, "beta2": 0.999},
        "train": {**TRAIN, "gradient_checkpointing": True},
    },
}
"""What was equal to the programs in loss and learning rate, step by step."""


def test_benchmark_recipes_keep_settings(tmp_path: Path) -> None:
    """Recipes that were trained by their programs keep the settings that gave the same losses."""
    for recipe in RECIPES:
        (tmp_path / recipe.file).write_text(recipe.text)
        ended = typed(["config", "import", recipe.file, "--out", "swift.yaml", "--exist_ok"], tmp_path)
        assert ended.code == 0, (recipe, ended.output)
        configuration = yaml.safe_load((tmp_path / "swift.yaml").read_text())
        for section, keys in BY_PROGRAM[recipe.program].items():
            assert {key: configuration[section].get(key) for key in keys} == keys, (recipe, section)
        assert configuration["model"]["dtype"] == "float32"
        assert configuration["objective"]["name"] == recipe.kind[:3]
        assert configuration["tuner"]["kind"] == ("lora" if "LoRA" in recipe.kind else "full")
        if recipe.kind.startswith("dpo"):
            assert configuration["objective"]["beta"] == 0.1
