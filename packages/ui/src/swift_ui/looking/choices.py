"""Models and data sets to choose from: of runs, of the working directory, of the hub cache, and short names."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
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
class FormChoice:
    """A model or a data set that can be entered in a form."""

    value: str
    """What is typed for it."""
    group: str
    detail: str = ""


def find_choices(rows: Iterable[Mapping[str, Any]], here: Path, roots: Iterable[Path]) -> dict[str, list[FormChoice]]:
    """Return the models and the data sets; `rows` are the runs of the list, the newest first."""
    runs = list(islice(rows, MOST_RUNS))
    models = chain(
        chain.from_iterable(map(_models_of_run, runs)),
        (FormChoice(_typed(folder, here), "Folders") for folder in _model_folders((here, *roots))),
        (FormChoice(name, "Hub cache") for name in cached_ids("models")),
        (FormChoice(name, "Hub", model) for name, model in RELEASED.items() if not _is_offline()),
    )
    datasets = chain(
        chain.from_iterable(map(_data_of_run, runs)),
        (FormChoice(_typed(file, here), "Files") for file in _data_files(here)),
        (FormChoice(name, "Hub cache") for name in cached_ids("datasets")),
    )
    return {"models": _each_once(models), "datasets": _each_once(datasets)}


def _each_once(choices: Iterable[FormChoice]) -> list[FormChoice]:
    first: dict[str, FormChoice] = {}
    for each in choices:
        first.setdefault(each.value, each)
    return list(first.values())


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "0") != "0"


def _models_of_run(row: Mapping[str, Any]) -> Iterator[FormChoice]:
    folder, facts = Path(row["folder"]), row["facts"]
    method = " ".join(str(facts[each]) for each in ("objective", "tuner") if each in facts)
    with suppress(OSError):  # of a run that was removed meanwhile
        for each in checkpoints(folder, None)[:-4:-1]:
            yield FormChoice(each["path"], "Checkpoints", method)
        for export in _folders_in(folder):
            if _is_model({file.name for file in export.iterdir()}):
                yield FormChoice(str(export), "Exports", f"of {_name(row)}")
    base = arguments(folder).get("model.path")
    if isinstance(base, str) and base:
        yield FormChoice(base, "Used by runs", f"by {_name(row)}")


def _data_of_run(row: Mapping[str, Any]) -> Iterator[FormChoice]:
    args = arguments(Path(row["folder"]))
    for key in ("data.train", "data.validation"):
        named = args.get(key)
        for value in named if isinstance(named, list) else ():
            if isinstance(value, str) and value:
                yield FormChoice(value, "Used by runs", f"by {_name(row)}")


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}/{row['name']}"


def _model_folders(tops: Iterable[Path]) -> Iterator[Path]:
    return (folder for top in tops for folder, names in _search(top) if _is_model(names))


def _data_files(top: Path) -> Iterator[Path]:
    for folder, names in _search(top):
        if not _is_model(names):
            yield from (folder / name for name in sorted(names) if name.endswith(TABLES) and name != "package.json")


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
