"""The template of a backend: written, built, installed beside core and the kit, found, used, and certified."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import import_rules
import pytest
import wheels
from commands import typed
from environments import core_environment
from lone_environment import install

from swift_testing import new_plugin
from swift_testing.subjects import conversations, write_jsonl, write_model

EXAMPLE = import_rules.ROOT / "packages" / "testing" / "src" / "swift_testing" / "templates" / "backend"
PAGE = import_rules.ROOT / "docs" / "plugins" / "write-a-backend.md"


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """swift-core and the conformance kit from their wheels, and the example and an environment from theirs."""
    environment = core_environment(built, tmp_path_factory.mktemp("third-party"), "testing")
    for kind, name in (("backend", "sharded-adam"), ("environment", "guessing")):
        done = typed(["plugins", "new", kind, name], environment)
        assert done.code == 0, done.output
        wheels.build(environment / f"swift-{name}", environment)
    for wheel in environment.glob("swift_*.whl"):
        install(environment, wheel)
    return environment


def run(environment: Path, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / program), *arguments]
    variables = {**os.environ, **variables, "PYTHONPATH": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment, env=variables)


@pytest.mark.full
def test_it_is_found_and_checked(environment: Path) -> None:
    listed = run(environment, "swift", "plugins", "--check")
    assert listed.returncode == 0, listed.stderr
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("sharded-adam")]
    assert line.split() == ["sharded-adam", "backend", "swift-sharded-adam", "0.1", "ok"]
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("guessing")]
    assert line.split() == ["guessing", "environment", "swift-guessing", "0.1", "ok"]


@pytest.mark.full
def test_third_party_checkpoint_resumes_with_built_in(environment: Path) -> None:
    """It trains by its name and what it saved goes on with the built-in one."""
    model = write_model(environment / "model", num_hidden_layers=1)
    data = write_jsonl(environment / "data.jsonl", conversations(16))
    common = ["--model", str(model), "--dataset", str(data), "--train_type", "full", "--output_dir", "out"]
    steps = ["--max_steps", "4", "--save_steps", "2", "--logging_steps", "1"]
    place = ["--logging.run_name", "zero", "--nproc", "2"]
    done = run(environment, "swift", "sft", "--backend", "sharded-adam", *common, *steps, *place)
    assert done.returncode == 0, done.stdout + done.stderr
    log = environment / "out" / "model" / "zero" / "logging.jsonl"
    first = [json.loads(line) for line in log.read_text().splitlines()]
    checkpoint = str(log.parent / "checkpoint-2")
    resumed = ["--resume_from_checkpoint", checkpoint, "--logging.run_name", "on-torch"]
    done = run(environment, "swift", "sft", "--backend", "torch", *common, *steps, *resumed)
    assert done.returncode == 0, done.stdout + done.stderr
    log = log.parent.parent / "on-torch" / "logging.jsonl"
    second = {line["step"]: line for line in map(json.loads, log.read_text().splitlines()) if "step" in line}
    for line in first[2:4]:
        assert second[line["step"]]["loss"] == pytest.approx(line["loss"], rel=1e-5)


@pytest.mark.full
def test_the_conformance_kit_certifies_it(environment: Path) -> None:
    package = str(environment / "swift-sharded-adam")
    kit = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--confcutdir", package, package]
    done = run(environment, "python", *kit, "-k", "not 4-dp", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_tutorial_shows_the_code_of_the_example() -> None:
    code = "\n".join(new_plugin("backend", "swift.backends", "sharded-adam").values())
    blocks = PAGE.read_text().split("```")[1::2]
    shown = [block.partition("\n")[2] for block in blocks if block.startswith(("python", "toml"))]
    assert len(shown) == 4
    assert sum(len(file.read_text().splitlines()) for file in EXAMPLE.glob("swift_*.py")) <= 60
    assert [block for block in shown if block not in code] == []
