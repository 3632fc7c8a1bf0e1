"""The demo's task: spell out the digits of a number. It is learned in a minute and easy to score.

A model that only memorised would fail on the held-out numbers.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def question(number: int) -> str:
    """Return the demo's prompt."""
    return f"Read {number} aloud."


def completion(number: int) -> str:
    """438 → 'four three eight'."""
    return " ".join(_DIGITS[int(digit)] for digit in str(number))


def split_numbers(*, held_out: int = 100, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return all numbers from 100 to 999 in a random order, split into training and held-out numbers."""
    numbers = list(range(100, 1000))
    random.Random(seed).shuffle(numbers)
    return numbers[held_out:], numbers[:held_out]


def write_data(folder: Path, *, held_out: int = 100, seed: int = 0) -> tuple[Path, Path]:
    """Write all numbers from 100 to 999 to `train.jsonl` and, `held_out` of them, to `test.jsonl`."""
    for name, chosen in zip(("train.jsonl", "test.jsonl"), split_numbers(held_out=held_out, seed=seed), strict=True):
        with (folder / name).open("w", encoding="utf-8") as file:
            for number in chosen:
                messages = [
                    {"role": "user", "content": question(number)},
                    {"role": "assistant", "content": completion(number)},
                ]
                file.write(json.dumps({"messages": messages}) + "\n")
    return folder / "train.jsonl", folder / "test.jsonl"
