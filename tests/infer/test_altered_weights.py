"""Weights that were altered after they were written are refused by what loads them, whatever their size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import typed
from safetensors.torch import save_file

from swift.checkpoint import Manifest, save_checkpoint
from swift.checkpoint.checksums import FileRecord
from swift.checkpoint.manifest import read_manifest, write_manifest
from swift.checkpoint.weights_location import find_weights
from swift.config.sections import ExportOptions
from swift.errors import CheckpointError
from swift.export.run import export_checkpoint
from swift.terminal import say_nothing
from swift_infer.serving.options import ServeOptions
from swift_infer.serving.request import serve_request

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


ADAPTER = {"peft_type": "LORA", "target_modules": ["q_proj"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with weights ready to load in two files; an adapter's file is there too."""
    return saved(tmp_path, "base")


def saved(run: Path, base: str, adapter: dict[str, Any] | None = None) -> Path:
    """Save a checkpoint of a run that trained `base`, or an adapter on it."""

    def extra(stored: Any) -> None:
        for name in (*FILES, "adapter_model.safetensors"):
            save_file({"weight": torch.ones(64)}, stored.folder / name)
        for name in ("config.json", "adapter_config.json"):
            (stored.folder / name).write_text("{}")

    facts = {"rows_per_step": 4, "seed": 1, "model_fingerprint": "m", "data_fingerprint": "d", "backend": "torch"}
    manifest = Manifest(step=0, config={"model": {"path": base}}, adapter=adapter, **facts)
    tensors = {"model.a": torch.ones(4)}
    save_checkpoint(
        run, 1, fill=lambda writer: writer.tensors(tensors), manifest=manifest, is_main=True, extra=extra
    ).wait()
    return run / "checkpoint-1"


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def infer(checkpoint: Path) -> None:
    ended = typed(["infer", str(checkpoint), "--prompt", "hello"], checkpoint)
    raise CheckpointError(ended.output)


def serve(checkpoint: Path) -> None:
    serve_request(ServeOptions(model=str(checkpoint)), say=say_nothing)


def export(checkpoint: Path) -> None:
    ended = typed(["export", str(checkpoint), "--to", "hf", "--out", "out"], checkpoint)
    raise CheckpointError(ended.output)


def infer_adapter(checkpoint: Path) -> None:
    find_weights("base", adapter=checkpoint)


def infer_base(checkpoint: Path) -> None:
    """An adapter was trained on the checkpoint's weights."""
    adapter = checkpoint.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({**ADAPTER, "base_model_name_or_path": str(checkpoint)}))
    find_weights(str(adapter))


def infer_base_of_run(checkpoint: Path) -> None:
    find_weights(str(saved(checkpoint.parent / "further", str(checkpoint), ADAPTER)))


def export_base_of_run(checkpoint: Path) -> None:
    """What is exported holds the base model's weights; the adapter is merged into them."""
    adapter = saved(checkpoint.parent / "further", str(checkpoint), ADAPTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swift.export.run.base_of", lambda *_, **__: SimpleNamespace(folder=checkpoint))
        export_checkpoint(adapter, to="hf", options=ExportOptions(), say=say_nothing)


@pytest.mark.parametrize(
    "load", [infer, serve, export, infer_adapter, infer_base, infer_base_of_run, export_base_of_run]
)
@pytest.mark.parametrize("name", FILES)
def test_altered_weights_are_refused(checkpoint: Path, load: Callable[[Path], None], name: str) -> None:
    flip_a_bit(checkpoint / name)
    with pytest.raises(CheckpointError, match=rf"{name} was\s+altered after it was written"):
        load(checkpoint)


def test_altered_served_adapter_is_refused(checkpoint: Path, tiny: Path) -> None:
    flip_a_bit(checkpoint / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors was altered after it was written"):
        serve_request(ServeOptions(model=str(tiny), adapters=[f"a={checkpoint}"]), say=say_nothing)


def test_unaltered_weights_are_taken(checkpoint: Path) -> None:
    assert find_weights(str(checkpoint)).weights.path == str(checkpoint)
    assert find_weights("base", adapter=checkpoint).adapter == checkpoint


def test_altered_large_weights_are_refused(checkpoint: Path) -> None:
    """A file of more than a gibibyte, of which the disk holds nothing: it is sparse."""
    path, size = checkpoint / FILES[1], (1 << 30) + 4096
    with path.open("r+b") as file:
        file.truncate(size)
    manifest = read_manifest(checkpoint)
    record = FileRecord(size=size, xxh3_128=manifest.files[FILES[1]].xxh3_128)
    write_manifest(checkpoint, manifest.model_copy(update={"files": {**manifest.files, FILES[1]: record}}))
    with pytest.raises(CheckpointError, match=rf"{FILES[1]} was altered after it was written"):
        find_weights(str(checkpoint))
