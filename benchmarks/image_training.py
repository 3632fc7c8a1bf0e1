"""Compare training on images with a hand-written loop: speed, memory and packing.

The loop uses torch and transformers: a DataLoader with as many decoding processes as swift has threads, the processor
in its collate function, labels, `model(**batch)`. Both alternate step by step on the same rows, train the language
model, and freeze vision encoder and aligner. Figures are CPU seconds of all threads and processes, which do not depend
on other load.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import image_inputs
from benchmarks.alternation import WARM_UP, Turn, loss_difference, ratios, speed, turns
from benchmarks.commands import LEARNING_RATE, TRAINING
from benchmarks.facts import Figure
from benchmarks.image_inputs import MODEL, WIDE
from benchmarks.peer import ONE_THREAD, ORDER

BATCH = 4
PACK = 2_000
"""Tokens of a pack: not more than the longest of padded batches."""
IN_ORDER = ("--data.shuffle", "false", "--max_length", str(PACK), "--logging_steps", "1")
PADDED = (*IN_ORDER, "--per_device_train_batch_size", str(BATCH))
PACKED = (*IN_ORDER, "--per_device_train_batch_size", "1", "--packing", "true")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    image_inputs.ensure()
    steps = 15 if quick else 35
    padded = _in_turns("images-padded", MODEL, steps, PADDED)
    packed = _in_turns("images-packed", MODEL, steps, PACKED)
    wide = _in_turns("images-memory", WIDE, 3, PADDED)
    peaks = {who: max(turn[who]["peak_mib"] for turn in wide) for who in ("swift", "other")}
    both = (padded, packed)
    tokens = [speed(run[WARM_UP:], "swift", "cpu") for run in both]
    images = [median(ratios(run, "cpu", "images")) for run in both]
    figures = [
        Figure("padded: images per CPU second over the loop's", images[0], at_least=1.0),
        Figure("padded: tokens per CPU second over the loop's", median(ratios(padded, "cpu")), at_least=1.0),
        Figure("padded: largest relative difference of the loss", loss_difference(padded), unit="", at_most=1e-5),
        Figure("packed: images per CPU second over the padded loop's", images[1]),
        Figure("packed: tokens per CPU second over padded, both swift's", tokens[1] / tokens[0]),
        Figure("a vocabulary of 151,936: peak memory over the loop's", peaks["swift"] / peaks["other"], at_most=1.0),
    ]
    details = {
        "arguments": {"both": TRAINING, "padded": PADDED, "packed": PACKED},
        "sizes": image_inputs.SIZES,
        "steps": steps,
        "images_per_cpu_second": {
            f"{who}, {name}": speed(run[WARM_UP:], who, "cpu", "images")
            for name, run in zip(("padded", "packed"), both, strict=True)
            for who in ("swift", "other")
        },
        "peak_mib": peaks,
        "notes": [
            f"All in one thread, and two that decode. {os.getloadavg()[0]:.0f} processes wanted to run at the end.",
            "Images of 224×224 to 768×512, 64 to 486 tokens, responses of 1 to 12 words.",
        ],
    }
    return figures, details


def _in_turns(name: str, model: Path, steps: int, arguments: tuple[str, ...]) -> list[Turn]:
    """Return steps of swift and of the loop by hand, which has rows to go on with when the last one ends."""
    data = image_inputs.rows(BATCH * (2 * steps + 10))
    order = {"module": "benchmarks.image_loop", "python": sys.executable, "data": str(data), "model": str(model)}
    order |= {"rows": BATCH, "learning_rate": LEARNING_RATE}
    variables = {ORDER: json.dumps(order), **ONE_THREAD}
    made = turns(name, steps, *arguments, observer="peer-in-turn", model=model, data=data, variables=variables)
    print(f"  {name}: done", flush=True)
    return made
