"""The exporter `vllm`: what the installed vLLM runs, asked before anything is written, and by the real one after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from trained_demo import Trained

from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import ExportRequest
from swift.errors import ExportError
from swift.export.run import export_checkpoint
from swift.export.verify.reference import fixed_prompts, module_logps
from swift.models.source import open_source
from swift_export_vllm.exporter import VllmExporter

pytestmark = pytest.mark.usefixtures("imported")


@pytest.mark.full
def test_vllm_agrees_with_training_state_on_export(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if from one process of several: the engine must not take itself for one of them."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "out"
    said: list[str] = []
    export_checkpoint(trained.run, to="vllm", options=ExportOptions(out=folder, verify="all"), say=said.append)
    report = json.loads((folder / "verification.json").read_text())
    assert report["vllm"]["compared"]
    assert report["vllm"]["log_probabilities"]["largest_difference"] < 1e-4
    assert report["vllm"]["greedy"]["tokens_equal"] > 0
    assert any(line.startswith("Verified by transformers and vLLM: ") for line in said)
    whole = load_file(trained.exported / "model.safetensors")
    assert all((tensor == whole[name]).all() for name, tensor in load_file(folder / "model.safetensors").items())


@pytest.mark.full
def test_vllm_checks_adapter_on_base_model(lora_run: Path, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    said: list[str] = []
    export_checkpoint(lora_run, to="adapter", options=ExportOptions(out=folder, verify="all"), say=said.append)
    report = json.loads((folder / "verification.json").read_text())
    assert report["vllm"]["compared"]
    assert report["vllm"]["log_probabilities"]["largest_difference"] < 1e-4
    assert report["vllm"]["greedy"]["tokens_equal"] > 0
    assert any(line.startswith("Verified by transformers and vLLM: ") for line in said)

    source = open_source(ModelSection(path=str(small)), say=lambda _: None)
    base = source.build(dtype=torch.float32)
    prompts = fixed_prompts(source)[:1]
    (without,) = module_logps(base, prompts)
    (adapted,) = module_logps(PeftModel.from_pretrained(base, folder), prompts)
    assert max(abs(a - b) for a, b in zip(without, adapted, strict=True)) > 1e-2, "an adapter that changes nothing"


@pytest.mark.full
def test_unlisted_model_is_refused_before_reading(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that vLLM does not list is refused before anything is read."""
    source = open_source(ModelSection(path=str(trained.exported)), say=lambda _: None)
    source.config.architectures = ["Qwen3ForCausalLMM"]
    with pytest.raises(ExportError, match=r"does not run Qwen3ForCausalLMM\. Did you mean 'Qwen3ForCausalLM'\?"):
        VllmExporter().swift_export(iter(()), ExportRequest(tmp_path, source, None, ExportOptions()))
    assert list(tmp_path.iterdir()) == []
