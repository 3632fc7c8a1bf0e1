"""Subjects of the kit: tiny models, and samples of very different lengths. Everything is made from seeds."""

from __future__ import annotations

import atexit
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from swift.models import is_encoder
from swift_testing.images import build_seeing, processor_of, random_images, reads_images
from swift_testing.tokenizer import byte_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.05,
    "tie_word_embeddings": False,
    "pad_token_id": 258,
}
"""Of a Qwen3; the keys that other architectures share mean the same there. The padding token is the one that ends
sequences, as in most fine-tuned models, so that inputs and targets hold the row without a gradient (`padding_idx`)."""
_SHOWN = 2
"""Frames of a video."""

Row = dict[str, Any]


def write_model(folder: Path, *, seed: int = 0, architecture: str = "Qwen3", **changes: Any) -> Path:
    """Return a model of `architecture` as transformers names it, and its tokenizer; norms and biases matter."""
    shape = {**SHAPE, **changes}
    torch.manual_seed(seed)
    model: Any = build_seeing(architecture, shape) if reads_images(architecture) else _build(architecture, shape)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        embeddings = model.get_input_embeddings()
        if embeddings.padding_idx is not None:
            embeddings.weight[embeddings.padding_idx].copy_(embeddings.weight[0].flip(0))  # new models have zeros there
    model.save_pretrained(folder)
    made = processor_of(architecture) if reads_images(architecture) else byte_tokenizer()
    tokenizer = getattr(made, "tokenizer", made)
    tokenizer.pad_token = tokenizer.eos_token
    made.save_pretrained(folder)
    return folder


def _build(architecture: str, shape: Mapping[str, Any]) -> torch.nn.Module:
    import transformers

    config = getattr(transformers, f"{architecture}Config")(**shape)
    kind = transformers.AutoModel if is_encoder(config) else transformers.AutoModelForCausalLM
    model: torch.nn.Module = kind.from_config(config)
    return model


@dataclass(frozen=True)
class Subject:
    """Which tiny model is trained."""

    architecture: str = "Qwen3"
    """As transformers names it."""
    blocks: int = 2
    changes: tuple[tuple[str, Any], ...] = ()
    """Other keys of its configuration."""
    seed: int = 0
    """Of its weights."""


@cache
def shared_model(subject: Subject, *, tied: bool) -> Path:
    """Return the tiny model of this session, made once: the reference's numbers for it are kept as well."""
    folder = Path(mkdtemp(prefix="swift-testing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_model(
        folder / ("tied" if tied else "untied"),
        seed=subject.seed,
        architecture=subject.architecture,
        tie_word_embeddings=tied,
        num_hidden_layers=subject.blocks,
        **dict(subject.changes),
    )


def conversations(count: int, seed: int = 0, *, lengths: Sequence[int] = range(1, 41)) -> list[Row]:
    """Return questions and responses: a number behind as many letters as one of `lengths`."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        number = generator.randint(100, 999)
        response = "".join(generator.choices("abcdefgh", k=generator.choice(lengths))) + str(number)
        rows.append({"messages": [_message("user", f"Write {number}"), _message("assistant", response)]})
    return rows


def with_images(beginnings: Sequence[str], seed: int = 0, *, lengths: Sequence[int] = range(1, 41)) -> list[Row]:
    """Return questions and responses: before each question the tags of `beginnings`, and images and videos for them."""
    images = random_images(seed)
    rows = []
    for row, tags in zip(conversations(len(beginnings), seed, lengths=lengths), beginnings, strict=True):
        question, response = row["messages"]
        rows.append(
            {
                "messages": [_message("user", tags + question["content"]), response],
                "images": [next(images) for _ in range(tags.count("<image>"))],
                "videos": [[next(images) for _ in range(_SHOWN)] for _ in range(tags.count("<video>"))],
            }
        )
    return rows


def pairs(count: int, seed: int = 0, *, lengths: Sequence[int] = range(1, 41)) -> list[Row]:
    """Return a chosen and a rejected response to each question."""
    rows = []
    for row in conversations(count, seed, lengths=lengths):
        question, response = (message["content"] for message in row["messages"])
        rows.append({"query": question, "response": response[::-1], "rejected_response": response.upper() + "!"})
    return rows


def verdicts(count: int, seed: int = 0) -> list[Row]:
    """Return responses marked good and bad in turn."""
    return [
        {"query": row["query"], "response": row["response"], "label": index % 3 != 0}
        for index, row in enumerate(pairs(count, seed))
    ]


def marked_steps(count: int, seed: int = 0) -> list[Row]:
    """Return questions with responses in one to four steps, each of which is marked right or wrong."""
    generator = random.Random(seed)
    rows = []
    for index in range(count):
        steps = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 20))) for _ in range(1 + index % 4)]
        rows.append({"prompt": f"Write {index}", "completions": steps, "labels": [len(step) < 10 for step in steps]})
    return rows


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    """Return one JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
