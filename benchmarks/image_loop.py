"""A hand-written training loop on images: a DataLoader, the processor in its collate function, labels, AdamW.

    python -m benchmarks.image_loop ORDER.json

Reads a line before each step, and prints its loss, tokens, images and CPU seconds after it. CPU seconds include the
decoding processes, also during steps of the other side. Vision encoder and aligner are frozen, as usual.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, Qwen2VLProcessor

from benchmarks.facts import peak_memory_mib, read_lines
from benchmarks.peer import Turn, read_order

NO_TARGET = -100
WORKERS = 2
"""Processes that decode: as many as swift has threads for it."""


class Images(Qwen2VLProcessor):
    """The processor without its part for videos, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        super().__init__(image_processor=image_processor, tokenizer=tokenizer, chat_template=chat_template)


class Collate:
    """Turns rows of the data file into a batch: images decoded, texts padded, labels of the responses alone."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._made: Any = None

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        processor = self.processor
        prompts, images = [], []
        for row in rows:
            question, response = row["messages"]
            part = {"type": "text", "text": question["content"].removeprefix("<image>")}
            held = row.get("images", [])
            parts = [*({"type": "image"} for _ in held), part]
            prompts.append(processor.apply_chat_template([{**question, "content": parts}, response], tokenize=False))
            for name in held:
                with Image.open(self._folder / name) as image:
                    images.append(image.convert("RGB"))
        made = dict(processor(text=prompts, images=images or None, padding=True, return_tensors="pt"))
        labels = torch.full_like(made["input_ids"], NO_TARGET)
        for number, row in enumerate(rows):
            response = processor.tokenizer(row["messages"][1]["content"])["input_ids"]
            end = int(made["attention_mask"][number].sum()) - 1  # the line break after what ends the response
            begin = end - len(response) - 1
            labels[number, begin:end] = made["input_ids"][number, begin:end]
        return {**made, "labels": labels}

    @property
    def processor(self) -> Any:
        """Of this process: it is made when it is first asked for."""
        if self._made is None:
            self._made = Images.from_pretrained(self._model)
        return self._made


class ImageLoop:
    """A model, its optimizer, and the batches of a data file in order."""

    def __init__(self, order: dict[str, Any]) -> None:
        data = Path(order["data"])
        rows = read_lines(data)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(order["model"], dtype=torch.float32)
        self.model.model.visual.requires_grad_(False)
        self.model.train()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=order["learning_rate"], betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        loader = torch.utils.data.DataLoader(
            rows,  # type: ignore[arg-type]  # a list is enough of a data set
            batch_size=order["rows"],
            num_workers=WORKERS,
            collate_fn=Collate(order["model"], data.parent),
            multiprocessing_context="fork",
        )
        self._batches: Iterator[dict[str, torch.Tensor]] = iter(loader)

    def step(self) -> dict[str, float]:
        """Train on the next batch; returns what there was in it, and its loss."""
        began = time.perf_counter()
        batch = next(self._batches)
        waited = time.perf_counter() - began
        loss = self.model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([each for each in self.model.parameters() if each.requires_grad], 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        images = len(batch.get("image_grid_thw", ()))
        return {"loss": loss.item(), "tokens": int(batch["attention_mask"].sum()), "images": images, "waited": waited}

    def cpu(self) -> float:
        """Return the CPU seconds of this process and of those that decode for it."""
        ticks = 0
        for worker in self._batches._workers:  # type: ignore[attr-defined]  # there is no other way to them
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / 100


def main() -> None:
    order = read_order()
    turn = Turn()
    loop = ImageLoop(order)
    before = loop.cpu()
    turn.end({"ready": True})
    while True:
        made = loop.step()
        now = loop.cpu()
        turn.end({**made, "cpu": now - before, "peak_mib": peak_memory_mib()})
        before = now


if __name__ == "__main__":
    main()
