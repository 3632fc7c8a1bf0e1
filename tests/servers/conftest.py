"""A tiny model, and an adapter of it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_runs import write_model

    return write_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def adapter(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters") / "mine"
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(small), config).save_pretrained(folder)
    return folder
