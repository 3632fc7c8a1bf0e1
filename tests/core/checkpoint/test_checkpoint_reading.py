"""What is read of a checkpoint, and what memory it takes to write one: no more than is needed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import MANIFEST, on_processes
from heap import show_blocks
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import swift.checkpoint.dcp_plan  # noqa: F401 - so that nothing is imported while bytes are counted
from swift.checkpoint import TensorSlices, flat_slices, open_checkpoint, save_checkpoint
from swift.checkpoint.safetensors_read import SafetensorsFile
from swift.errors import CheckpointError

WIDE = {f"model.{name}": (64, 4096) for name in "abcd"}
MIB = 2**20


@pytest.mark.parametrize("shape", [(), (7,), (2_000,), (5, 3), (4, 3_000), (3, 2, 1_500), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_any_rectangle_is_what_safetensors_gives(tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    whole = torch.randint(0, 2**15, shape).to(dtype)
    save_file({"first": torch.ones(3), "whole": whole}, tmp_path / "file")
    file = SafetensorsFile(tmp_path / "file")
    source = random.Random(0)
    with safe_open(tmp_path / "file", "pt") as other:
        for _ in range(20):
            start = [source.randrange(size) for size in shape]
            lengths = [source.randint(1, size - first) for first, size in zip(start, shape, strict=True)]
            where = tuple(slice(first, first + length) for first, length in zip(start, lengths, strict=True))
            expected = other.get_slice("whole")[where] if shape else other.get_tensor("whole")
            plain = torch.empty(lengths, dtype=dtype)
            within = torch.zeros([length + 2 for length in lengths], dtype=torch.float64)
            for target in (plain, within[tuple(slice(1, 1 + length) for length in lengths)]):
                file.read_into(target, "whole", start, lengths)
                assert torch.equal(target, expected.to(target.dtype))


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    save_file({"whole": torch.ones(4_000)}, tmp_path / "file")
    os.truncate(tmp_path / "file", 9_000)
    with pytest.raises(CheckpointError, match="truncated or altered"):
        SafetensorsFile(tmp_path / "file").read_into(torch.empty(4_000), "whole", (0,), (4_000,))


def bytes_read(work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` answers, and how many bytes it asked the kernel for."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    answer = work()
    return answer, count() - before


def sharded(dimension: int, size: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (size,))
    return {name: distribute_tensor(torch.zeros(shape), mesh, [Shard(dimension)]) for name, shape in WIDE.items()}


def in_flat_pieces(rank: int, size: int) -> dict[str, Any]:
    held = {}
    for name, shape in WIDE.items():
        length = 64 * 4096 // size
        held[name] = TensorSlices(shape, flat_slices(shape, rank * length, torch.zeros(length)), dtype=torch.float32)
    return held


@pytest.mark.parametrize(
    "layout",
    [lambda rank, size: sharded(0, size), lambda rank, size: sharded(1, size), in_flat_pieces],
    ids=["rows", "columns", "flat pieces"],
)
def test_each_rank_reads_and_verifies_its_share(tmp_path: Path, layout: Callable[[int, int], dict[str, Any]]) -> None:
    """Each process reads what it holds and checks its share of the files."""
    tensors = {name: torch.randn(shape) for name, shape in WIDE.items()}
    whole = sum(tensor.nbytes for tensor in tensors.values())

    def save(rank: int) -> None:
        save_checkpoint(tmp_path, 1, fill=lambda writer: writer.tensors(tensors), manifest=MANIFEST, is_main=rank == 0)

    def load(rank: int) -> tuple[int, int]:
        held = layout(rank, 2)
        checkpoint, checked = bytes_read(lambda: open_checkpoint(tmp_path / "checkpoint-1"))
        _, read = bytes_read(lambda: checkpoint.tensors(held))
        return checked, read

    on_processes(2, save)
    for checked, read in on_processes(2, load):
        assert whole / 2 <= checked < whole / 2 + 100_000
        assert whole / 2 <= read < whole / 2 + 10_000


def test_streaming_memory_is_two_largest_tensors(tmp_path: Path) -> None:
    """Streaming takes the memory of two of the largest tensors."""
    largest = 48 * MIB

    def held() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    def work(_: int) -> int:
        show_blocks(65_536)  # what is seen is what is used
        peaks: list[int] = []

        def source() -> Iterator[tuple[str, torch.Tensor]]:
            for number, size in enumerate((largest, *[largest // 3] * 12, largest, largest // 2, largest)):
                tensor = torch.full((size // 4,), float(number))
                peaks.append(held())
                yield f"model.{number}", tensor
                peaks.append(held())
                del tensor

        before = held()
        save_checkpoint(tmp_path, 1, fill=lambda writer: writer.stream(source()), manifest=MANIFEST, is_main=True)
        return max(peaks) - before

    (peak,) = on_processes(1, work)
    assert largest <= peak <= 2 * largest + 8 * MIB
    assert float(open_checkpoint(tmp_path / "checkpoint-1").read("model.14")[-1]) == 14.0
