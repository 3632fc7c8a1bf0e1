"""Whole tensors on one process are saved and read without torch distributed checkpoint, exactly as it would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import MANIFEST

from swift.checkpoint import dcp_plan as dcp
from swift.checkpoint import dcp_planners, open_checkpoint, save_checkpoint
from swift.checkpoint.safetensors_write import write_safetensors
from swift.checkpoint.storage import INDEX, FileChunk, StoredTensor, StoredTensors, rank_file
from swift.contracts import CheckpointWriter
from swift.processes.comms import Comms

TENSORS = {
    "model.matrix": torch.randn(5, 3),
    "model.turned": torch.randn(4, 6).t(),
    "model.parameter": torch.nn.Parameter(torch.randn(7).bfloat16()),
    "model.empty": torch.zeros(0, 3),
    "optim.matrix.step": torch.tensor(4.0),
    "model.flags": torch.tensor([True, False]),
}


def saved(folder: Path) -> Path:
    def fill(writer: CheckpointWriter) -> None:
        writer.tensors(TENSORS)

    return save_checkpoint(folder, 1, fill=fill, manifest=MANIFEST, is_main=True).wait()


def test_a_share_is_what_the_planner_of_torch_makes_of_it() -> None:
    comms = Comms()
    own, own_index = dcp_planners.assign_shards(TENSORS, comms)
    planned, planned_index = dcp.assign_shards(TENSORS, comms)
    assert own_index == planned_index
    assert own.file == planned.file
    assert list(own.tensors) == list(planned.tensors)
    for name, tensor in planned.tensors.items():
        assert own.tensors[name].data_ptr() == tensor.data_ptr()
        assert not own.tensors[name].requires_grad


def test_files_are_the_same_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = saved(tmp_path / "own")
    monkeypatch.setattr(dcp_planners, "_is_whole", lambda tensor: False)
    planned = saved(tmp_path / "planned")
    for name in (INDEX, "state/00000.safetensors"):
        assert (own / name).read_bytes() == (planned / name).read_bytes()


def test_loaded_tensor_has_target_dtype(tmp_path: Path) -> None:
    """What is read is what was saved in the precision of the target."""
    checkpoint = open_checkpoint(saved(tmp_path))
    targets = {name: torch.zeros(tensor.shape, dtype=torch.float32) for name, tensor in TENSORS.items()}
    targets["model.turned"] = torch.zeros(4, 6).t()  # with strides of its own
    targets["model.parameter"] = torch.nn.Parameter(torch.zeros(7))
    checkpoint.tensors(targets)
    for name, tensor in TENSORS.items():
        assert torch.equal(targets[name], tensor.float()), name


def test_whole_tensor_is_read_from_shards_of_several_ranks(tmp_path: Path) -> None:
    """A whole tensor is read from the parts of several processes."""
    whole = torch.arange(24.0).view(6, 4)
    (tmp_path / "state").mkdir()
    chunks = []
    for rank, (row, column) in enumerate(((0, 0), (0, 2), (3, 0), (3, 2))):
        part = whole[row : row + 3, column : column + 2].contiguous()
        write_safetensors(tmp_path / rank_file(rank), {"part": part})
        chunks.append(FileChunk((row, column), (3, 2), rank_file(rank), "part"))
    stored = StoredTensors(tmp_path, {"model.a": StoredTensor(whole.dtype, (6, 4), tuple(chunks))})
    own, planned = {"model.a": torch.zeros(6, 4)}, {"model.a": torch.zeros(6, 4)}
    dcp_planners.fill(own, stored)
    dcp.fill(planned, stored)
    assert torch.equal(own["model.a"], whole)
    assert torch.equal(planned["model.a"], whole)
