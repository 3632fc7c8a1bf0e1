"""Configuration files: YAML outranked by flags, with errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swift.cli.main import run
from swift.cli.show import schema_json
from swift.errors import ConfigError
from swift.parsing import parse

GOOD = """\
model: {path: m}
data:
  train: [a.jsonl, "b.jsonl#100"]
  columns: {question: query}
optim:
  lr: 1e-5
backend:
  device: cpu
train_type: full
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file, in a working folder with the data that it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).touch()
    path = tmp_path / "run.yaml"
    path.write_text(GOOD)
    return path


def test_config_file_accepts_sections_and_flag_names(file: Path) -> None:
    config = parse([str(file)], "sft").config
    assert config.data.train == ("a.jsonl", "b.jsonl#100")
    assert config.data.columns == {"question": "query"}
    assert config.optim.lr == 1e-5
    assert config.tuner.kind == "full"
    assert config.backend.model_dump()["device"] == "cpu"


def test_flags_override_file(file: Path) -> None:
    config = parse(["--config", str(file), "--lr", "3e-5", "--dataset", "c.jsonl", "--lora_rank", "4"], "sft").config
    assert config.optim.lr == 3e-5
    assert config.data.train == ("c.jsonl",)
    assert config.model.path == "m"


def test_scalar_is_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "run.yml"
    path.write_text("dataset: a.jsonl\nmodel: m\n")
    assert parse([str(path), "--packing"], "sft").config.data.train == ("a.jsonl",)
    assert parse(["--packing", str(path)], "sft").config.data.packing


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optim:\n  lr: 1\n  lr: 2\n", ":3: duplicate key optim.lr, first set in line 2"),
        ("optim:\n  lr: [1\n", ":3: invalid YAML"),
        ("- a\n", ":1: expected a mapping"),
        ("optim:\n  lr: fast\n", ":2: optim.lr must be a number, not 'fast'"),
        ("train:\n  epochs: 1\n\n  seeed: 1\n", ":4: unknown key 'train.seeed'. Did you mean 'train.seed'?"),
        ("optimizers: {lr: 1}\n", ":1: unknown key 'optimizers'. Did you mean"),
        ("backend:\n  devise: cpu\n", ":2: unknown key 'backend.devise' for the backend 'torch'"),
        ("backend: {name: torch}\nfoo: 1\n", ":2: unknown key 'foo'."),
        ("optim: fast\n", ":1: optim"),
        ("data: train.jsonl\n", ":1: the section data must be a mapping"),
        ("train:\n  compile: perhaps\n", ":2: train.compile must be true or false"),
        ("bf16: true\nfp16: true\n", ":1 and "),
        ("lr_scheduler_kwargs: [1]\n", ":1: lr_scheduler_kwargs must be a mapping, not [1]"),
    ],
)
def test_file_error_names_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse([str(path), "--model", "m", "--dataset", "d"], "sft")
    assert f"{path}{sentence}" in str(caught.value)


def test_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*gone\.yaml"):
        parse(["--config", str(tmp_path / "gone.yaml")], "sft")


@pytest.mark.parametrize("key", ["optim.warmup_steps", "warmup_steps"])
def test_warmup_below_one_step_is_ratio_in_files(tmp_path: Path, key: str) -> None:
    """Warm-up of less than a step is a part of all steps in a file too."""
    file = tmp_path / "run.yaml"
    file.write_text(f"{key}: 0.1\n")
    optim = parse([str(file)], "sft", complete=False).config.optim
    assert (optim.warmup_ratio, optim.warmup_steps) == (0.1, None)


def test_config_show_output_reproduces_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [str(file), "--lr", "2e-5", "--objective.label_smoothing", "0.1", "--output_dir", "elsewhere"]
    assert run(["config", "show", "sft", *flags]) == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(capsys.readouterr().out)
    assert parse([str(shown)], "sft").config == parse(flags, "sft").config


def test_schema_includes_plugin_sections() -> None:
    schema: dict[str, Any] = json.loads(schema_json())
    branches = {
        branch["if"]["properties"]["name"]["const"]: branch["then"]["properties"]
        for section in ("BackendSection", "ObjectiveSection")
        for branch in schema["$defs"][section]["allOf"]
    }
    assert branches["torch"]["device"]["enum"] == ["auto", "cpu", "cuda"]
    assert "beta" in branches["dpo"]
    assert schema["$defs"]["OptimSection"]["properties"]["lr"]["description"].startswith("Peak learning rate")
