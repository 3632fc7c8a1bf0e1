"""From a checkpoint to a folder that transformers and PEFT load, checked against the training state, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from tiny import logits, tiny_model
from tiny_runs import conversations, run_training
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.checkpoint import Manifest, save_checkpoint
from swift.checkpoint.names import model_name
from swift.checkpoint.weights_location import find_weights
from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import ExportRequest
from swift.errors import CheckpointError, ExportError, UsageError
from swift.export.plugins import AdapterExporter, HuggingFaceExporter
from swift.export.run import export_checkpoint
from swift.hookspecs import ExporterHooks
from swift.models.names import canonical_parameters
from swift.models.source import HfSource, open_source

Damage = Callable[[Path], None]


class Exporters(ExporterHooks):
    """Both exporters of core, called without pluggy; `damage` is done to the folder after writing."""

    def __init__(self, damage: Damage = lambda _: None) -> None:
        self._damage = damage

    def swift_export(self, _: object, weights: Iterator[tuple[str, torch.Tensor]], request: ExportRequest) -> Path:
        plugin = AdapterExporter() if "adapter" in request.destination.name else HuggingFaceExporter()
        folder = plugin.swift_export(weights, request)
        self._damage(folder)
        return folder


def source_of(base: Path) -> HfSource:
    return open_source(ModelSection(path=str(base)), say=lambda _: None)


def save(run: Path, base: Path, tensors: dict[str, torch.Tensor], adapter: dict[str, Any] | None = None) -> Path:
    """A checkpoint as a run would write it."""
    manifest = Manifest(
        step=0,
        rows_per_step=8,
        seed=1,
        model_fingerprint=source_of(base).fingerprint,
        data_fingerprint="d",
        backend="torch",
        config={"model": {"path": str(base)}},
        adapter=adapter
        and json.loads(json.dumps(adapter, default=lambda v: sorted(v) if isinstance(v, set) else str(v))),
    )
    named = {model_name(name): tensor for name, tensor in tensors.items()}
    return save_checkpoint(run, 7, fill=lambda writer: writer.tensors(named), manifest=manifest, is_main=True).wait()


def trained(base: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model after some training, and its weights by Hugging Face names."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(9)
    tensors = {}
    for pieces, parameter in canonical_parameters(model):
        parameter.data.add_(torch.randn_like(parameter) * 0.02)
        tensors |= {piece.name: piece.view_of(parameter.data) for piece in pieces}
    return model, tensors


def trained_adapter(base: Path) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=4, target_modules=["q_proj", "down_proj"], use_dora=True, task_type="CAUSAL_LM"),
    )
    torch.manual_seed(9)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model, dict(get_peft_model_state_dict(model)), model.peft_config["default"].to_dict()


def export(path: Path, to: str, damage: Damage = lambda _: None, said: list[str] | None = None, **options: Any) -> Path:
    return export_checkpoint(
        path,
        to=to,
        options=ExportOptions(**{"verify": "transformers", **options}),
        say=(said if said is not None else []).append,
        exporter=Exporters(damage),
    )


@pytest.mark.parametrize(
    ("kind", "changes"), [("qwen3", {}), ("qwen3", {"tie_word_embeddings": True}), ("moe", {})], ids=str
)
def test_sharded_export_loads_with_training_logits(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    """A sharded export loads in transformers with the logits of training."""
    base = tiny_model(tmp_path / "base", kind, **changes)
    model, tensors = trained(base)
    run = tmp_path / "run"
    save(run, base, tensors)
    folder = export(run, "hf", shard_size_gb=1e-4)
    assert folder == run / "export-hf"
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert all(shard.stat().st_size < 110_000 for shard in shards)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(loaded), logits(model))
    text = "tokens as before"
    assert AutoTokenizer.from_pretrained(folder)(text) == AutoTokenizer.from_pretrained(base)(text)
    report = json.loads((folder / "verification.json").read_text())
    assert report["verified"]
    assert report["weights"]["compared"] == len(tensors)
    assert report["log_probabilities"]["tokens"] > 100
    assert report["log_probabilities"]["largest_difference"] < 1e-5
    assert list(run.glob(".*")) == []


def test_adapter_exports_for_peft_or_merged(tmp_path: Path) -> None:
    """An adapter is exported alone for PEFT or merged for transformers."""
    base = tiny_model(tmp_path / "base")
    model, tensors, config = trained_adapter(base)
    checkpoint = save(tmp_path / "run", base, tensors, config)
    before = logits(model)

    folder = export(checkpoint, "adapter")
    fresh = AutoModelForCausalLM.from_pretrained(base)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(fresh, folder)), before, rtol=0, atol=1e-5)
    assert (folder / "verification.json").is_file()

    folder = export(checkpoint, "hf")
    assert (folder / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(loaded), before, rtol=1e-4, atol=1e-4)


def test_export_keeps_dtype_of_base_model(tmp_path: Path) -> None:
    """Weights keep the precision of the base model unless another is requested."""
    base = tiny_model(tmp_path / "base", dtype=torch.bfloat16)
    _, tensors = trained(base)
    checkpoint = save(tmp_path / "run", base, tensors)
    folder = export(checkpoint, "hf")
    exported = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {torch.bfloat16}
    assert all(torch.equal(exported[name], tensor.bfloat16()) for name, tensor in tensors.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    folder = export(checkpoint, "hf", dtype="float32", out=tmp_path / "wide")
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}


def alter_one_weight(folder: Path) -> None:
    for file in (folder / "model.safetensors", folder / "adapter_model.safetensors"):
        if file.is_file():
            tensors = load_file(file)
            name = next(name for name in tensors if "layers.1" in name and "q_proj" in name)
            tensors[name].view(-1)[3] += 1e-3
            save_file(tensors, file, {"format": "pt"})


def leave_a_weight_out(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def change_the_configuration(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("to", "damage", "said"),
    [
        ("hf", alter_one_weight, r"model\.layers\.1\.self_attn\.q_proj\.weight has other values"),
        ("adapter", alter_one_weight, r"layers\.1\.self_attn\.q_proj\.lora_A\.weight has other values"),
        ("hf", leave_a_weight_out, r"lacks 1 weights, the first is model\.norm\.weight"),
        ("hf", change_the_configuration, r"token 1 \(\d+\) of test prompt 1 has log-probability"),
    ],
)
def test_an_export_that_differs_is_not_left_behind(tmp_path: Path, to: str, damage: Damage, said: str) -> None:
    base = tiny_model(tmp_path / "base")
    _, tensors, config = trained_adapter(base)
    checkpoint = save(tmp_path / "run", base, tensors, config)
    with pytest.raises(ExportError, match=said):
        export(checkpoint, to, damage)
    assert not (tmp_path / "run" / f"export-{to}").exists()
    assert list((tmp_path / "run").glob(".*")) == []


def test_overwrite_needs_export_folder_and_flag(tmp_path: Path) -> None:
    """Nothing is overwritten unless it is an export and the user says so."""
    base = tiny_model(tmp_path / "base")
    _, tensors = trained(base)
    checkpoint = save(tmp_path / "run", base, tensors)
    out = tmp_path / "out"
    export(checkpoint, "hf", out=out, verify="none")
    assert not (out / "verification.json").exists()
    with pytest.raises(UsageError, match="already exists") as caught:
        export(checkpoint, "hf", out=out)
    assert "--exist_ok true" in (caught.value.hint or "")
    export(checkpoint, "hf", out=out, exist_ok=True)
    assert (out / "verification.json").is_file()

    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("…")
    with pytest.raises(UsageError, match="is not an export"):
        export(checkpoint, "hf", out=precious, exist_ok=True)
    assert (precious / "thesis.tex").read_text() == "…"


def test_full_disk_leaves_no_partial_export(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    _, tensors = trained(base)
    checkpoint = save(tmp_path / "run", base, tensors)

    def fill_up(folder: Path) -> None:
        (folder / "full").symlink_to("/dev/full")
        with (folder / "full").open("wb") as file:
            file.write(b"x")

    with pytest.raises(ExportError, match="the disk is full"):
        export(checkpoint, "hf", fill_up)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint-7", "last-checkpoint"]


def test_missing_weight_and_changed_base_model_are_reported(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    _, tensors, config = trained_adapter(base)
    checkpoint = save(tmp_path / "run", base, tensors, config)
    tiny_model(tmp_path / "base", initializer_range=0.2)
    with pytest.raises(CheckpointError, match="is not the one that training started from"):
        export(checkpoint, "hf")


def test_a_full_fine_tuning_has_no_adapter_to_export(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    _, tensors = trained(base)
    with pytest.raises(ExportError, match="no adapter to export"):
        export(save(tmp_path / "run", base, tensors), "adapter")


def test_relative_base_model_is_found_from_another_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was started in one folder with `--model base`; it is exported in another, by the path of the run."""
    started, other = tmp_path / "started", tmp_path / "other"
    shutil.copytree(tiny, started / "base")
    other.mkdir()
    monkeypatch.chdir(started)
    run_training(Path("base"), Path("output"), conversations(4), {"tuner.kind": "lora", "train.max_steps": 1})
    monkeypatch.chdir(other)
    run = Path("..", "started", "output", "base", "run")
    assert typed(["export", str(run), "--to", "hf", "--out", "exported"], other).code == 0
    assert find_weights(str(run)).weights.path == str(started / "base")
