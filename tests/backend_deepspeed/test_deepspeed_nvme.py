"""The optimizer's state on a disk, at a size that DeepSpeed really swaps; and the lock around operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import run_training

from swift_testing.subjects import conversations, write_model

STEPS = 3
WIDE = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 64, "num_hidden_layers": 2}
SETTINGS = {"train.micro_batch": 2, "train.global_batch": 4, "train.max_steps": STEPS, "optim.eps": 1e-6}


def test_state_goes_to_the_disk_and_numbers_stay_the_same(tmp_path: Path) -> None:
    model = write_model(tmp_path / "wide", **WIDE)
    disk = tmp_path / "disk"
    disk.mkdir()
    rows = conversations(13)
    config = {
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 600_000,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(disk)},
        }
    }

    def job() -> tuple[Any, int, int]:
        from swift_backend_deepspeed import nvme

        moved = {"read": 0, "written": 0}

        class Counted(nvme.ThreadedIO):
            def async_pread(self, tensor: Any, path: str, offset: int = 0) -> int:
                moved["read"] += tensor.nbytes
                return super().async_pread(tensor, path, offset)

            def async_pwrite(self, tensor: Any, path: str, offset: int = 0) -> int:
                moved["written"] += tensor.nbytes
                return super().async_pwrite(tensor, path, offset)

        nvme.ThreadedIO = Counted  # type: ignore[misc]  # watched from here
        settings = {**SETTINGS, "backend.name": "deepspeed", "backend.config": config, "logging.run_name": "nvme"}
        return run_training(model, tmp_path / "out", rows, settings), moved["read"], moved["written"]

    def alone() -> Any:
        return run_training(model, tmp_path / "out", rows, {**SETTINGS, "logging.run_name": "torch"})

    ((expected,),) = on_processes(1, alone)
    (answers,) = on_processes(2, job, fresh=True)
    for trained, read, written in succeeded(answers):
        assert trained.losses == pytest.approx(expected.losses, rel=1e-5)
        assert trained.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)
        # Half of 2.2 million weights: fp32 weights and two moments in every step, back and forth.
        state = 3 * 4 * 1_000_000
        assert written > STEPS * state
        assert read > (STEPS - 1) * state
    assert list(disk.iterdir()) == []


def test_stale_build_lock_is_removed_and_reported(tmp_path: Path) -> None:
    from swift_backend_deepspeed.operators import building

    said: list[str] = []
    left = tmp_path / "py311_cpu" / "async_io" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    with building(tmp_path, "async_io", said.append) as fresh:
        assert fresh
        assert not left.exists()
        (left.parent / "async_io.so").touch()
    assert f"A build of async_io was killed: its lock {left} is removed." in said
    with building(tmp_path, "async_io", said.append) as fresh:
        assert not fresh
    assert len(said) == 1


def test_second_process_reports_waiting(tmp_path: Path) -> None:
    import threading

    from swift_backend_deepspeed.operators import building

    waiting = threading.Event()
    order = []

    def second() -> None:
        with building(tmp_path, "async_io", lambda _: waiting.set()) as fresh:
            order.append(("second", fresh))

    with building(tmp_path, "async_io", lambda _: None) as fresh:
        other = threading.Thread(target=second)
        other.start()
        assert waiting.wait(10)
        folder = tmp_path / "async_io"
        folder.mkdir()
        (folder / "async_io.so").touch()
        order.append(("first", fresh))
    other.join(10)
    assert order == [("first", True), ("second", False)]
