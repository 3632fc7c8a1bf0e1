"""Tiny models of many architectures that read images, and what holds for each when samples share a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from tiny_images import (
    ENCODER,
    OMNI,
    QWEN_TEXT,
    SIGLIP,
    TEXT,
    chat_template,
    image,
    image_configuration,
    image_files,
    processor_of,
    tokenizer_with,
    with_telling_weights,
)

from swift.config.sections import DataSection
from swift.contracts import Need
from swift.data.batch import MicroBatch
from swift.data.encode import SampleEncoder
from swift.data.encodings import encoding_of
from swift.data.pipeline import media_tokens_of
from swift.data.samples import Encoded
from swift.errors import ModelError
from swift.models.attention import choose_attention
from swift.models.media import ProcessorReader
from swift.models.media_processor import MediaProcessor, without_video_processor
from swift.models.view import ViewModule

PINS = [[56, 112], [112, 56], [112, 112]]
_SIDE = {"height": 56, "width": 56}
_FULL: dict[str, Any] = {"vision_feature_select_strategy": "full"}
_SIZES: list[list[tuple[int, int]]] = [[(56, 56)], [(84, 56), (56, 112)], [(90, 61)], []]
"""The images of each sample of a batch."""
_OF_ROW = [(56, 56), (90, 61)]
_PIXTRAL = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
_PIXTRAL_ENCODER: dict[str, Any] = {
    **{name: value for name, value in SIGLIP.items() if name != "vision_use_head"}, "model_type": "pixtral",
    "image_size": 112,
}  # fmt: skip
Parts = tuple[Any, Any, Any]
"""A configuration, the class of the model, and its processor."""


@dataclass(frozen=True)
class Proven:
    """What came of one architecture: 'equal' or 'refused' for each layout."""

    padded: str
    padding_free: str
    packed: str


def proven(kind: str) -> Proven:
    """Compare samples that share a batch with each of them alone, asked of the model itself."""
    model, processor = _made(kind)
    model.eval()
    rules = MediaProcessor(processor, DataSection())
    positions = getattr(model.base_model, "get_rope_index", None)
    reader = ProcessorReader(rules, positions, kinds=frozenset(rules.placeholders))
    samples = [reader.probe(sizes) for sizes in _SIZES]
    expected = [_alone(model, reader, sample) for sample in samples]
    return Proven(*(_of_layout(model, reader, samples, expected, layout) for layout in ("padded", "flat", "packed")))


def rows_are_read(kind: str) -> bool:
    """Return whether the tokens of a row with two images are those that the processor makes of it."""
    processor = ARCHITECTURES[kind]()[2]
    processor.tokenizer.chat_template = processor.chat_template
    with TemporaryDirectory() as name:
        folder = Path(name)
        row = {
            "messages": [
                {"role": "user", "content": "<image>What is it, and what is <image>?"},
                {"role": "assistant", "content": "red"},
            ],
            "images": image_files(folder, _OF_ROW),
        }
        section = DataSection(media_root=folder, cache=folder / "cache")
        rules = MediaProcessor(processor, section)
        chat = encoding_of("chat")
        encoder = SampleEncoder(processor.tokenizer, section, chat, media_tokens_of(rules, section))
        ((segment,),) = (each.segments for each in encoder.encode(chat.understand(row, "", root=folder), "").samples)
    first, second = ({"type": "text", "text": text} for text in ("What is it, and what is ", "?"))
    parts = [{"type": "image"}, first, {"type": "image"}, second]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "red"}]
    text = processor.apply_chat_template(messages, tokenize=False)
    images = [image(*size, number) for number, size in enumerate(_OF_ROW)]
    expected = processor(text=[text], images=images, add_special_tokens=False)["input_ids"][0]
    return segment.input_ids.tolist() == list(expected)


def _of_layout(
    model: Any, reader: ProcessorReader, samples: list[Encoded], expected: list[torch.Tensor], layout: str
) -> str:
    """Return 'equal' or 'refused'; fail where numbers differ, and the check that a run begins with says nothing."""
    try:
        attention = choose_attention("auto", model.config, flat=layout != "padded", device="cpu", dtype=torch.float32)
        view = ViewModule(model, attention=attention, say=lambda _: None).eval()
        view.check_images(reader)
    except ModelError:
        return "refused"
    if layout == "packed":
        packs = [_batch(reader, samples[:3], flat=True), _batch(reader, samples[3:] + samples[:1], flat=True)]
        orders = [[0, 1, 2], [3, 0]]
    else:
        packs, orders = [_batch(reader, samples, flat=layout == "flat")], [[0, 1, 2, 3]]
    for batch, order in zip(packs, orders, strict=True):
        with torch.no_grad():
            logps = view(batch, {Need.TOKEN_LOGPS}).token_logps
        for place, number in enumerate(order):
            found = logps[batch.segment_ids == place][:-1]
            torch.testing.assert_close(found, expected[number], atol=1e-5, rtol=1e-5)
    return "equal"


def _batch(reader: ProcessorReader, samples: list[Encoded], *, flat: bool) -> MicroBatch:
    return reader.collated(samples, flat=flat)


def _alone(model: Any, reader: ProcessorReader, sample: Encoded) -> torch.Tensor:
    """Return the model's own log-probabilities of a sample that nothing else is with."""
    (segment,) = sample.segments
    ids = torch.tensor(segment.input_ids.tolist())[None]
    inputs = reader.of_prompts([_Held(segment.input_ids.tolist(), segment.media)])
    kinds = inputs.pop("mm_token_type_ids")
    inputs["attention_mask"] = torch.ones_like(ids)
    asked = inspect.signature(model.base_model.forward).parameters
    inputs |= {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in asked}
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **inputs).logits[0, :-1]
    return logits.float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


class _Held(list[int]):
    def __init__(self, ids: list[int], media: Any) -> None:
        super().__init__(ids)
        self.media = media


def _ids(tokenizer: Any, names: dict[str, str]) -> dict[str, int]:
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()}


def _qwen(kind: str) -> Parts:
    config, model_class = image_configuration(kind)
    return config, model_class, processor_of(kind)


def _qwen3_vl_moe() -> Parts:
    dense, _ = image_configuration("qwen3_vl")
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    text, encoder = (
        {name: value for name, value in each.to_dict().items() if name != "model_type"}
        for each in (dense.text_config, dense.vision_config)
    )
    ids = {name: getattr(dense, name) for name in ("image_token_id", "video_token_id")}
    ids |= {name: getattr(dense, name) for name in ("vision_start_token_id", "vision_end_token_id")}
    config = transformers.Qwen3VLMoeConfig(text_config={**text, **experts}, vision_config=encoder, **ids)
    return config, transformers.Qwen3VLMoeForConditionalGeneration, processor_of("qwen3_vl")


def _llava_next() -> Parts:
    tokenizer = tokenizer_with(("<image>",), {"image_token": "<image>"})
    config = transformers.LlavaNextConfig(
        text_config=QWEN_TEXT, vision_config=SIGLIP, image_grid_pinpoints=PINS, vision_feature_layer=-1, **_FULL,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 56}, crop_size=_SIDE, image_grid_pinpoints=PINS
    )
    processor = transformers.LlavaNextProcessor(
        images, tokenizer, patch_size=14, num_additional_image_tokens=0, chat_template=chat_template("<image>"), **_FULL
    )
    return config, transformers.LlavaNextForConditionalGeneration, processor


def _llava_onevision() -> Parts:
    marks = {"image_token": "<image>", "video_token": "<video>"}
    tokenizer = tokenizer_with(tuple(marks.values()), marks)
    config = transformers.LlavaOnevisionConfig(
        text_config=QWEN_TEXT, vision_config=SIGLIP, image_grid_pinpoints=PINS, vision_feature_layer=-1, **_FULL,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
    )  # fmt: skip
    images = transformers.LlavaOnevisionImageProcessorPil(size=_SIDE, image_grid_pinpoints=PINS)
    processor = without_video_processor(transformers.LlavaOnevisionProcessor)(
        images, tokenizer, num_image_tokens=16, vision_aspect_ratio="anyres_max_9",
        chat_template=chat_template("<image>"), **_FULL,
    )  # fmt: skip
    return config, transformers.LlavaOnevisionForConditionalGeneration, processor


def _internvl() -> Parts:
    marks = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = tokenizer_with(tuple(marks.values()), marks)
    encoder = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "patch_size": [14, 14], "image_size": [56, 56],
    }  # fmt: skip
    config = transformers.InternVLConfig(
        text_config=QWEN_TEXT, vision_config=encoder, image_seq_length=4, downsample_ratio=0.5,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )  # fmt: skip
    images = transformers.GotOcr2ImageProcessorPil(size=_SIDE, crop_to_patches=True, max_patches=4)
    processor = without_video_processor(transformers.InternVLProcessor)(
        images, tokenizer, image_seq_length=4, chat_template=chat_template("<IMG_CONTEXT>\n")
    )
    return config, transformers.InternVLForConditionalGeneration, processor


def _gemma3() -> Parts:
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = tokenizer_with(tuple(marks.values()), marks)
    ids = _ids(tokenizer, {name.replace("_token", "_token_index"): token for name, token in marks.items()})
    text = {
        **TEXT, "head_dim": 8, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=SIGLIP, mm_tokens_per_image=4, **ids)
    images = transformers.Gemma3ImageProcessorPil(size=_SIDE)
    processor = transformers.Gemma3Processor(
        images, tokenizer, image_seq_length=4, chat_template=chat_template("<start_of_image>")
    )
    return config, transformers.Gemma3ForConditionalGeneration, processor


def _tiled(name: str, images: Any, *further: Any) -> Parts:
    """Make an Idefics3 or a SmolVLM, which read an image in tiles; `further` is what the latter's processor needs."""
    tiles = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
    special = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<video>", *tiles)
    tokenizer = tokenizer_with(special, {"image_token": "<image>"})
    encoder = {name: value for name, value in SIGLIP.items() if name not in ("model_type", "vision_use_head")}
    config = getattr(transformers, f"{name}Config")(
        text_config={"model_type": "llama", **TEXT}, vision_config=encoder, scale_factor=2, pad_token_id=0,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    processor = getattr(transformers, f"{name}Processor")(
        images(size={"longest_edge": 112}, max_image_size={"longest_edge": 56}), tokenizer, *further,
        image_seq_len=4, chat_template=chat_template("<image>"),
    )  # fmt: skip
    return config, getattr(transformers, f"{name}ForConditionalGeneration"), processor


def _idefics3() -> Parts:
    return _tiled("Idefics3", transformers.Idefics3ImageProcessorPil)


def _smolvlm() -> Parts:
    return _tiled("SmolVLM", transformers.SmolVLMImageProcessor, transformers.SmolVLMVideoProcessor())


def _glm4v() -> Parts:
    names = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    tokenizer = tokenizer_with(tuple(names.values()), {"image_token": "<|image|>", "video_token": "<|video|>"})
    rope = {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0,
    }  # fmt: skip
    encoder = {**ENCODER, "image_size": 56}
    config = transformers.Glm4vConfig(
        text_config={**TEXT, "rope_parameters": rope}, vision_config=encoder, **_ids(tokenizer, names)
    )
    images = transformers.Glm4vImageProcessorPil(
        patch_size=14, size={"shortest_edge": 28 * 28, "longest_edge": 2 * 112 * 112}
    )
    template = chat_template("<|begin_of_image|><|image|><|end_of_image|>")
    processor = without_video_processor(transformers.Glm4vProcessor)(images, tokenizer, chat_template=template)
    return config, transformers.Glm4vForConditionalGeneration, processor


def _aya_vision() -> Parts:
    special = ("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<image>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL")
    tokenizer = tokenizer_with((*special, "<|IMG_PATCH|>"), {})
    config = transformers.AyaVisionConfig(
        text_config={"model_type": "cohere2", **TEXT, "sliding_window": 64}, vision_config=SIGLIP, downsample_factor=2,
        vision_feature_layer=-1, image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )  # fmt: skip
    images = transformers.GotOcr2ImageProcessorPil(size=_SIDE, crop_to_patches=True, max_patches=4)
    processor = transformers.AyaVisionProcessor(
        images, tokenizer, patch_size=14, img_size=56, downsample_factor=2, chat_template=chat_template("<image>")
    )
    return config, transformers.AyaVisionForConditionalGeneration, processor


def _mistral3() -> Parts:
    tokenizer = tokenizer_with(_PIXTRAL, {})
    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 8}, vision_config=_PIXTRAL_ENCODER,
        spatial_merge_size=2, vision_feature_layer=-1, image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        tie_word_embeddings=False,
    )  # fmt: skip
    return config, transformers.Mistral3ForConditionalGeneration, _processor_of_pixtral(tokenizer, spatial_merge_size=2)


def _pixtral() -> Parts:
    """Make the LLaVA with Pixtral's encoder and processor, as Pixtral-12B is released for transformers."""
    tokenizer = tokenizer_with(_PIXTRAL, {})
    config = transformers.LlavaConfig(
        text_config={"model_type": "mistral", **TEXT, "head_dim": 8}, vision_config=_PIXTRAL_ENCODER,
        vision_feature_layer=-1, image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"), **_FULL,
    )  # fmt: skip
    return config, transformers.LlavaForConditionalGeneration, _processor_of_pixtral(tokenizer)


def _processor_of_pixtral(tokenizer: Any, **sizes: int) -> Any:
    images = transformers.PixtralImageProcessor(patch_size=14, size={"longest_edge": 112})
    return transformers.PixtralProcessor(
        images, tokenizer, patch_size=14, chat_template=chat_template("[IMG]"), **sizes
    )


ARCHITECTURES: dict[str, Callable[[], Parts]] = {
    "llava": lambda: _qwen("llava"),
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "qwen2_vl": lambda: _qwen("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen("qwen2_5_vl"),
    "qwen3_vl": lambda: _qwen("qwen3_vl"),
    "qwen3_vl_moe": _qwen3_vl_moe,
    "qwen3_5": lambda: _qwen("qwen3_5"),
    "glm4v": _glm4v,
    "internvl": _internvl,
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "aya_vision": _aya_vision,
    OMNI: lambda: _qwen(OMNI),
    "mistral3": _mistral3,
    "pixtral": _pixtral,
    "smolvlm": _smolvlm,
}
NEED_TORCHVISION = ("mistral3", "pixtral", "smolvlm")
"""Those whose processors are made with torchvision alone."""


def architecture_model(folder: Path, kind: str) -> Path:
    """Write a model of one of them."""
    model, processor = _made(kind)
    model.save_pretrained(folder)
    processor.tokenizer.chat_template = processor.chat_template
    processor.save_pretrained(folder)
    return folder


def _made(kind: str) -> tuple[Any, Any]:
    config, model_class, processor = ARCHITECTURES[kind]()
    return with_telling_weights(model_class, config), processor
