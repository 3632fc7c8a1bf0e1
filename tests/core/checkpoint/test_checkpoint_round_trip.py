"""What is saved on some processes is read back bit for bit on others, whatever holds the tensors."""

from __future__ import annotations

import json
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import MANIFEST, on_processes
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from swift.checkpoint import TensorSlices, flat_slices, open_checkpoint, save_checkpoint
from swift.checkpoint.names import model_name, optim_name
from swift.checkpoint.save import wait_for_saves
from swift.errors import CheckpointError

SHAPES = {"a.weight": (10, 6), "b.weight": (7, 3, 2), "c.bias": (5,), "d": ()}


def values(scale: float = 1.0) -> dict[str, torch.Tensor]:
    """The whole tensors, the same on every process."""
    whole: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(3)
    for name, shape in SHAPES.items():
        whole[model_name(name)] = torch.randn(shape, generator=generator) * scale
        whole[optim_name(name, "exp_avg")] = torch.randn(shape, generator=generator) * scale
        whole[optim_name(name, "step")] = torch.tensor(4.0 * scale)
    whole["model.half"] = torch.randn(9, generator=generator).bfloat16()
    whole["model.flags"] = torch.tensor([True, False, True])
    return whole


def held_as(kind: str, whole: dict[str, torch.Tensor], rank: int, size: int) -> dict[str, Any]:
    """The tensors as an engine of this kind would hold them."""
    if kind == "plain":
        return dict(whole)
    held: dict[str, Any] = {}
    if kind == "boxes":
        for name, tensor in whole.items():
            flat = tensor.reshape(-1)
            cut = [flat.numel() * part // size for part in range(size + 1)]
            mine = flat[cut[rank] : cut[rank + 1]]
            if mine.numel():
                held[name] = TensorSlices(tensor.shape, flat_slices(tensor.shape, cut[rank], mine), dtype=tensor.dtype)
        return held
    mesh = init_device_mesh("cpu", (size,))
    dimension = int(kind[-1])
    for name, tensor in whole.items():
        placement = Shard(dimension) if tensor.ndim > dimension else Replicate()
        held[name] = distribute_tensor(tensor, mesh, [placement])
    return held


def whole_again(held: dict[str, Any], buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each process has after loading, in terms of the whole tensors."""
    return {
        name: held[name].full_tensor() if isinstance(held.get(name), DTensor) else buffer
        for name, buffer in buffers.items()
    }


def save(folder: Path, step: int, tensors: dict[str, Any], rank: int = 0, **options: Any) -> Path:
    def fill(writer: Any) -> None:
        writer.tensors(tensors)
        writer.facts({"scale": 2.0})

    pending = save_checkpoint(folder, step, fill=fill, manifest=MANIFEST, is_main=rank == 0, **options)
    return pending.wait()


def assert_loads(folder: Path, kind: str, rank: int, size: int) -> None:
    expected = values()
    buffers = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    held = held_as(kind, buffers, rank, size)
    open_checkpoint(folder).tensors(held)
    found = whole_again(held, buffers)
    for name, tensor in expected.items():
        if kind != "boxes":
            assert torch.equal(found[name], tensor), (kind, name)
        elif name in held:
            for offset, view in held[name].slices.items():
                where = tuple(slice(o, o + n) for o, n in zip(offset, view.shape, strict=True))
                assert torch.equal(view, tensor[where]), (kind, name, offset)


def test_one_process_reads_back_every_bit(tmp_path: Path) -> None:
    folder = save(tmp_path, 3, values())
    assert folder == tmp_path / "checkpoint-3"
    assert (tmp_path / "last-checkpoint").resolve() == folder
    assert_loads(folder, "plain", 0, 1)
    reader = open_checkpoint(folder)
    assert reader.manifest["step"] == 3
    assert reader.manifest["facts"] == {"scale": 2.0}
    for name, tensor in values().items():
        assert torch.equal(reader.read(name), tensor)
        assert reader.read(name).dtype == tensor.dtype


def test_checkpoint_moves_between_one_and_two_ranks(tmp_path: Path) -> None:
    """Two processes write what one reads and the other way round."""
    kinds = ("plain", "boxes", "shard0", "shard1")
    one = save(tmp_path / "one", 1, values())

    def work(rank: int) -> None:
        for kind in kinds:
            assert_loads(one, kind, rank, 2)
            folder = save(tmp_path / kind, 1, held_as(kind, values(), rank, 2), rank)
            for other in kinds:
                assert_loads(folder, other, rank, 2)

    on_processes(2, work)
    for kind in kinds:
        assert_loads(tmp_path / kind / "checkpoint-1", "plain", 0, 1)
        assert_loads(tmp_path / kind / "checkpoint-1", "boxes", 0, 1)


def test_replicas_are_written_once_and_divided_among_ranks(tmp_path: Path) -> None:
    """Replicas are written once and shared between the processes."""
    on_processes(2, lambda rank: save(tmp_path, 1, values(), rank))
    files = sorted((tmp_path / "checkpoint-1" / "state").glob("*.safetensors"))
    assert len(files) == 2
    stored = [load_file(file) for file in files]
    assert set(stored[0]).isdisjoint(stored[1])
    assert {**stored[0], **stored[1]}.keys() == values().keys()


def test_streamed_and_planned_checkpoints_are_equal(tmp_path: Path) -> None:
    """Streamed tensors are the same checkpoint as planned ones."""

    def work(rank: int) -> list[str]:
        read: list[str] = []

        def source() -> Any:
            for name, tensor in values().items():
                read.append(name)
                yield name, tensor

        save_checkpoint(tmp_path, 1, fill=lambda writer: writer.stream(source()), manifest=MANIFEST, is_main=rank == 0)
        assert_loads(tmp_path / "checkpoint-1", "shard0", rank, 2)
        return read

    for read in on_processes(2, work):
        assert read == list(values())


def test_an_asynchronous_save_holds_the_values_of_its_step(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        for kind in ("plain", "boxes", "shard0"):
            live = values()
            held = held_as(kind, live, rank, 2)
            run = tmp_path / kind

            def fill(writer: Any, held: dict[str, Any] = held) -> None:
                writer.tensors(held)

            pending = save_checkpoint(run, 1, fill=fill, manifest=MANIFEST, is_main=rank == 0, asynchronous=True)
            for tensor in (*live.values(), *(t.to_local() for t in held.values() if isinstance(t, DTensor))):
                tensor.zero_()
            # The training group is in use while the thread writes.
            torch.distributed.all_reduce(torch.ones(4))
            # A second save waits for the first.
            save_checkpoint(run, 2, fill=fill, manifest=MANIFEST, is_main=rank == 0, asynchronous=True)
            assert pending.done()
            wait_for_saves(run)
            assert_loads(run / "checkpoint-1", "plain", rank, 2)
            assert float(open_checkpoint(run / "checkpoint-2").read("model.a.weight").abs().sum()) == 0

    on_processes(2, work)


def test_forked_processes_copy_into_their_own_memory(tmp_path: Path) -> None:
    """Processes forked after a save copy into memory of their own."""
    save(tmp_path / "before", 1, values(), asynchronous=True)

    def work(rank: int) -> None:
        held = held_as("boxes", values(), rank, 2)
        save(tmp_path / "after", 1, held, rank, asynchronous=True)
        assert_loads(tmp_path / "after" / "checkpoint-1", "plain", rank, 2)

    on_processes(2, work)


def test_files_that_the_caller_adds_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, values(), extra=lambda stored: (stored.folder / "config.json").write_text("{}"))
    assert "config.json" in open_checkpoint(folder).manifest["files"]
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json was altered"):
        open_checkpoint(folder)


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    folder = save(tmp_path, 1, values())
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            assert path.suffix == ".safetensors"
        with pytest.raises(ValueError), path.open("rb") as file:
            list(pickletools.genops(file))


def test_incomplete_tensor_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """A tensor that no process has in full is refused and leaves nothing."""
    half = TensorSlices((4, 2), [((0, 0), torch.zeros(3, 2))], dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"6 of the 8 elements of model\.a are there"):
        save(tmp_path, 1, {"model.a": half})
    assert list(tmp_path.iterdir()) == []


def test_missing_tensors_and_other_shapes_are_named(tmp_path: Path) -> None:
    reader = open_checkpoint(save(tmp_path, 1, values()))
    with pytest.raises(CheckpointError, match=r"lacks model\.lost"):
        reader.tensors({"model.lost": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"model\.a\.weight \(\(10, 6\) saved, \(10, 7\) here\)"):
        reader.tensors({"model.a.weight": torch.zeros(10, 7)})
    with pytest.raises(CheckpointError, match=r"no tensor model\.lost"):
        reader.read("model.lost")
