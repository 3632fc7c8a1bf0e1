"""Rows with images as transformers' own processor reads them, one at a time: what the reference is given."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from swift.testing.reference import Sample
from swift.testing.seeing import processor_in


def seen_of(model: Path, rows: Sequence[dict[str, Any]]) -> tuple[list[Sample], list[Mapping[str, torch.Tensor]]]:
    """Return rows of messages with images and videos as the model's processor reads each of them alone.

    That is its tokens, and what else the model is given. A video is its images, one after another.
    """
    processor = processor_in(model)
    samples: list[Sample] = []
    seen: list[Mapping[str, torch.Tensor]] = []
    for row in rows:
        question, answer = (message["content"] for message in row["messages"])
        shown = _shown(row)
        tags = re.findall("<image>|<video>", question)
        images = [next(shown[tag]) for tag in tags]
        for tag, held in zip(tags, images, strict=True):
            question = question.replace(tag, len(held) * "<|vision_start|><|image_pad|><|vision_end|>", 1)
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>"
        inputs = dict(
            processor(text=[text], images=[each for held in images for each in held] or None, return_tensors="pt")
        )
        ids, learned = inputs.pop("input_ids")[0].tolist(), len(processor.tokenizer(f"{answer}<|im_end|>").input_ids)
        samples.append(((ids[:-learned], ids[-learned:]),))
        seen.append(inputs)
    return samples, seen


def _shown(row: dict[str, Any]) -> dict[str, Iterator[list[Any]]]:
    """Return what stands for each tag of a row, in order: one image, or the images of a video."""
    from PIL import Image

    def opened(uri: str) -> Any:
        return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")

    return {
        "<image>": iter([[opened(each)] for each in row["images"]]),
        "<video>": iter([[opened(each) for each in video] for video in row["videos"]]),
    }
