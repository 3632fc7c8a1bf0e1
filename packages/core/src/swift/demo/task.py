"""The demo's task: read a number aloud, digit by digit. Learned in a minute, and every answer is right or wrong.

A model that only memorised would fail on the held-out numbers: it has to find each digit in its place and say it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def question(number: int) -> str:
    """Return how the demo asks."""
    return f"Read {number} aloud."


def answer(number: int) -> str:
    """438 → 'four three eight'."""
    return " ".join(_DIGITS[int(digit)] for digit in str(number))


def split_numbers(*, held_out: int = 100, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return all numbers from 100 to 999 in a random order: those to learn from, and those never trained on."""
    numbers = list(range(100, 1000))
    random.Random(seed).shuffle(numbers)
    return numbers[held_out:], numbers[:held_out]


def write_data(folder: Path, *, held_out: int = 100, seed: int = 0) -> tuple[Path, Path]:
    """`train.jsonl` and `test.jsonl`: all numbers from 100 to 999, of which `held_out` are never trained on."""
    for name, chosen in zip(("train.jsonl", "test.jsonl"), split_numbers(held_out=held_out, seed=seed), strict=True):
        with (folder / name).open("w", encoding="utf-8") as file:
            for number in chosen:
                messages = [
                    {"role": "user", "content": question(number)},
                    {"role": "assistant", "content": answer(number)},
                ]
                file.write(json.dumps({"messages": messages}) + "\n")
    return folder / "train.jsonl", folder / "test.jsonl"
