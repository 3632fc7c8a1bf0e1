"""The examples of a third party's optimizer and tuner: built, installed beside core's wheel alone, found and used."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import import_rules
import pytest
import wheels
from environments import core_environment
from lone_environment import install
from safetensors.torch import load_file

from swift_testing.subjects import conversations, write_jsonl, write_model

ROOT = import_rules.ROOT
EXAMPLES = {
    "third-party-optimizer": (60, ROOT / "docs" / "how-to" / "write-an-optimizer.md"),
    "third-party-tuner": (80, ROOT / "docs" / "how-to" / "write-a-tuner.md"),
    "third-party-environment": (80, ROOT / "docs" / "tutorial" / "guessing-game.md"),
}
"""Folder → how many lines it may have, and the page that builds it."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_builds_the_example_from_few_lines(example: str) -> None:
    most, page = EXAMPLES[example]
    files = [*(ROOT / "examples" / example).glob("*.py"), ROOT / "examples" / example / "pyproject.toml"]
    for file in files:
        assert f"{file.name}\n{file.read_text()}```" in page.read_text()
    assert 0 < sum(len(file.read_text().splitlines()) for file in files if file.suffix == ".py") <= most


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = core_environment(built, tmp_path_factory.mktemp("third-party"))
    for example in ("third-party-optimizer", "third-party-tuner"):
        wheels.build(ROOT / "examples" / example, environment)
    for wheel in environment.glob("swift_*.whl"):
        install(environment, wheel)
    return environment


def swift(environment: Path, *arguments: str) -> str:
    done = subprocess.run(
        [environment / "bin" / "swift", *arguments],
        capture_output=True, text=True, check=False, cwd=environment, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
def test_third_party_tuning_trains_like_one_process(environment: Path) -> None:
    """Both are found and train together with the numbers of one process."""
    listed = [line.split() for line in swift(environment, "plugins", "--check").splitlines()]
    assert ["signum", "optimizer", "swift-signum", "1.0", "ok"] in listed
    assert ["bitfit", "tuner", "swift-bitfit", "1.0", "ok"] in listed
    model = write_model(environment / "model", num_hidden_layers=1)
    data = write_jsonl(environment / "data.jsonl", conversations(16))
    common = ["sft", "--model", str(model), "--dataset", str(data), "--output_dir", "out", "--tuner.kind", "bitfit"]
    common += ["--optim", "signum", "--lr", "1e-5", "--max_steps", "3", "--save_steps", "3", "--logging_steps", "1"]
    common += ["--global_batch_size", "8"]
    losses = {}
    for name, processes in (("one", "1"), ("two", "2")):
        swift(environment, *common, "--nproc", processes, "--run_name", name)
        log = environment / "out" / "model" / name / "logging.jsonl"
        losses[name] = [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "loss" in line]
    assert len(losses["one"]) == 3
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-4)
    start = load_file(model / "model.safetensors")
    end = load_file(environment / "out" / "model" / "two" / "checkpoint-3" / "model.safetensors")
    moved = {name for name in start if not end[name].equal(start[name])}
    assert moved == {name for name, value in start.items() if value.ndim < 2}
