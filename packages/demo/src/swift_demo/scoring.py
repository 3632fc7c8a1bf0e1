"""Tasks for reward models, classifiers, embedding models and rerankers, each learned in a minute.

Every generator returns training rows and held-out rows. With `random_labels`, the training rows hold nothing that can
be learned, so that the score on held-out rows is chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from swift_demo.task import completion, split_numbers

DIGITS_SPREAD = 0.06
"""Standard deviation of the weights of a tiny model that compares digits: with 0.02 it learns more slowly."""
Row = dict[str, Any]
Rows = list[Row]

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spelled(number: int) -> str:
    """438 → '4 3 8'."""
    return " ".join(str(number))


def one_digit_wrong(number: int, rng: random.Random, count: int = 1) -> list[int]:
    """Return different numbers of three digits, each of which differs from `number` in one digit."""
    others = [
        number + (digit - number // unit % 10) * unit
        for unit in (100, 10, 1)
        for digit in range(10)
        if digit != number // unit % 10
    ]
    return rng.sample([other for other in others if other >= 100], count)


def reward_rows(*, pairs: int = 1500, random_labels: bool = False) -> tuple[Rows, Rows]:
    """Return pairs for a reward model: the digits of a number, and the same with one digit wrong."""
    rng = random.Random(0)
    trained, held_out = split_numbers()
    numbers = [trained[index % len(trained)] for index in range(pairs)]

    def pair(number: int, swapped: bool) -> Row:
        right, wrong = spelled(number), spelled(one_digit_wrong(number, rng)[0])
        chosen, rejected = (wrong, right) if swapped else (right, wrong)
        user = {"role": "user", "content": f"Read {number}."}
        return {"messages": [user, {"role": "assistant", "content": chosen}], "rejected_response": rejected}

    train = [pair(number, random_labels and rng.random() < 0.5) for number in numbers]
    return train, [pair(number, False) for number in held_out]


def class_rows(*, kind: str = "largest", random_labels: bool = False) -> tuple[Rows, Rows]:
    """Return texts of three digits among three letters, labelled by their digits.

    The label is the largest digit (`kind='largest'`, ten classes, equally many of each), the list of digits that occur
    (`'present'`, several labels at a time), or the mean of the digits (`'mean'`, a number).
    """
    rng = random.Random(0)
    seen: set[str] = set()
    rows: Rows = []
    while len(rows) < 2200:
        largest = len(rows) % 10
        digits = (
            [largest, *(rng.randint(0, largest) for _ in range(2))]
            if kind == "largest"
            else rng.choices(range(10), k=3)
        )
        characters = [str(digit) for digit in digits] + rng.choices(LETTERS, k=3)
        rng.shuffle(characters)
        text = "".join(characters)
        if text not in seen:
            seen.add(text)
            label = {"largest": max(digits), "present": sorted(set(digits)), "mean": sum(digits) / 3}[kind]
            rows.append({"text": text, "label": label})
    train, test = rows[:2000], rows[2000:]
    if random_labels:
        _shuffle(train, "label", rng)
    rng.shuffle(train)
    return train, test


def embedding_rows(*, random_labels: bool = False) -> tuple[Rows, Rows]:
    """Return pairs of texts that mean the same: a number in digits, and in words."""
    train, test = ([{"anchor": str(n), "positive": completion(n)} for n in numbers] for numbers in split_numbers())
    if random_labels:
        _shuffle(train, "positive", random.Random(0))
    return train, test


def reranker_rows(
    *, rows: int = 3200, negatives: int = 7, seed: int = 0, random_labels: bool = False,
    document: Callable[[int], str] = "It is {}.".format, near: bool = True,
) -> tuple[Rows, Rows]:  # fmt: skip
    """Return queries, each with the document of its number and with documents that are wrong in one digit.

    Numbers repeat with other wrong documents, as few comparisons would be memorised. Held-out rows have seven wrong
    documents. Unless `near`, wrong documents have any other numbers.
    """
    rng = random.Random(seed)

    def wrong_ones(number: int, count: int) -> list[int]:
        if near:
            return one_digit_wrong(number, rng, count)
        return rng.sample([other for other in range(100, 1000) if other != number], count)

    def row(number: int, wrong: int, shuffled: bool) -> Row:
        documents = [document(each) for each in (number, *wrong_ones(number, wrong))]
        if shuffled:
            rng.shuffle(documents)
        return {"query": str(number), "positive": documents[:1], "negative": documents[1:]}

    trained, held_out = split_numbers(seed)
    numbers = [trained[index % len(trained)] for index in range(rows)]
    return [row(each, negatives, random_labels) for each in numbers], [row(each, 7, False) for each in held_out]


@dataclass(frozen=True)
class Demo:
    """A task that an objective learns in a minute."""

    rows: Callable[..., tuple[Rows, Rows]]
    """Returns the rows to learn from, and the rows that are evaluated on."""
    task: str
    """The task, as a phrase for `The model learns to ...`."""
    command: str
    """The arguments of `swift`."""
    flags: str
    metric: str
    goal: float
    """The value of the metric that training reaches on held-out rows."""
    spread: float = 0.02
    """The standard deviation of the model's weights."""


DEMOS = {
    "rm": Demo(
        partial(reward_rows, pairs=6000),
        "prefer the digits of a number to the same with one of them wrong",
        "rlhf --rlhf_type rm",
        "--per_device_train_batch_size 32 --max_steps 350 --learning_rate 1e-3",
        "reward_accuracy",
        0.97,
        DIGITS_SPREAD,
    ),
    "seq_cls": Demo(
        class_rows,
        "name the largest digit of a text",
        "sft --task_type seq_cls --num_labels 10",
        "--per_device_train_batch_size 32 --max_steps 100 --learning_rate 2e-3",
        "accuracy",
        0.95,
    ),
    "embedding": Demo(
        embedding_rows,
        "find a number in words by its digits",
        "sft --task_type embedding",
        "--per_device_train_batch_size 64 --max_steps 60 --learning_rate 2e-3 --objective.temperature 0.05 "
        "--per_device_eval_batch_size 100",
        "recall_at_1",
        0.95,
    ),
    "reranker": Demo(
        partial(reranker_rows, document=str),
        "find, among eight documents, the one with the number that the query asks for",
        "sft --task_type reranker --loss_type listwise_reranker",
        "--per_device_train_batch_size 10 --max_steps 300 --learning_rate 2e-3",
        "mrr",
        0.95,
        DIGITS_SPREAD,
    ),
}
"""Objective → its demo."""


def _shuffle(rows: Rows, column: str, rng: random.Random) -> None:
    """Give every row the value that some row has in a column."""
    values = [row[column] for row in rows]
    rng.shuffle(values)
    for row, value in zip(rows, values, strict=True):
        row[column] = value
