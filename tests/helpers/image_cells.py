"""Two training steps on rows with images on every engine, compared with plain transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from plain_torch import PlainTrainer
from tiny_image_types import refused_type, write_tiny_image
from tiny_images import image_files
from transformers import AutoModelForImageTextToText
from type_cells import EPS, LORA, RATE, ROWS, STEPS, Cell, Subject, Verdict, plain

SIZES = [(64, 64), (96, 64), (64, 128), (90, 61)]
HELD: list[list[int]] = [[0], [1, 2], [], [3], [], [2], [0], []]
"""The images of each row: some have one, one has two, and some have none."""
CELLS = (
    Cell("padded", {"export.to": "hf", "export.verify": "none"}),
    Cell("padding-free", {"data.padding_free": True}),
    Cell("packed", {"data.packing": True, "data.max_length": 800, "train.micro_batch": 1}),
    Cell("LoRA", {**LORA, "checkpoint.save_last": True}),
    Cell("FSDP2", {}, 2, "fsdp"),
)
ONE_ROW = "--train.micro_batch 1"
"""What a refusal ends with where rows in one micro-batch would change each other."""
SEEN = 1e-3
"""By how much a log-probability of a tiny model has to depend on images."""
WHOLE = {"tuner.freeze_vit": False, "tuner.freeze_aligner": False}


class ImageSubject(Subject):
    """A tiny model that reads images in a folder, and the numbers that it should train with."""

    cells = CELLS

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.model = folder / "model"
        self.processor = write_tiny_image(name, self.model)
        image_files(folder, SIZES)
        self._requested = frozenset(inspect.signature(self.load(self.model).base_model.forward).parameters)
        self.rows = [_with_images(row, held) for row, held in zip(ROWS, HELD, strict=True)]
        self.expected = plain(self)
        assert self.change_by_images() > SEEN, "what it says does not depend on images"

    @classmethod
    def refusal(cls, name: str) -> Verdict | None:
        """Return what is refused by the configuration alone."""
        sentence = refused_type(name)
        return Verdict("refused", sentence) if sentence else None

    def settings(self, cell: Cell) -> dict[str, Any]:
        paths = {"data.media_root": str(self.folder), "data.cache": str(self.folder / "cache")}
        return paths if cell.name == "LoRA" else {**paths, **WHOLE}

    def run(self, cell: Cell) -> Verdict:
        """Train and compare, with one row in a micro-batch where more are refused for what they would change."""
        found = super().run(cell)
        if found.result != "refused" or not found.note.endswith(ONE_ROW):
            return found
        alone = super().run(replace(cell, settings={**cell.settings, "train.micro_batch": 1}))
        return replace(alone, note=f"{alone.note} {ONE_ROW}".strip())

    def load(self, folder: Path) -> Any:
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)

    def trained(self, module: Any) -> tuple[list[float], list[float]]:
        """Train plainly on one sample after the other; return losses and gradient norms."""
        for each in module.modules():
            if isinstance(each, torch.nn.modules.batchnorm._BatchNorm):
                each.eval()  # its statistics would be those of one sample
        trainer = PlainTrainer(module, steps=STEPS, warmup=0, lr=RATE, eps=EPS)
        samples = [self.sample(number) for number in range(len(ROWS))]
        weight = sum(len(learned) for _, learned in samples)
        losses, norms = [], []
        for _ in range(STEPS):
            trainer.begin()
            losses.append(sum(trainer.add(-_logp(module, *sample) / weight) for sample in samples))
            norms.append(trainer.update())
        return losses, norms

    def sample(self, number: int, change: Callable[[Any], Any] | None = None) -> tuple[dict[str, Any], range]:
        """Return what the processor makes of a row, called as a user would, and where the tokens are to be learned.

        `change` makes other images of those of the row.
        """
        question, answer = (message["content"] for message in ROWS[number]["messages"])
        processor = self.processor
        parts = [*({"type": "image"} for _ in HELD[number]), {"type": "text", "text": question}]
        messages = [{"role": "user", "content": parts}]
        prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [Image.open(self.folder / f"{each}.png") for each in HELD[number]]
        images = images if change is None else [*map(change, images)]
        given = {"text": [f"{prompt}{answer}<|im_end|>\n"], "return_tensors": "pt", "add_special_tokens": False}
        if images:
            more = {"return_mm_token_type_ids": True} if "mm_token_type_ids" in self._requested else {}
            inputs = processor(images=images, **given, **more).to(torch.float32)
        else:
            read = processor.tokenizer(**given)
            inputs = {name: value for name, value in read.items() if name in self._requested}
        learned = processor.tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
        end = int((inputs["input_ids"][0] == learned[-1]).nonzero()[-1]) + 1
        return dict(inputs), range(end - len(learned), end)

    @torch.no_grad()
    def change_by_images(self) -> float:
        """Return how much a log-probability of the row with two images changes where these are negatives."""
        module = self.load(self.model)
        as_is, inverted = (_logps(module, *self.sample(1, change)).double() for change in (None, ImageOps.invert))
        return float((as_is - inverted).abs().max())

    @torch.no_grad()
    def probe(self, folder: Path) -> torch.Tensor:
        """Return the logits of a row with two images."""
        logits: torch.Tensor = self.load(folder)(**self.sample(1)[0], use_cache=False).logits
        return logits.float()


def _with_images(row: dict[str, Any], held: list[int]) -> dict[str, Any]:
    question, *rest = row["messages"]
    question = {**question, "content": "<image>" * len(held) + question["content"]}
    return {"messages": [question, *rest], "images": [f"{each}.png" for each in held]}


def _logp(module: Any, inputs: dict[str, Any], learned: range) -> torch.Tensor:
    """Return the log-probability of the tokens that are learned."""
    return _logps(module, inputs, learned).sum()


def _logps(module: Any, inputs: dict[str, Any], learned: range) -> torch.Tensor:
    """Return the log-probability of each token that is learned."""
    logps = module(**inputs, use_cache=False).logits[0].float().log_softmax(-1)
    targets = inputs["input_ids"][0, learned.start : learned.stop, None]
    found: torch.Tensor = logps[learned.start - 1 : learned.stop - 1].gather(-1, targets)
    return found
