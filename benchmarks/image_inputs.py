"""Inputs of the benchmarks on images: a small Qwen2-VL with random weights, and questions about photographs.

python -m benchmarks.image_inputs        writes the models, in a separate process
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.inputs import LONGEST, ROOT, WORK

MODEL = WORK / "model-sees"
WIDE = WORK / "model-sees-wide"
"""The same with as many tokens as Qwen's vocabulary has, for memory: most of them are in no text."""
FOLDER = WORK / "photographs"
SIZES = ((224, 224), (448, 448), (640, 480), (768, 512))
"""Of photographs: 64 to 486 tokens."""
FILES = 32
VOCABULARY, WIDE_VOCABULARY = 8_192, 151_936


def ensure() -> None:
    """Make models and photographs if they aren't there."""
    if not all(path.exists() for path in (MODEL / "config.json", WIDE / "config.json", FOLDER)):
        subprocess.run([sys.executable, "-m", "benchmarks.image_inputs"], check=True)


def rows(count: int) -> Path:
    """Write so many questions about a photograph each, with short responses."""
    source = random.Random(0)
    path = FOLDER / f"rows-{count}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = [source.choice(("red", "green", "blue", "a", "the", "cloud")) for _ in range(source.randint(1, 12))]
            file.write(row(number, " ".join(words), f"{source.randrange(FILES)}.jpg"))
    return path


def row(number: int, response: str, image: str) -> str:
    question = {"role": "user", "content": f"<image>What is number {number}?"}
    messages = [question, {"role": "assistant", "content": response}]
    return json.dumps({"messages": messages, "images": [image]}) + "\n"


def write_photographs(folder: Path, sizes: Sequence[tuple[int, int]], count: int) -> None:
    """Write JPEGs of smooth noise, which compress as photographs do, of each size as many."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.RandomState(number).randint(0, 255, (48, 64, 3), dtype=np.uint8)
        photograph = Image.fromarray(pixels).resize(sizes[number % len(sizes)], Image.Resampling.BICUBIC)
        photograph.save(folder / f"{number}.jpg", quality=90)


def processor() -> Any:
    """Return the processor of the tests' Qwen2-VL, with a limit of pixels that 1024×768 stays under."""
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from tiny_images import processor_of

    made = processor_of("qwen2_vl")
    made.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    return made


def make() -> None:
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    write_photographs(FOLDER, SIZES, FILES)
    own = processor()
    from tiny_images import image_configuration

    tiny, _ = image_configuration("qwen2_vl")
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(tiny, name) for name in names}
    for folder, vocabulary in ((MODEL, VOCABULARY), (WIDE, WIDE_VOCABULARY)):
        text = {
            "model_type": "qwen2_vl_text", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocabulary,
            "max_position_embeddings": LONGEST, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
        }  # fmt: skip
        vision = {"depth": 4, "embed_dim": 128, "hidden_size": 256, "num_heads": 4, "mlp_ratio": 4, "patch_size": 14}
        torch.manual_seed(0)
        config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
        own.save_pretrained(folder)


if __name__ == "__main__":
    make()
