"""`--backend auto`: the plan of a run is the planner's first choice, which it explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import typed
from tiny_runs import conversations, write_jsonl, write_model

from swift.contracts import ProcessLayout
from swift_plan.machine import this_machine


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "model")
    write_jsonl(folder / "rows.jsonl", conversations(8))
    return folder


RUN = ["--model", "model", "--dataset", "rows.jsonl", "--max_length", "64"]


def test_one_process_of_a_small_model_is_plain_torch(inputs: Path) -> None:
    ended = typed(["config", "show", "sft", *RUN, "--backend", "auto", "--global_batch_size", "4"], inputs)
    assert ended.code == 0, ended.output
    assert "Chosen: --backend torch" in ended.output
    assert "name: torch" in ended.output


def test_several_processes_get_a_layout(inputs: Path) -> None:
    words = ["config", "show", "sft", *RUN, "--backend=auto", "--nproc", "4", "--train_type", "full"]
    ended = typed(words, inputs)
    assert ended.code == 0, ended.output
    assert "# processes on this machine: 4 = " in ended.output
    assert "Chosen: --backend " in ended.output


def test_the_layout_of_a_backend_that_was_named_is_chosen(inputs: Path) -> None:
    words = ["config", "show", "sft", *RUN, "--parallel", "auto", "--backend", "fsdp", "--nproc", "4", "--tp", "2"]
    ended = typed(words, inputs)
    assert ended.code == 0, ended.output
    assert "name: fsdp" in ended.output
    assert "× tp 2" in ended.output


def test_nothing_fitting_shows_nearest_plans(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    little = psutil.virtual_memory()._replace(available=int(0.5e9))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    ended = typed(["sft", *RUN, "--max_length", "60000", "--model.random_weights", "true", "--backend", "auto"], inputs)
    assert ended.code != 0
    assert "No plan for model fits on 1xCPU. Nearest plans, with the missing memory:" in ended.output
    assert "GiB missing" in ended.output


def test_a_run_that_will_lack_memory_is_warned_of(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    from swift.cli.preflight import check_run
    from swift.parsing import parse
    from swift.plugins.planners import foreseen

    words = [*RUN, "--max_length", "60000", "--train_type", "full", "--per_device_train_batch_size", "8"]
    monkeypatch.chdir(inputs)
    parsed = parse(words, "sft")
    little = psutil.virtual_memory()._replace(available=int(1.2e9))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    warning = foreseen(check_run(parsed, 1), words, "sft")
    assert warning is not None
    assert "more than available. Plans that fit:" in warning
    assert "--per_device_train_batch_size 1" in warning
    short = parse([*words, "--max_length", "64"], "sft")
    assert foreseen(check_run(short, 1), words, "sft") is None


@pytest.mark.parametrize("started", [False, True])
def test_plan_of_a_run_knows_its_machines(started: bool, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on several machines is planned on as many, before it is launched and in each of its processes."""
    from swift.cli.preflight import check_run
    from swift.parsing import parse
    from swift.processes.group import current_world
    from swift_plan.search import counted_run

    monkeypatch.chdir(inputs)
    words = [*RUN, "--nproc", "2", "--nnodes", "2"]
    run = check_run(parse(words, "sft"), 4)
    if started:
        launched = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}
        run = replace(run, world=current_world(launched))
    where, _ = counted_run(run)
    assert (where.machines, where.per_machine) == (2, 2)


def test_missing_planner_names_install(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift.plugins.discover.list_plugins", lambda *_: [])
    ended = typed(["sft", *RUN, "--backend", "auto"], inputs)
    assert 'core[plan]"' in ended.output


@pytest.mark.full
def test_a_run_begins_with_what_was_chosen(inputs: Path) -> None:
    words = ["sft", *RUN, "--backend", "auto", "--max_steps", "2", "--output_dir", "out", "--global_batch_size", "4"]
    ended = typed(words, inputs)
    assert ended.code == 0, ended.output
    assert "Chosen: --backend torch" in ended.output
    assert "name: torch" in next((inputs / "out").rglob("config.yaml")).read_text()


def test_gpu_is_detected_by_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert str(this_machine(8, 2)) == "2x8xH100"


def test_a_layout_is_the_arithmetic_of_every_backend() -> None:
    layout = ProcessLayout(replicate=2, shard=3, tp=2, pp=2, cp=2, ep=3, etp=1)
    assert (layout.data, layout.world, layout.sequence) == (6, 48, 2)
    assert layout.expert_data == 8
    assert layout.named("ulysses") == {
        "dp_replicate": 2, "dp_shard": 3, "pp": 2, "cp": 2, "tp": 2, "ep": 3, "ulysses": 1,
    }  # fmt: skip
