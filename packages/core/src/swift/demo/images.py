"""The demo's task for models that read images: a number is drawn, and read aloud digit by digit.

Digits are drawn from a table of dots: fonts differ from one version of Pillow to the next.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.demo.task import answer, split_numbers
from swift.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 28
"""Pixels of a side of one digit's place, which is one token of the demo's model."""
SCALE = 3
"""Pixels of a side of one dot."""
QUESTION = "<image>Read it."
_DOTS = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}


def drawn(number: int, rng: random.Random) -> Image:
    """Return an image of a number: dark digits on a light ground or the other way round, each a little displaced."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ModelError(
            "Images need the package Pillow, which is not installed.", hint='Type: pip install "swift-core[vision]"'
        ) from error
    low, high = _colour(rng, 0, 90), _colour(rng, 165, 255)
    ink, ground = low, high
    image = Image.new("RGB", (CELL * len(str(number)), CELL), ground)
    pen = ImageDraw.Draw(image)
    for place, digit in enumerate(str(number)):
        rows = _DOTS[digit].split()
        left = place * CELL + rng.randint(5, 8)
        top = rng.randint(2, 5)
        for y, row in enumerate(rows):
            for x, dot in enumerate(row):
                if dot == "1":
                    corner = (left + SCALE * x, top + SCALE * y)
                    pen.rectangle((*corner, corner[0] + SCALE - 1, corner[1] + SCALE - 1), fill=ink)
    return image


def write_image_rows(
    folder: Path, *, drawings: int, held_out: int = 100, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw all numbers of three digits into `folder`; return rows to learn from and rows that are never learned from.

    Of a number to learn from there are as many drawings as `drawings` says, of the others one each.
    """
    rng = random.Random(seed)
    learned, asked = split_numbers(held_out=held_out, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(folder, number, index, rng) for index in range(drawings) for number in learned]
    return rows, [_row(folder, number, 0, rng) for number in asked]


def shuffled(rows: Sequence[dict[str, Any]], *, seed: int = 0) -> list[dict[str, Any]]:
    """Return the same rows, each with the image of another one: nothing but the image says the answer."""
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    places = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [{**row, "images": rows[places[index]]["images"]} for index, row in enumerate(rows)]


def write_lines(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as lines of JSON; return the file."""
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def _row(folder: Path, number: int, index: int, rng: random.Random) -> dict[str, Any]:
    name = f"{number}-{index}.png"
    drawn(number, rng).save(folder / name)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer(number)}]
    return {"messages": messages, "images": [f"{folder.name}/{name}"]}


def _colour(rng: random.Random, low: int, high: int) -> tuple[int, int, int]:
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)
