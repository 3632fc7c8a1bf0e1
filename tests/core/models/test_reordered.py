"""Weights that files hold in another order than memory are read and written as transformers does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import BASE, conversations
from tiny_types import write_tiny
from transformers import AutoModelForCausalLM

from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import ExportRequest, WeightStream
from swift.errors import ExportError, ModelError
from swift.export.plugins import HuggingFaceExporter
from swift.export.run import export_checkpoint
from swift.hookspecs import ExporterHooks
from swift.models.reordered import as_held, as_stored, find_reordered
from swift.models.source import open_source
from swift.parsing import config_from_mapping
from swift.train.prepare import open_job
from swift_infer import open_engine
from swift_rl.sync import VerifiedEngine

SHAPES = {"q": (4, 3), "k": (2, 3), "gate_up": (2, 6, 5), "bias": (6,), "other_bias": (2,)}
VALUES = {
    name: torch.randn(shape, generator=torch.Generator().manual_seed(number))
    for number, (name, shape) in enumerate(SHAPES.items())
}


def saved(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fuse, change the order within heads, take every second row, and divide an inner dimension."""
    q = state["q"].view(2, 2, -1).transpose(0, 1).reshape(4, -1)
    return {
        "qk": torch.cat([q, state["k"]]),
        "gate": state["gate_up"][:, 0::2],
        "up": state["gate_up"][:, 1::2],
        "biases": torch.cat([state["other_bias"], state["bias"].flip(0)]),
    }


DISK = {name: tuple(value.shape) for name, value in saved(dict(VALUES)).items()}


def test_rows_are_written_and_read_in_the_order_of_files() -> None:
    groups = find_reordered("Model", SHAPES, DISK, saved)
    assert sorted(sorted(group.parameters) for group in groups) == [["bias", "other_bias"], ["gate_up"], ["k", "q"]]
    on_disk = saved(dict(VALUES))
    stream = iter([*list(VALUES.items())[::-1], ("plain", torch.ones(1))])
    written = dict(as_stored(groups, stream))
    assert written.pop("plain").equal(torch.ones(1))
    assert written.keys() == on_disk.keys()
    for name, tensor in on_disk.items():
        assert torch.equal(written[name], tensor), name
    back = dict(as_held(groups, iter(on_disk.items())))
    assert back.keys() == VALUES.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in VALUES.items())
    for group in groups:
        for name in group.parameters:
            assert torch.equal(group.read(name, on_disk.__getitem__), VALUES[name]), name


def test_what_is_more_than_an_order_of_rows_is_refused() -> None:
    """A transposed matrix, a row that is left out, and code that fails."""
    for save in (
        lambda state: {"a": state["q"].T},
        lambda state: {"a": torch.cat([state["q"][:3], state["q"][:1]])},
        lambda state: {"a": state["q"].view(3, 4)},
    ):
        shape = tuple(save({"q": VALUES["q"]})["a"].shape)
        with pytest.raises(ModelError, match="more than another order of rows"):
            find_reordered("Model", {"q": (4, 3)}, {"a": shape}, save)


def test_fused_matrices_are_read_and_exported_as_stored(tmp_path: Path) -> None:
    """hrm_text has gate, query, key and value in one matrix on disk, and four in memory."""
    model = write_tiny("hrm_text", tmp_path / "model")
    source = open_source(ModelSection(path=str(model)), say=lambda _: None)
    on_disk = load_file(model / "model.safetensors")
    in_memory = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert any("gqkv_proj" in name for name in on_disk)
    assert not source.unused_names
    for name in source.names():
        parameter, piece = source.name_map.owner(name)
        assert torch.equal(source.read(name), piece.view_of(in_memory[parameter])), name
    exported = load_file(export(model, tmp_path / "out") / "model.safetensors")
    assert exported.keys() == on_disk.keys()
    for name, tensor in on_disk.items():
        assert torch.equal(exported[name], tensor), name


@pytest.mark.parametrize("settings", [{}, {"tuner.kind": "lora"}], ids=["full", "lora"])
def test_engines_are_sent_what_files_hold(settings: dict[str, Any], tmp_path: Path) -> None:
    """Tensor by tensor, whether all weights are trained or adapters, which are merged; swift's own engine takes it."""
    model = write_tiny("hrm_text", tmp_path / "model")
    run = {**BASE, "model.path": str(model), "model.dtype": "float32", "logging.output": str(tmp_path / "runs")}
    engine, sent = VerifiedEngine(open_engine("transformers", model, dtype="float32", device="cpu")), Sent()
    with open_job(config_from_mapping({**run, **settings}), rows=conversations(4)) as job:
        for each in (sent, engine):
            job.run.send_weights(each)
    on_disk = load_file(model / "model.safetensors")
    assert sent.tensors.keys() == on_disk.keys()
    assert all(torch.equal(sent.tensors[name], tensor) for name, tensor in on_disk.items())
    assert engine.verified
    engine.close()


class Sent:
    """Keeps what an engine is sent."""

    def update_weights(self, weights: WeightStream) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in weights}


def test_damaged_fused_matrix_is_found(tmp_path: Path) -> None:
    """The comparison of an export with the training state includes what is stored in another order."""
    model = write_tiny("hrm_text", tmp_path / "model")
    with pytest.raises(ExportError, match=r"v_proj\.weight has other values"):
        export(model, tmp_path / "out", Damaging())


class Damaging(ExporterHooks):
    """Exports, and changes the last row of a matrix that holds several."""

    def swift_export(self, _: object, weights: WeightStream, request: ExportRequest) -> Path:
        folder = HuggingFaceExporter().swift_export(weights, request)
        tensors = load_file(folder / "model.safetensors")
        name = next(name for name in tensors if "gqkv_proj" in name)
        tensors[name][-1] += 1
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder


def export(model: Path, out: Path, exporter: Any = None) -> Path:
    options = ExportOptions(verify="transformers", out=out)
    return export_checkpoint(model, to="hf", options=options, say=lambda _: None, exporter=exporter)
