"""Which class of transformers trains a configuration, and the sentence where none does."""

from __future__ import annotations

import re

import pytest
from transformers import AutoConfig

from swift.models.classes import causal_class, has_encoder, refusal


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llava", "LlavaForConditionalGeneration"),
        ("janus", "JanusForConditionalGeneration"),
        ("deepseek_vl", "DeepseekVLForConditionalGeneration"),
    ],
)
def test_class_that_reads_images_is_found(model_type: str, name: str) -> None:
    """Also where the encoder is a method of the body alone."""
    config = AutoConfig.for_model(model_type)
    assert has_encoder(config)
    assert causal_class(config).__name__ == name


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        ("florence2", "an encoder-decoder. swift trains decoder-only models."),
        ("shieldgemma2", "ShieldGemma2ForImageClassification classifies images and writes no text; swift trains .*"),
        ("t5gemma2", "an encoder-decoder. swift trains decoder-only models."),
        ("kosmos-2", r"does not put images among the tokens of its text \(it has no get_image_features\)\."),
        (
            "instructblipvideo",
            r"does not put images among the tokens of its text \(it has no get_image_features\)\.",
        ),
    ],
)
def test_other_ways_to_read_images_are_refused(model_type: str, sentence: str) -> None:
    config = AutoConfig.for_model(model_type)
    assert causal_class(config) is None
    assert re.search(f"{sentence}$", refusal(config, "m"))
