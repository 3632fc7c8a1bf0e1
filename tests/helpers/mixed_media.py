"""Rows that hold images, videos and sounds together, and short runs on them by a model of random weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from image_runs import SETTINGS, SIZES
from tiny_images import image_files, sound_files
from tiny_runs import Trained, run_training

_TAGS = {"<image>": "images", "<video>": "videos", "<audio>": "audios"}
ROWS: list[tuple[str, list[Any]]] = [
    ("<image>and<audio>", ["0.png", "0.wav"]),
    ("<audio>", ["1.wav"]),
    ("<image><image>", ["2.png", "1.png"]),
    ("", []),
    ("<audio>", ["2.wav"]),
    ("<audio>or<audio>", ["1.wav", "0.wav"]),
    ("<image>", ["3.png"]),
    ("<image>", ["0.png"]),
    ("", []),
    ("", []),
    ("<audio>with<image>", ["0.wav", "1.png"]),
    ("<video>, <audio><image>", [["1.png", "2.png"], "1.wav", "3.png"]),
]
"""What stands before the question of each row, and the files at its tags. With four rows a step and two processes, the
first has sounds alone in the second step and the other images alone; in the third step the first has neither."""


def media_folder(folder: Path) -> Path:
    """Write the images and sounds of the rows into a folder."""
    image_files(folder, SIZES)
    sound_files(folder, [0.4, 0.9, 1.7])
    return folder


def media_rows() -> list[dict[str, Any]]:
    """Return the rows with columns for each kind."""
    made = []
    for number, (tags, files) in enumerate(ROWS):
        messages = [
            {"role": "user", "content": f"{tags}What is {number}?"},
            {"role": "assistant", "content": "low " * (1 + number % 3)},
        ]
        columns: dict[str, Any] = {column: [] for column in _TAGS.values()}
        for tag, file in zip(re.findall("<[a-z]+>", tags), files, strict=True):
            columns[_TAGS[tag]].append(file)
        made.append({"messages": messages, **columns})
    return made


def parts_of(number: int) -> list[dict[str, str]]:
    """Return a row's question in parts, as a chat template reads them; a video is its images."""
    tags, files = ROWS[number]
    parts: list[dict[str, str]] = []
    given = iter(files)
    for piece in re.split("(<[a-z]+>)", f"{tags}What is {number}?"):
        if piece not in _TAGS:
            parts += [{"type": "text", "text": piece}] * bool(piece)
            continue
        file = next(given)
        kind = "audio" if piece == "<audio>" else "image"
        parts += [{"type": kind}] * (len(file) if isinstance(file, list) else 1)
    return parts


def files_of(number: int) -> tuple[list[str], list[str]]:
    """Return the names of a row's images, those of videos included, and of its sounds."""
    files = [name for file in ROWS[number][1] for name in (file if isinstance(file, list) else [file])]
    return [each for each in files if each.endswith(".png")], [each for each in files if each.endswith(".wav")]


def trained_on_media(model: Path, folder: Path, name: str, settings: dict[str, Any]) -> Trained:
    """Train on the rows with the settings of the tests of images and some more."""
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "logging.run_name": name}
    return run_training(model, folder / "runs", media_rows(), {**SETTINGS, **paths, **settings})
