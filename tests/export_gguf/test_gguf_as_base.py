"""`--model FILE.gguf`: the model of a GGUF file is dequantized, and trained like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, dequantize
from test_export_gguf import exported, model_of

from swift.config.sections import ExportSection, ModelSection
from swift.errors import ModelError
from swift.export import export_checkpoint
from swift.models import gguf, open_source
from swift.models.files import SafetensorsFolder
from swift.parsing import config_from_mapping
from swift.train import train
from swift_export_gguf.write import FILE
from swift_testing.subjects import conversations, write_jsonl


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tiny Llama in 8 bits."""
    return exported(model_of(tmp_path / "model"), "q8_0") / FILE


def test_gguf_file_is_dequantized(tmp_path: Path, file: Path) -> None:
    said: list[str] = []
    source = open_source(ModelSection(path=str(file)), say=said.append)
    assert said[-1].startswith("model.gguf: 16 Q8_0, 5 F32 tensors, dequantized to float32 in ")
    stored = next(each for each in GGUFReader(file).tensors if each.name == "blk.0.ffn_up.weight")
    expected = torch.tensor(dequantize(stored.data, stored.tensor_type))
    assert torch.equal(source.read("model.layers.0.mlp.up_proj.weight"), expected)
    own = SafetensorsFolder(tmp_path / "model").read("model.layers.0.self_attn.q_proj.weight")
    found = source.read("model.layers.0.self_attn.q_proj.weight")
    assert 0 < float((found - own).norm() / own.norm()) < 0.01
    again = open_source(ModelSection(path=str(file.parent)), say=said.append)
    assert (again.folder, again.fingerprint) == (source.folder, source.fingerprint)


def test_adapter_is_trained_on_gguf_file_and_exported(tmp_path: Path, file: Path) -> None:
    data = write_jsonl(tmp_path / "rows.jsonl", conversations(8))
    settings = {
        "model.path": str(file), "data.train": [str(data)], "tuner.kind": "lora", "optim.lr": 0.1,
        "train.max_steps": 2, "backend.device": "cpu", "logging.output": str(tmp_path / "runs"),
    }  # fmt: skip
    checkpoint = train(config_from_mapping(settings)).last_checkpoint
    assert checkpoint is not None
    export_checkpoint(checkpoint, to="hf", options=ExportSection(out=tmp_path / "merged"), say=lambda _: None)
    merged = SafetensorsFolder(tmp_path / "merged")
    base = open_source(ModelSection(path=str(file)), say=lambda _: None)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(merged.read(name).float(), base.read(name))


def test_folder_with_two_files_is_refused(file: Path) -> None:
    (file.parent / "other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match="has 2 GGUF files") as caught:
        open_source(ModelSection(path=str(file.parent)), say=lambda _: None)
    assert str(caught.value.hint) == f"Type: --model {file}"


def test_damaged_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.gguf cannot be read"):
        open_source(ModelSection(path=str(file)), say=lambda _: None)


def test_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match="needs the package gguf") as caught:
        open_source(ModelSection(path=str(file)), say=lambda _: None)
    assert "gguf" in str(caught.value.hint)
