"""The demo's task for vision models: read the digits of a number in an image.

Digits are rendered from a table of dots, as fonts differ between versions of Pillow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift_demo.task import conversation, split_numbers

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 28
"""Width and height of one digit's cell in pixels; it is one token of the demo's model."""
SCALE = 3
"""Width and height of one dot in pixels."""
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


def render_number(number: int, rng: random.Random) -> Image:
    """Return an image of a number in random colours, with each digit a little displaced."""
    from PIL import Image, ImageDraw

    ink, ground = _colour(rng, 0, 90), _colour(rng, 165, 255)
    image = Image.new("RGB", (CELL * len(str(number)), CELL), ground)
    pen = ImageDraw.Draw(image)
    for position, digit in enumerate(str(number)):
        left = position * CELL + rng.randint(5, 8)
        top = rng.randint(2, 5)
        for y, row in enumerate(_DOTS[digit].split()):
            for x, dot in enumerate(row):
                if dot == "1":
                    corner = (left + SCALE * x, top + SCALE * y)
                    pen.rectangle((*corner, corner[0] + SCALE - 1, corner[1] + SCALE - 1), fill=ink)
    return image


def write_image_rows(folder: Path, *, variants: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write images of all three-digit numbers to `folder`; return training rows and held-out rows.

    Each training number has `variants` images, each held-out number has one.
    """
    rng = random.Random(0)
    trained, unseen = split_numbers()
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(folder, number, index, rng) for index in range(variants) for number in trained]
    return rows, [_row(folder, number, 0, rng) for number in unseen]


def shuffled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the same rows, each with the image of another row, so that images and completions do not match."""
    order = random.Random(0).sample(range(len(rows)), len(rows))
    others = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [{**row, "images": rows[others[index]]["images"]} for index, row in enumerate(rows)]


def _row(folder: Path, number: int, index: int, rng: random.Random) -> dict[str, Any]:
    name = f"{number}-{index}.png"
    render_number(number, rng).save(folder / name)
    return {"messages": conversation(QUESTION, number), "images": [f"{folder.name}/{name}"]}


def _colour(rng: random.Random, low: int, high: int) -> tuple[int, int, int]:
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)
