"""The demo's task: spell out the digits of a number. It is learned in a minute and easy to score.

A model that only memorised would fail on the held-out numbers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def question(number: int) -> str:
    """Return the demo's prompt."""
    return f"Read {number} aloud."


def completion(number: int) -> str:
    """438 → 'four three eight'."""
    return " ".join(_DIGITS[int(digit)] for digit in str(number))


def split_numbers(seed: int = 0) -> tuple[list[int], list[int]]:
    """Return all numbers from 100 to 999 in a random order, split into training and held-out numbers."""
    numbers = list(range(100, 1000))
    random.Random(seed).shuffle(numbers)
    return numbers[100:], numbers[:100]


def conversation(question: str, number: int) -> list[dict[str, str]]:
    """Return the messages of a question and the digits of a number in words."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": completion(number)}]


def write_data(folder: Path) -> tuple[Path, Path]:
    """Write all numbers from 100 to 999 to `train.jsonl` and, a hundred of them, to `test.jsonl`."""
    train, test = (
        [{"messages": conversation(question(number), number)} for number in numbers] for numbers in split_numbers()
    )
    return write_rows(folder / "train.jsonl", train), write_rows(folder / "test.jsonl", test)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as lines of JSON; return the file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path
