"""Random images, and tiny vision-language models of Qwen's kinds; neither needs torchvision."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift_testing.tokenizer import VISION_CHAT_TEMPLATE, VISION_TOKENS, byte_tokenizer

if TYPE_CHECKING:
    import torch

    from swift_testing.reference import Sample

SEEING = "Qwen2_5_VL"
"""The default architecture that is trained on images."""
CELL = 28
"""Pixels of a side of what becomes one token."""
SIZES = ((2 * CELL, CELL), (3 * CELL, 2 * CELL), (CELL, CELL))
"""Of images, one after another. The second is larger than a window of Qwen2.5-VL's vision encoder."""
PARTS: Mapping[str, tuple[bool, tuple[str, ...]]] = {
    "freeze_vit": (True, ("*visual.patch_embed.*", "*visual.pos_embed.*", "*visual.blocks.*")),
    "freeze_aligner": (True, ("*visual.merger.*", "*visual.deepstack_merger_list.*")),
    "freeze_llm": (False, ("*language_model.*", "*lm_head.*")),
}
"""Flag of the tuner → its default, and patterns of names in transformers of what it freezes."""
_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": CELL // 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen2_5_VL": ({}, {"window_size": 2 * CELL, "fullatt_block_indexes": [1]}),
    "Qwen3VL": ({"mrope_interleaved": True}, {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}),
}
"""Architecture, as transformers names it → what its positions and its vision encoder have besides."""


def reads_images(architecture: str) -> bool:
    """Return whether an architecture is one of those with a vision encoder."""
    return architecture in _OWN


def build_seeing(architecture: str, shape: Mapping[str, Any]) -> torch.nn.Module:
    """Return a model with a vision encoder, of random weights; `shape` is that of its language model."""
    import transformers

    positions, vision = _OWN[architecture]
    tokenizer = byte_tokenizer(VISION_TOKENS)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], **positions}
    spread = {"initializer_range": 0.08}  # with less, it hardly matters to a token where an image is
    own = {"rope_parameters": rope, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, **spread}
    config = getattr(transformers, f"{architecture}Config")(
        text_config={**shape, "vocab_size": shape["vocab_size"] + len(VISION_TOKENS), **own},
        vision_config={**_VISION, **vision, "out_hidden_size": shape["hidden_size"], **spread},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
        tie_word_embeddings=shape["tie_word_embeddings"],
    )
    model: torch.nn.Module = transformers.AutoModelForImageTextToText.from_config(config)
    return model


def processor_of(architecture: str) -> Any:
    """Return the processor of an architecture as users of transformers make it, but for its part for videos."""
    import transformers

    from swift.models import without_video_processor

    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=CELL // 2, merge_size=2, size={"shortest_edge": CELL * CELL, "longest_edge": 64 * CELL * CELL}
    )
    made = without_video_processor(getattr(transformers, f"{architecture}Processor"))
    return made(images, byte_tokenizer(VISION_TOKENS, VISION_CHAT_TEMPLATE), chat_template=VISION_CHAT_TEMPLATE)


def processor_in(folder: Path) -> Any:
    """Return the processor of a model that the kit has written."""
    written = json.loads((folder / "config.json").read_text())["architectures"][0]
    return processor_of(next(each for each in _OWN if written.startswith(each)))


def random_images(seed: int) -> Iterator[str]:
    """Yield images that differ in size and in every pixel, as data URIs of PNG."""
    rng = np.random.RandomState(seed)
    while True:
        for width, height in SIZES:
            content = _png(rng.randint(0, 256, (height, width, 3), dtype=np.uint8))
            yield f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _png(pixels: np.ndarray) -> bytes:
    """Return an image as a file, written by hand: rows can be made where Pillow is not installed."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")


def seen_of(model: Path, rows: Sequence[dict[str, Any]]) -> tuple[list[Sample], list[Mapping[str, torch.Tensor]]]:
    """Return rows of messages with images and videos as the model's processor reads each of them alone.

    That is its tokens, and what else the model is given. A video is its frames, one after another.
    """
    processor = processor_in(model)
    samples: list[Sample] = []
    seen: list[Mapping[str, torch.Tensor]] = []
    for row in rows:
        question, response = (message["content"] for message in row["messages"])
        shown = _shown(row)
        tags = re.findall("<image>|<video>", question)
        images = [next(shown[tag]) for tag in tags]
        for tag, held in zip(tags, images, strict=True):
            question = question.replace(tag, len(held) * "<|vision_start|><|image_pad|><|vision_end|>", 1)
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{response}<|im_end|>"
        inputs = dict(
            processor(text=[text], images=[each for held in images for each in held] or None, return_tensors="pt")
        )
        ids, learned = inputs.pop("input_ids")[0].tolist(), len(processor.tokenizer(f"{response}<|im_end|>").input_ids)
        samples.append(((ids[:-learned], ids[-learned:]),))
        seen.append(inputs)
    return samples, seen


def _shown(row: dict[str, Any]) -> dict[str, Iterator[list[Any]]]:
    """Return what stands for each tag of a row, in order: one image, or the frames of a video."""
    from PIL import Image

    def opened(uri: str) -> Any:
        return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")

    return {
        "<image>": iter([[opened(each)] for each in row["images"]]),
        "<video>": iter([[opened(each) for each in video] for video in row["videos"]]),
    }
