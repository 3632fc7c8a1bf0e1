"""Short runs that learn vectors of texts with images, by models of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from image_runs import ALL, SETTINGS
from tiny_runs import Trained, run_training

Text = tuple[str, tuple[int, ...]]
"""What somebody says, and the images that come before it."""
Groups = list[tuple[Text, list[Text], list[Text]]]
"""Of each row its query, positives and negatives."""
GROUPS: Groups = [
    (("find this", (0,)), [("", (1,))], [("not it", (2,))]),
    (("find text", ()), [("here", ()), ("there", (3,))], [("", (2,)), ("no", ())]),
    (("what", (1, 2)), [("two of them", ())], []),
    (("find one like it", (2,)), [("", (1,))], []),
    (("plain", ()), [("words", ())], []),
    (("one", ()), [("two", ())], []),
    (("three", ()), [("four", ())], []),
    (("five", ()), [("six", ())], []),
]
"""Two rows have a positive of one image alone, which is the same one; the second half has no image at all."""
EMBEDDING: dict[str, Any] = {
    **SETTINGS, **ALL, "objective.name": "embedding", "model.task": "embedding", "train.micro_batch": 4,
    "train.max_steps": 2, "data.packing": False,
}  # fmt: skip


def rows_of(groups: Groups) -> list[dict[str, Any]]:
    """Return rows as ms-swift's documentation has them."""
    return [
        {
            "messages": messages(query),
            "images": files(query),
            "positive_messages": [messages(each) for each in positives],
            "positive_images": [files(each) for each in positives],
            "negative_messages": [messages(each) for each in negatives],
            "negative_images": [files(each) for each in negatives],
        }
        for query, positives, negatives in groups
    ]


def messages(text: Text) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "<image>" * len(text[1]) + text[0]}]


def files(text: Text) -> list[str]:
    return [f"{each}.png" for each in text[1]]


def trained_on_vectors(model: Path, folder: Path, name: str, changes: dict[str, Any]) -> Trained:
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "logging.run_name": name}
    return run_training(model, folder / "runs", rows_of(GROUPS), {**EMBEDDING, **paths, **changes})
