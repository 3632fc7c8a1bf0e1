"""Models with an encoder: which class they are, which parts they have, and what is trained of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tiny_images import image_model

from swift.config.sections import ModelSection, TunerSection
from swift.errors import ConfigError
from swift.models.attention import VARLEN, choose_attention, use_attention
from swift.models.build import decoder_blocks
from swift.models.parts import part_of_modules, trained_parts
from swift.models.source import HfSource, architecture_of, open_source
from swift.models.tp_spec import tensor_parallel_spec
from swift.models.tuners import apply_tuner
from swift.models.view import ViewModule

KINDS = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: image_model(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def source_of(folder: Path) -> HfSource:
    return open_source(ModelSection(path=str(folder)), say=print)


def tuned(folder: Path, **options: Any) -> torch.nn.Module:
    model = source_of(folder).build(dtype=torch.float32)
    return apply_tuner(model, TunerSection(**options), seed=1, say=print)


def trained_names(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
def test_vision_model_folder_uses_writing_class(folders: dict[str, Path], kind: str) -> None:
    """A folder with a vision encoder is read by the class that wrote it."""
    source = source_of(folders[kind])
    written: set[str] = set()
    for file in folders[kind].glob("*.safetensors"):
        written |= set(load_file(file))
    assert set(source.names()) == written
    for name in source.names()[::7]:
        assert source.read(name).shape == source.shape(name)
    assert architecture_of(source) in dir(transformers)
    assert type(source.build(dtype=torch.float32)).__name__ == architecture_of(source)


def test_freezing_a_weight_of_a_model_leaves_what_is_inside(folders: dict[str, Path]) -> None:
    """LLaVA-NeXT's body has a weight of its own, which belongs to the aligner, around encoder and language model."""
    model = source_of(folders["llava"]).build(dtype=torch.float32)
    model.model.image_newline = torch.nn.Parameter(torch.zeros(4))
    apply_tuner(model, TunerSection(), seed=1, say=print)
    assert trained_parts(model) == {"llm"}
    assert not model.model.image_newline.requires_grad


def test_config_with_two_classes_uses_named_one(folders: dict[str, Path]) -> None:
    """A configuration with two classes takes the one that its file names."""
    config = transformers.AutoConfig.from_pretrained(folders["qwen3_5"])
    from swift.models.classes import causal_class

    assert causal_class(config) is transformers.Qwen3_5ForConditionalGeneration
    config.architectures = ["Qwen3_5ForCausalLM"]
    assert causal_class(config) is transformers.Qwen3_5ForCausalLM


@pytest.mark.parametrize("kind", KINDS)
def test_vision_encoder_aligner_and_language_model_differ(folders: dict[str, Path], kind: str) -> None:
    parts = part_of_modules(source_of(folders[kind]).build(dtype=torch.float32, weights=False))
    assert set(parts.values()) == {"vit", "aligner", "llm"}
    for name, part in parts.items():
        if "merger" in name or "projector" in name:
            assert part == "aligner", name
        elif "visual" in name or "vision" in name:
            assert part == "vit", name
        else:
            assert part == "llm", name


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"llm"}),
        ({"freeze_vit": False}, {"llm", "vit"}),
        ({"freeze_aligner": False, "freeze_llm": True}, {"aligner"}),
        ({"freeze_vit": False, "freeze_aligner": False}, {"llm", "vit", "aligner"}),
    ],
)
@pytest.mark.parametrize("tuner", ["full", "lora"])
@pytest.mark.parametrize("kind", ["llava", "qwen3_vl"])
def test_what_is_trained_is_what_is_not_frozen(
    folders: dict[str, Path], kind: str, tuner: str, flags: dict[str, bool], expected: set[str]
) -> None:
    assert trained_parts(tuned(folders[kind], kind=tuner, **flags)) == expected


def test_all_linear_adapters_skip_frozen_vision_encoder(folders: dict[str, Path]) -> None:
    """Adapters on all linear layers leave a frozen vision encoder alone."""
    names = [name for name, _ in tuned(folders["llava"], kind="lora").named_parameters() if "lora_" in name]
    assert names
    assert not [name for name in names if "vision" in name or "projector" in name]
    # q_proj is a name in the encoder too.
    named = tuned(folders["llava"], kind="lora", targets=["q_proj"]).named_parameters()
    assert not [name for name, _ in named if "lora_" in name and "vision" in name]


def test_pattern_selected_vision_weights_are_trained(folders: dict[str, Path]) -> None:
    """Weights that patterns choose are trained in the vision encoder too."""
    model = tuned(folders["qwen3_vl"], kind="full", train_only=["model.visual.blocks.*"])
    assert trained_parts(model) == {"vit"}
    with pytest.raises(ConfigError, match="Nothing is left to train"):
        tuned(folders["qwen3_vl"], kind="full", train_only=["model.visual.blocks.*"], freeze_vit=True)


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_blocks_exclude_vision_encoder(folders: dict[str, Path], kind: str) -> None:
    model: Any = source_of(folders[kind]).build(dtype=torch.float32, weights=False)
    assert decoder_blocks(model) == list(model.get_decoder().layers)


def test_tp_spec_is_found_behind_vision_encoder(folders: dict[str, Path]) -> None:
    model = source_of(folders["qwen2_5_vl"]).build(dtype=torch.float32, weights=False)
    assert tensor_parallel_spec(model).cut["model.language_model.layers.0.self_attn.q_proj"] == "colwise"


def test_stateful_layers_behind_vision_encoder_are_packed(folders: dict[str, Path]) -> None:
    model: Any = source_of(folders["qwen3_5"]).build(dtype=torch.float32)
    view = ViewModule(model, attention=choose_attention("auto", model.config, flat=True, device="cpu"))
    assert {type(module).__name__ for module in view.by_sample} == {"Qwen3_5GatedDeltaNet"}
    assert "linear_attn sample by sample" in view.attention.reason


def test_only_the_language_model_attends_sample_by_sample(folders: dict[str, Path]) -> None:
    model: Any = source_of(folders["qwen2_5_vl"]).build(dtype=torch.float32, weights=False)
    choice = choose_attention("auto", model.config, flat=True, device="cpu")
    assert choice.implementation == VARLEN
    use_attention(model, choice)
    assert model.config.text_config._attn_implementation == VARLEN
    assert model.config.vision_config._attn_implementation == "sdpa"


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_packed_texts_do_not_mix_behind_vision_encoder(folders: dict[str, Path], kind: str) -> None:
    model: Any = source_of(folders[kind]).build(dtype=torch.float32)
    # Compares each text with the model's own answer to it alone, and raises where they differ.
    ViewModule(model, attention=choose_attention("auto", model.config, flat=True, device="cpu"))
