"""Hybrids train packed with plain transformers' numbers on every backend on torch, on one process and on two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from type_cells import LORA, ZERO3, Cell, Subject, verdicts

PACKED = {"data.packing": True, "data.max_length": 120, "train.micro_batch": 1}
"""Two or three rows of several samples for each process, which differ in their numbers of samples."""
SAVED = {"checkpoint.save_last": True}
CHECKPOINTED = {**PACKED, "train.gradient_checkpointing": True}
CELLS = (
    Cell("checkpointed", CHECKPOINTED),
    Cell("DDP", PACKED, 2),
    Cell("FSDP2", CHECKPOINTED, 2, "fsdp"),
    Cell("FSDP2, TP 2", {**PACKED, "parallel.tp": 2}, 2, "fsdp"),
    Cell("ZeRO 2", {**PACKED, "backend.config": "zero2"}, 2, "deepspeed"),
    Cell("ZeRO 3", {**CHECKPOINTED, **ZERO3}, 2, "deepspeed"),
    Cell("LoRA", {**PACKED, **LORA, **SAVED}),
    Cell("LoRA", {**PACKED, **LORA, **ZERO3, **SAVED, "backend.name": "deepspeed"}, 2, "deepspeed"),
)


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    folder = tmp_path_factory.mktemp("hybrids")
    return [Subject(name, folder / name) for name in ("qwen3_5_text", "lfm2", "mamba2")]


@pytest.mark.full
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}, {cell.backend}")
def test_hybrids_train_packed_like_plain_transformers(cell: Cell, hybrids: list[Subject]) -> None:
    for subject in hybrids:
        shutil.rmtree(subject.folder / "out", ignore_errors=True)  # of another cell of the same name
    found = verdicts(cell, hybrids)
    refused = [str(each) for each in found if each.result == "refused" and cell.name == "FSDP2, TP 2"]
    assert len(refused) < len(found)
    assert {each.result for each in found if str(each) not in refused} == {"equal"}, found


@pytest.mark.full
@pytest.mark.parametrize("backend", ["fsdp", "deepspeed"])
def test_decoders_called_by_sample_are_refused_in_shards(backend: str, tmp_path: Path) -> None:
    """Each call of a block gathers from all processes, which have different numbers of samples."""
    subject = Subject("blenderbot-small", tmp_path)
    settings = {**PACKED, **(ZERO3 if backend == "deepspeed" else {})}
    (found,) = verdicts(Cell("sharded", settings, 2, backend), [subject])
    assert found.result == "refused"
    assert "--data.packing false" in found.note


@pytest.mark.full
def test_hybrids_in_sharded_sequences_are_refused(hybrids: list[Subject]) -> None:
    cells = [
        Cell("context parallel", {**PACKED, "parallel.cp": 2}, 2, "fsdp"),
        Cell("Ulysses", {**PACKED, "parallel.ulysses": 2}, 2, "fsdp"),
    ]
    for cell in cells:
        found = verdicts(cell, hybrids[:1])[0]
        assert found.result == "refused"
        assert "linear_attention layers" in found.note
