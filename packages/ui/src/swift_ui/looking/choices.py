"""Models and data sets to choose from: of runs, of the working directory, of the hub cache, and short names."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from swift.forms import RELEASED, TABLES, cached_ids
from swift.train import ARGS_FILE
from swift_ui.looking.view import arguments, checkpoints

MOST_FOLDERS = 2000
"""Maximum number of folders to search: the working directory may be anything."""
DEPTH = 3
MOST_RUNS = 100
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Choice:
    """A model or a data set that can be entered in a form."""

    value: str
    """What is typed for it."""
    group: str
    detail: str = ""


def find_choices(rows: Iterable[Mapping[str, Any]], here: Path, roots: Iterable[Path]) -> dict[str, list[Choice]]:
    """Return the models and the data sets; `rows` are the runs of the list, the newest first."""
    models: dict[str, Choice] = {}
    datasets: dict[str, Choice] = {}

    def add(found: dict[str, Choice], value: object, group: str, detail: str = "") -> None:
        if isinstance(value, str) and value:
            found.setdefault(value, Choice(value, group, detail))

    for row in islice(rows, MOST_RUNS):
        folder, args = Path(row["folder"]), arguments(Path(row["folder"]))
        name = f"{row['model']}/{row['name']}"
        method = " ".join(str(row["facts"].get(each, "")) for each in ("objective", "tuner")).strip()
        with suppress(OSError):  # of a run that was removed meanwhile
            for each in checkpoints(folder, None)[:-4:-1]:
                add(models, each["path"], "Checkpoints", method)
            for export in _folders_in(folder):
                if _is_model(set(os.listdir(export))):
                    add(models, str(export), "Exports", f"of {name}")
        add(models, args.get("model.path"), "Used by runs", f"by {name}")
        for key in ("data.train", "data.validation"):
            for value in args[key] if isinstance(args.get(key), list) else ():
                add(datasets, value, "Used by runs", f"by {name}")
    for top in dict.fromkeys((here, *roots)):
        for folder, names in _search(top):
            if _is_model(names):
                add(models, _typed(folder, here), "Folders")
            elif top == here:
                for file in sorted(names):
                    if file.endswith(TABLES) and file != "package.json":
                        add(datasets, _typed(folder / file, here), "Files")
    for model in cached_ids("models"):
        add(models, model, "Hub cache")
    for dataset in cached_ids("datasets"):
        add(datasets, dataset, "Hub cache")
    if os.environ.get("HF_HUB_OFFLINE", "0") == "0":
        for short, model in RELEASED.items():
            add(models, short, "Hub", model)
    return {"models": list(models.values()), "datasets": list(datasets.values())}


def _typed(path: Path, here: Path) -> str:
    """Return a path as a user in the working directory types it."""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_model(names: set[str]) -> bool:
    return _ADAPTER in names or ("config.json" in names and any(name.endswith(_WEIGHTS) for name in names))


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as found:
        return [
            Path(each.path)
            for each in sorted(found, key=lambda each: each.name)
            if each.is_dir(follow_symlinks=False) and not each.name.startswith((".", "checkpoint-"))
        ]


def _search(top: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield folders with the names of their files, the nearest first; not those of runs, nor below models."""
    waiting = deque([(top, 0)])
    for _ in range(MOST_FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.popleft()
        with suppress(OSError):  # of folders that may not be read
            with os.scandir(folder) as found:
                names = {each.name for each in found if each.is_file()}
            if ARGS_FILE not in names:
                yield folder, names
                if depth < DEPTH and not _is_model(names):
                    waiting += ((each, depth + 1) for each in _folders_in(folder))
