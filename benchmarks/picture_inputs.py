"""What runs about pictures train: Qwen2-VL of random weights, small, and questions about photographs with answers.

python -m benchmarks.picture_inputs        writes the models, in a process of its own
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.inputs import LONGEST, ROOT, WORK

MODEL = WORK / "model-sees"
WIDE = WORK / "model-sees-wide"
"""The same with as many tokens as Qwen's vocabulary has, for memory: what a tokenizer of bytes leaves is never said."""
TINY = WORK / "model-sees-tiny"
"""For many steps."""
FOLDER = WORK / "photographs"
SIZES = ((224, 224), (448, 448), (640, 480), (768, 512))
"""Of photographs: 64 to 486 tokens."""
FILES = 32
VOCABULARY, WIDE_VOCABULARY = 8_192, 151_936


def ensure() -> None:
    """Make models and photographs if they aren't there."""
    if all((each / "config.json").exists() for each in (MODEL, WIDE, TINY)) and FOLDER.exists():
        return
    subprocess.run([sys.executable, "-m", "benchmarks.picture_inputs"], check=True)


def rows(count: int, *, texts: float = 0.0, tiny: bool = False) -> Path:
    """Write so many questions, of which a part is about no picture; answers have the lengths of short ones."""
    source = random.Random(0)
    path = FOLDER / f"rows-{count}-{texts}-{tiny}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = [source.choice(("red", "green", "blue", "a", "the", "cloud")) for _ in range(source.randint(1, 12))]
            seen = source.random() >= texts
            row: dict[str, Any] = {
                "messages": [
                    {"role": "user", "content": f"{'<image>' * seen}What is number {number}?"},
                    {"role": "assistant", "content": " ".join(words)},
                ]
            }
            if seen:
                row["images"] = [f"tiny-{number % FILES}.png" if tiny else f"{source.randrange(FILES)}.jpg"]
            file.write(json.dumps(row) + "\n")
    return path


def make() -> None:
    """Write models, and JPEGs of smooth noise, which compress as photographs do."""
    import numpy as np
    import torch
    from PIL import Image
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from tiny_pictures import picture_configuration, picture_model, processor_of

    FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        noise = np.random.RandomState(number).randint(0, 255, (48, 64, 3), dtype=np.uint8)
        photograph = Image.fromarray(noise).resize(SIZES[number % len(SIZES)], Image.Resampling.BICUBIC)
        photograph.save(FOLDER / f"{number}.jpg", quality=90)
        Image.fromarray(noise).resize((56, 56)).save(FOLDER / f"tiny-{number}.png")
    processor = processor_of("qwen2_vl")
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    tiny, _ = picture_configuration("qwen2_vl")
    ids = {name: getattr(tiny, name) for name in ("image_token_id", "video_token_id")}
    ids |= {name: getattr(tiny, name) for name in ("vision_start_token_id", "vision_end_token_id")}
    for folder, vocabulary in ((MODEL, VOCABULARY), (WIDE, WIDE_VOCABULARY)):
        text = {
            "model_type": "qwen2_vl_text", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocabulary,
            "max_position_embeddings": LONGEST, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
        }  # fmt: skip
        tower = {"depth": 4, "embed_dim": 128, "hidden_size": 256, "num_heads": 4, "mlp_ratio": 4, "patch_size": 14}
        torch.manual_seed(0)
        config = Qwen2VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=True, **ids)
        Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
        processor.save_pretrained(folder)
    picture_model(TINY, "qwen2_vl")


def order(data: Path, model: Path, batch: int, learning_rate: float) -> str:
    """Return what the loop by hand is told, as JSON."""
    return json.dumps({"data": str(data), "model": str(model), "rows": batch, "learning_rate": learning_rate})


if __name__ == "__main__":
    make()
