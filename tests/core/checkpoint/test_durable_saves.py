"""What a checkpoint holds is on the disk before it has its name: a loss of power leaves a whole one or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import MANIFEST

from swift.checkpoint import save_checkpoint


def state_of(path: Path) -> tuple[Any, ...]:
    """What a later change of a file or folder would change, as far as a system call tells."""
    found = path.stat()
    names = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    return (found.st_ino, found.st_size, found.st_mtime_ns, names)


@dataclass
class Disk:
    """What was synced, and what was not when a folder got another name."""

    run: Path
    synced: dict[Path, tuple[Any, ...]] = field(default_factory=dict)
    renames: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """From, to, and the paths in the folder that had changed since they were synced."""

    def fsync(self, real: Callable[[int], None], handle: int) -> None:
        real(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.synced[path] = state_of(path)

    def rename(self, real: Callable[..., None], source: Any, target: Any) -> None:
        path = Path(source)
        if path.is_dir() and not path.is_symlink():
            lost = [each for each in (path, *path.rglob("*")) if self.synced.get(each) != state_of(each)]
            names = [str(each.relative_to(path.parent)) for each in lost]
            self.renames.append((path.name, Path(target).name, names))
        real(source, target)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    seen = Disk(tmp_path)
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda handle, real=real: seen.fsync(real, handle))
    for name in ("rename", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda source, target, real=real, **_: seen.rename(real, source, target))
    return seen


def save(run: Path, step: int, *, asynchronous: bool = False) -> None:
    """Save tensors as parts and as a stream, and further files in a folder of their own."""
    tensors = {f"model.{name}": torch.full((64, 32), float(step)) for name in "abcd"}

    def fill(writer: Any) -> None:
        writer.tensors(tensors)
        writer.stream(iter({"model.streamed": torch.ones(8)}.items()))

    def extra(stored: Any) -> None:
        shutil.copytree(stored.folder / "state", stored.folder / "ready" / "copy")
        (stored.folder / "config.json").write_text("{}")

    save_checkpoint(
        run, step, fill=fill, manifest=MANIFEST, is_main=True, extra=extra, asynchronous=asynchronous
    ).wait()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_everything_is_synced_before_rename(tmp_path: Path, disk: Disk, asynchronous: bool) -> None:
    """Files and folders, each after its last change; and the run's folder after it got the new name."""
    save(tmp_path, 1, asynchronous=asynchronous)
    assert disk.renames == [("checkpoint-1.tmp", "checkpoint-1", [])]
    assert disk.synced[tmp_path] == state_of(tmp_path)
    files = {path.name for path in (tmp_path / "checkpoint-1").rglob("*.*")}
    assert {"00000.safetensors", "stream-00000.safetensors", "index.json", "config.json", "manifest.json"} <= files


def test_replaced_step_is_synced_before_rename(tmp_path: Path, disk: Disk) -> None:
    """A step that is reached again: the new folder is on the disk before it takes the name of the old one."""
    save(tmp_path, 1)
    disk.renames.clear()
    save(tmp_path, 1)
    assert [each[:2] for each in disk.renames] == [
        ("checkpoint-1", "checkpoint-1.replaced.tmp"),
        ("checkpoint-1.tmp", "checkpoint-1"),
    ]
    assert disk.renames[-1][2] == []
    assert disk.synced[tmp_path] == state_of(tmp_path)
