"""Tiny models that read images or hear sounds, in folders as released: random weights, a tokenizer of bytes and a
processor.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swift.models.media_processor import without_video_processor

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "pad_token_id": 258,  # the token that ends texts, as in most fine-tuned models
}
_OMNI = {
    **{f"{kind}_token": f"<|{kind.upper()}|>" for kind in ("image", "video", "audio")},
    **{f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")},
}
_HEARD = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
_ENDS = (("start", "bos"), ("end", "eos"))
OMNI = "qwen2_5_omni_thinker"
"""The kind that reads images and hears sounds."""
QWEN_TEXT = {"model_type": "qwen2", **TEXT}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
ENCODER: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 32,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
    "image_size": 56,
    "vision_use_head": False,
}


def image_model(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """Write a model of one kind: 'llava', 'qwen2_vl', 'qwen2_5_vl', 'qwen3_vl', 'qwen3_5', 'qwen2_audio' or OMNI."""
    config, model_class = image_configuration(kind)
    with_telling_weights(model_class, config, seed).save_pretrained(folder)
    processor_of(kind).save_pretrained(folder)
    return folder


def with_telling_weights(model_class: Any, config: Any, seed: int = 0) -> Any:
    """Return a model of random weights large enough to tell."""
    torch.manual_seed(seed)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.08)
    return model


def processor_of(kind: str) -> Any:
    """Return the processor as users of transformers make it; of Qwen's kinds without the part for videos."""
    processor = _processor(kind)
    processor.tokenizer.chat_template = processor.chat_template
    return processor


def _processor(kind: str) -> Any:
    if kind == "llava":
        tokenizer = tokenizer_with(("<image>",), {"image_token": "<image>"})
        return transformers.LlavaProcessor(
            transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56}),
            tokenizer,
            patch_size=14,
            vision_feature_select_strategy="full",
            num_additional_image_tokens=0,
            chat_template=chat_template("<image>"),
        )
    if kind == "qwen2_audio":
        return transformers.Qwen2AudioProcessor(
            transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2),
            tokenizer_with(tuple(_HEARD.values()), _HEARD),
            chat_template=chat_template("", "<|audio_bos|><|AUDIO|><|audio_eos|>"),
        )
    if kind == OMNI:
        return without_video_processor(transformers.Qwen2_5OmniProcessor)(
            _images_of_qwen(),
            feature_extractor=transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=4),
            tokenizer=tokenizer_with(tuple(_OMNI.values()), _OMNI),
            chat_template=chat_template("<|vision_bos|><|IMAGE|><|vision_eos|>", "<|audio_bos|><|AUDIO|><|audio_eos|>"),
        )
    whole = {
        "qwen2_vl": transformers.Qwen2VLProcessor,
        "qwen2_5_vl": transformers.Qwen2_5_VLProcessor,
        "qwen3_vl": transformers.Qwen3VLProcessor,
        "qwen3_5": transformers.Qwen3VLProcessor,
    }[kind]

    class Images(whole):  # type: ignore[valid-type, misc]  # a base that is chosen here
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
            super().__init__(image_processor=image_processor, tokenizer=tokenizer, chat_template=chat_template)

    Images.__name__ = whole.__name__
    template = chat_template("<|vision_start|><|image_pad|><|vision_end|>")
    return Images(_images_of_qwen(), tokenizer_with(tuple(_QWEN.values()), {}), chat_template=template)


def _images_of_qwen() -> Any:
    return transformers.Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    )


def image(width: int, height: int, seed: int) -> Image.Image:
    """Return noise of this size."""
    noise = np.random.RandomState(seed).randint(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def image_files(folder: Path, sizes: Sequence[tuple[int, int]]) -> list[str]:
    """Write an image of each size into a folder; return the names of the files."""
    names = []
    for number, (width, height) in enumerate(sizes):
        names.append(f"{number}.png")
        image(width, height, number).save(folder / names[-1])
    return names


def sound(seconds: float, seed: int, rate: int = 16000) -> np.ndarray:
    """Return two tones and some noise, from -1 to 1."""
    random = np.random.RandomState(seed)
    moments = np.arange(round(seconds * rate)) / rate
    tones = sum(0.3 * np.sin(2 * np.pi * frequency * moments) for frequency in random.uniform(200, 2000, 2))
    return (tones + 0.05 * random.standard_normal(len(moments))).astype(np.float32)


def sound_files(folder: Path, lengths: Sequence[float], rate: int = 16000) -> list[str]:
    """Write a WAV file of 16 bits for each length into a folder; return the names of the files."""
    names = []
    for number, seconds in enumerate(lengths):
        names.append(f"{number}.wav")
        with wave.open(str(folder / names[-1]), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes((sound(seconds, number, rate) * 32767).astype("<i2").tobytes())
    return names


def tokenizer_with(special: Sequence[str], named: dict[str, str]) -> PreTrainedTokenizerFast:
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in (*_SPECIAL, *special)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        **({"extra_special_tokens": named} if named else {}),
    )


def chat_template(image: str, audio: str = "") -> str:
    return (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}"
        + image
        + "{% elif part['type'] == 'audio' %}"
        + audio
        + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def image_configuration(kind: str) -> tuple[Any, Any]:
    if kind == "llava":
        tokenizer = tokenizer_with(("<image>",), {"image_token": "<image>"})
        config = transformers.LlavaConfig(
            text_config=QWEN_TEXT,
            vision_config=SIGLIP,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
        )
        return config, transformers.LlavaForConditionalGeneration
    if kind == "qwen2_audio":
        tokenizer = tokenizer_with(tuple(_HEARD.values()), _HEARD)
        encoder = {
            "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32,
            "max_source_positions": 100,
        }  # fmt: skip
        config = transformers.Qwen2AudioConfig(
            audio_config={"model_type": "qwen2_audio_encoder", **encoder},
            text_config=QWEN_TEXT,
            audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
        )
        return config, transformers.Qwen2AudioForConditionalGeneration
    if kind == OMNI:
        return _omni_configuration(), transformers.Qwen2_5OmniThinkerForConditionalGeneration
    tokenizer = tokenizer_with(tuple(_QWEN.values()), {})
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in _QWEN.items()}
    text = {**TEXT, "rope_parameters": _ROPE}
    if kind == "qwen2_vl":
        encoder = {**ENCODER, "embed_dim": 32, "mlp_ratio": 2}
        for unknown in ("intermediate_size", "out_hidden_size"):
            encoder.pop(unknown)
        return transformers.Qwen2VLConfig(text_config=text, vision_config=encoder, **ids), (
            transformers.Qwen2VLForConditionalGeneration
        )
    if kind == "qwen2_5_vl":
        encoder = {**ENCODER, "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2}
        return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=encoder, **ids), (
            transformers.Qwen2_5_VLForConditionalGeneration
        )
    text = {**text, "head_dim": 8, "rope_parameters": {**_ROPE, "mrope_interleaved": True}}
    if kind == "qwen3_vl":
        encoder = {**ENCODER, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
        return transformers.Qwen3VLConfig(text_config=text, vision_config=encoder, **ids), (
            transformers.Qwen3VLForConditionalGeneration
        )
    text |= {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
    text |= {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    text["rope_parameters"]["partial_rotary_factor"] = 1.0
    encoder = {**ENCODER, "num_position_embeddings": 16, "deepstack_visual_indexes": []}
    return transformers.Qwen3_5Config(text_config=text, vision_config=encoder, **ids), (
        transformers.Qwen3_5ForConditionalGeneration
    )


def _omni_configuration() -> Any:
    tokenizer = tokenizer_with(tuple(_OMNI.values()), {})
    ids = {f"{name}_index": tokenizer.convert_tokens_to_ids(_OMNI[name]) for name in list(_OMNI)[:3]}
    ids |= {"vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_bos|>")}
    ids |= {f"audio_{end}_token_id": tokenizer.convert_tokens_to_ids(f"<|audio_{name}|>") for end, name in _ENDS}
    heard = {
        "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32,
        "max_source_positions": 100, "n_window": 50, "output_dim": 32,
    }  # fmt: skip
    return transformers.Qwen2_5OmniThinkerConfig(
        text_config={**TEXT, "rope_parameters": _ROPE},
        vision_config={**ENCODER, "window_size": 56, "fullatt_block_indexes": [1]},
        audio_config=heard,
        **ids,
    )
