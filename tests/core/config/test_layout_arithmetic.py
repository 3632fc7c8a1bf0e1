"""How many processes share a sample and how many train on samples of their own: one arithmetic, used everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift.cli.main import run
from swift.config.sections import ParallelSection
from swift.contracts import ProcessLayout
from swift.errors import UnsupportedLayout


@pytest.mark.usefixtures("stand_ins")
def test_config_show_counts_sequence_parallel_processes(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--backend", "fsdp", "--ulysses", "2", "--tp", "2", "--per_device_train_batch_size", "3", "--nproc", "8"]
    assert run(["config", "show", *flags]) == 0
    printed = capsys.readouterr().out
    assert "# processes on this machine: 8 = dp 2 × tp 2 × pp 1 × cp 1 × ulysses 2\n" in printed
    assert "# rows per optimizer step: 6\n" in printed


@pytest.mark.usefixtures("stand_ins")
def test_indivisible_process_count_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether or not the backend checks it."""
    assert run(["config", "show", "--backend", "fsdp", "--ulysses", "4", "--nproc", "6"]) == 2
    assert "The layout ulysses 4 needs 4 processes, but 6 were started." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "world", "expected"),
    [
        ({}, 1, (1, 1)),
        ({}, 6, (1, 6)),
        ({"tp": 2, "pp": 2, "cp": 2}, 16, (1, 2)),
        ({"ulysses": 2, "tp": 2}, 8, (1, 2)),
        ({"dp_replicate": 2}, 8, (2, 4)),
        ({"dp_shard": 4, "dp_replicate": 2, "ulysses": 2}, 16, (2, 4)),
    ],
)
def test_sharding_takes_remaining_dimension(plan: dict[str, int], world: int, expected: tuple[int, int]) -> None:
    layout = ProcessLayout.of(ParallelSection(**plan), world)  # type: ignore[arg-type]  # whole numbers
    assert (layout.replicate, layout.shard) == expected


@pytest.mark.parametrize(
    ("plan", "world", "said"),
    [
        ({"ulysses": 3}, 4, "The layout ulysses 3 needs 3 processes, but 4 were started."),
        ({"dp_shard": 4}, 2, "The layout dp_shard 4 needs 4 processes, but 2 were started."),
        ({"dp_replicate": 2, "tp": 2}, 3, "The layout tp 2 × dp_replicate 2 needs 4 processes, but 3 were started."),
    ],
)
def test_layout_for_other_world_size_is_refused(plan: dict[str, int], world: int, said: str) -> None:
    with pytest.raises(UnsupportedLayout) as caught:
        ProcessLayout.of(ParallelSection(**plan), world)  # type: ignore[arg-type]  # whole numbers
    assert caught.value.message == said
    assert caught.value.hint


@pytest.mark.parametrize("backend", ["fsdp", "deepspeed", "megatron"])
def test_missing_replicas_are_refused(backend: str, tmp_path: Path) -> None:
    from swift.contracts import RequestedRun, World
    from swift.parsing import config_from_mapping
    from swift.plugins.hooks import open_hooks
    from swift.plugins.load import load_backend

    pytest.importorskip(f"swift_backend_{backend}")
    parsed = config_from_mapping({"backend.name": backend, "tuner.kind": "full", "parallel.dp_replicate": 4})
    asked = RequestedRun(parsed.config, parsed.backend_options, tmp_path, World(0, 0, 2), say=lambda _: None)
    with pytest.raises(UnsupportedLayout, match="dp_replicate 4 needs 4 processes, but 2 were started"):
        open_hooks(load_backend(backend)).swift_check_layout(asked)
