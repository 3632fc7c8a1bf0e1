"""`swift export --to gguf`: read back by transformers, and compared with what was trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from gguf import GGUFReader
from gguf_tokenizers import byte_level_bpe, sentence_piece_bpe
from pydantic import ValidationError
from real_model import is_installed, real_model
from transformers import AutoModelForCausalLM

from swift.config.sections import ExportSection
from swift.errors import ExportError
from swift.export import export_checkpoint
from swift_export_gguf import vocabulary, write
from swift_export_gguf.architectures import Architecture
from swift_export_gguf.modelfile import ollama_template
from swift_export_gguf.plugin import GgufOptions
from swift_export_gguf.write import FILE
from swift_testing import ExporterConformance
from swift_testing.subjects import write_model
from swift_testing.tokenizer import byte_tokenizer

VOCABULARY = 440
GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 16, "factor": 4.0}
MODELS: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 128}, lambda: byte_level_bpe("qwen2")),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, lambda: byte_level_bpe("gpt-4o")),
    "llama": ("Llama", {}, lambda: byte_level_bpe("llama-bpe")),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}, lambda: sentence_piece_bpe(prefix=True)),
    "phi3": ("Phi3", {}, lambda: sentence_piece_bpe(prefix=True)),
    "gemma2": ("Gemma2", GEMMA, lambda: sentence_piece_bpe(prefix=False)),
    "gemma3": ("Gemma3Text", {**GEMMA, "num_hidden_layers": 6}, lambda: sentence_piece_bpe(prefix=False)),
}


class TestGguf(ExporterConformance):
    exporter = "gguf"


class TestQ8(ExporterConformance):
    exporter = "gguf"
    options: ClassVar = {"outtype": "q8_0"}


def model_of(folder: Path, name: str = "llama", **changes: Any) -> Path:
    architecture, settings, tokenizer = MODELS[name]
    write_model(folder, architecture=architecture, vocab_size=VOCABULARY, **{**settings, **changes})
    tokenizer().save_pretrained(folder)
    return folder


def exported(model: Path, outtype: str = "f32") -> Path:
    out = model.parent / outtype
    export_checkpoint(model, to="gguf", options=ExportSection(out=out, outtype=outtype), say=lambda _: None)
    return out


def logits(folder: Path, **where: Any) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where).eval()
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(5, 85)[None]).logits
    return found


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_from_gguf(tmp_path: Path, name: str) -> None:
    """Load the file as a user does, with the configuration that it holds itself."""
    model = model_of(tmp_path / "model", name)
    out = exported(model)
    torch.testing.assert_close(logits(out, gguf_file=FILE), logits(model), atol=1e-4, rtol=1e-4)
    report = json.loads((out / "verification.json").read_text())
    assert report["greedy"]["tokens_equal"] + report["greedy"]["near_ties"] >= 20


@pytest.mark.parametrize(("outtype", "error"), [("f16", 0.001), ("bf16", 0.004), ("q8_0", 0.01), ("q4_0", 0.15)])
def test_type_of_the_matrices_is_as_requested(tmp_path: Path, outtype: str, error: float) -> None:
    out = exported(model_of(tmp_path / "model"), outtype)
    kinds = {each.name: each.tensor_type.name.lower() for each in GGUFReader(out / FILE).tensors}
    assert kinds["output_norm.weight"] == "f32"
    assert {kinds["token_embd.weight"], kinds["blk.1.attn_q.weight"], kinds["output.weight"]} == {outtype}
    report = json.loads((out / "verification.json").read_text())
    assert float(report["weights"]["equal"].split()[-1]) <= error


def test_llama3_scaling_divides_low_frequencies(tmp_path: Path) -> None:
    """Compare with the frequencies of transformers."""
    rope = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = model_of(tmp_path / "model", rope_parameters=rope)
    factors = next(each.data for each in GGUFReader(exported(model) / FILE).tensors if each.name == "rope_freqs.weight")
    own: Any = AutoModelForCausalLM.from_pretrained(model)
    width = own.config.head_dim
    plain = 1 / 10000.0 ** (torch.arange(0, width, 2) / width)
    torch.testing.assert_close(plain / torch.tensor(factors), own.model.rotary_emb.inv_freq)


def wrong_tie(write_tensor: Callable[..., None]) -> Callable[..., None]:
    seen: list[torch.Tensor] = []

    def tied(file: Any, offset: int, tensor: torch.Tensor, stored: Any) -> None:
        if tensor.shape[0] == VOCABULARY:  # the embedding, then the head
            seen.append(tensor)
            tensor = seen[0]
        write_tensor(file, offset, tensor, stored)

    return tied


def misnamed(names: Callable[[Any], dict[str, str]]) -> Callable[[Any], dict[str, str]]:
    return lambda source: {
        name: stored.replace("blk.0.ffn_up", "blk.0.ffn_upper") for name, stored in names(source).items()
    }


def swapped(tokens: Callable[..., Any]) -> Callable[..., Any]:
    def with_two_swapped(*arguments: Any) -> Any:
        listed, types = tokens(*arguments)
        first, second = listed.index("a"), listed.index("e")
        listed[first], listed[second] = "e", "a"
        return listed, types

    return with_two_swapped


MISTAKES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "rows not interleaved": (Architecture, "stored", lambda _: lambda _self, _name, weight, _config: weight, "_proj"),
    "wrong tie": (write, "_write_tensor", wrong_tie, "other values in lm_head.weight"),
    "missing tensor": (write, "gguf_names", misnamed, "other values in model.layers.0.mlp.up_proj"),
    "wrong rotary base": (
        write.GGUFWriter, "add_rope_freq_base", lambda add: lambda self, value: add(self, 2 * value), "rope_theta"
    ),
    "tokens in other rows": (vocabulary, "_tokens", swapped, "encodes"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_file_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """What other converters got wrong: the comparison ends the export."""
    owner, name, change, reason = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises(ExportError, match=reason):
        exported(model_of(tmp_path / "model"))
    assert not (tmp_path / "f32").exists()


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama", {"attention_bias": True}, "with attention_bias False; this model has True"),
        ("gemma2", {"query_pre_attn_scalar": 8}, "query_pre_attn_scalar 256"),
        ("qwen2", {"rope_parameters": {**ROPE, "rope_type": "dynamic"}}, "rope_scaling linear, yarn and llama3 only"),
    ],
)
def test_settings_without_a_key_are_refused(tmp_path: Path, name: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        exported(model_of(tmp_path / "model", name, **changes))


def test_unknown_model_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"type gpt2 cannot be exported to GGUF\. Supported: llama, qwen2"):
        exported(write_model(tmp_path / "model", architecture="GPT2"))


def test_k_quants_are_refused_with_the_command() -> None:
    with pytest.raises(ValidationError, match=r"llama-quantize model\.gguf model-q4_k_m\.gguf Q4_K_M"):
        GgufOptions(outtype="q4_k_m")
    assert GgufOptions(outtype="F16").outtype == "f16"


def test_modelfile_has_the_chat_template(tmp_path: Path) -> None:
    lines = (exported(model_of(tmp_path / "model")) / "Modelfile").read_text()
    assert lines == (
        'FROM ./model.gguf\nTEMPLATE """{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}'
        '{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n{{ end }}{{ end }}'
        '<|im_start|>assistant\n"""\nPARAMETER stop "<|im_end|>"\n'
    )


def test_ollama_template_keeps_default_system_and_bos() -> None:
    """The template of SmolLM2: it writes a system message of its own, and begins messages with what it calls BOS."""
    own = byte_tokenizer().chat_template
    default = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    tokenizer = byte_tokenizer(chat_template=default + own)
    tokenizer.bos_token = "<|im_start|>"
    template = ollama_template(tokenizer)
    assert template is not None
    assert "{{ else }}<|im_start|>system\nBe kind.<|im_end|>\n{{ end }}" in template


def test_template_that_varies_is_left_out() -> None:
    varying = "{% for message in messages %}{{ loop.index }}{{ message['content'] }}\n{% endfor %}"
    assert ollama_template(byte_tokenizer(chat_template=varying)) is None


@pytest.mark.full
@pytest.mark.skipif(not is_installed(), reason="the pretrained model is not installed")
def test_real_model_goes_on_as_before(tmp_path: Path) -> None:
    """SmolLM2-135M-Instruct: four prompts, 16 greedy tokens after each."""
    out = tmp_path / "out"
    export_checkpoint(real_model(), to="gguf", options=ExportSection(out=out, outtype="f16"), say=lambda _: None)
    assert json.loads((out / "verification.json").read_text())["greedy"]["tokens_equal"] == 64
