"""Syntax of `--dataset`: `[hf::|ms::]id_or_path[:subset][#N]`, or a name of a `dataset_info.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

from swift.data.sources.dataset_info import DATASET_INFO_FILE, entry_names, find_entry, known_names
from swift.data.sources.rows import Source
from swift.errors import DataError, did_you_mean, listed
from swift.remote.urls import is_remote
from swift.untrusted import check_unicode, inside, shown

ALIASES = {
    "alpaca-en": "vicgalle/alpaca-gpt4",
    "alpaca-zh": "llm-wizard/alpaca-gpt4-data-zh",
}
"""Short names of data sets → their hub ids."""

TABLES = (".jsonl", ".json", ".csv", ".parquet")
"""Files that a folder is read from."""
SUFFIXES = (*TABLES, ".txt")
"""Files that can be read."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DIGITS = 18
"""Of N in `#N`: more rows than any data set has."""
_LONGEST_NAME = 255
_LISTED = 2000
"""Names of a folder among which the one that was meant is looked for."""
_SHOWN = 20
"""Names of an index that are listed."""
_EXAMPLE = "It should be a file or folder (--dataset data/train.jsonl) or a hub id (--dataset owner/name)."


def parse_source(text: str, folder: Path | None = None) -> Source:
    """Read one `--dataset` value. `folder` is where relative paths and `dataset_info.json` are looked for."""
    folder = folder or Path()
    if not text.strip():
        raise DataError("A data set's name is empty.", hint=_EXAMPLE)
    check_unicode(text, "The name of a data set", DataError)
    if _exists(folder, text):
        return by_index(Source(text, "path", str(folder / Path(text).expanduser())))
    body, limit = _limit(text)
    if is_remote(body):
        return Source(text, "url", body, limit=limit)
    if body.startswith("hf::"):
        return _hub(text, "hf", body.removeprefix("hf::"), limit)
    if body.startswith("ms::"):
        return _hub(text, "ms", body.removeprefix("ms::"), limit)
    if _exists(folder, body):
        return by_index(Source(text, "path", str(folder / Path(body).expanduser()), limit=limit))
    if entry := find_entry(body, folder):
        return replace(entry, text=text, limit=limit or entry.limit)
    base, _, subset = body.rpartition(":")
    if base and _exists(folder, base):
        return _inside(text, folder / Path(base).expanduser(), subset, limit)
    _refuse_unknown_entry(body, folder)
    if body.endswith(SUFFIXES) or body.startswith(("./", "../", "/", "~")) or body.count("/") > 1:
        path = folder / body
        near = did_you_mean(path.name, _names(path.parent)) if len(path.name) <= _LONGEST_NAME else ""
        raise DataError(f"There is no file or folder '{shown(body)}'.{near}", hint=_EXAMPLE)
    return _hub(text, "hf", body, limit, folder)


def by_index(source: Source) -> Source:
    """Return what a path is: a folder with a `dataset_info.json` is the one data set of its index."""
    folder = Path(source.location)
    saved = any((folder / name).exists() for name in ("state.json", "dataset_dict.json"))
    names = entry_names(folder) if folder.is_dir() and not saved else []
    if not names:
        return source
    if len(names) > 1:
        raise DataError(
            f"'{shown(source.text)}' has a {DATASET_INFO_FILE} with {len(names)} data sets, and one has to be named.",
            hint=f"Type --dataset {_typed(source.text)}/NAME. It has: {_listed(names)}.",
        )
    entry = find_entry(names[0], folder)
    assert entry is not None
    return replace(entry, text=source.text, limit=source.limit or entry.limit)


def _refuse_unknown_entry(body: str, folder: Path) -> None:
    """Refuse a name that can only be meant as one of an index and is not: it is no hub id to ask for."""
    parent, name = Path(body).parent, Path(body).name
    if body.endswith(SUFFIXES):
        return
    if parent != Path():
        candidates = [folder / parent.expanduser()] if _exists(folder, str(parent)) else []
    else:
        candidates = [] if body.partition(":")[0] in ALIASES else [folder, folder / "data"]
    found = {candidate: names for candidate in candidates if (names := entry_names(candidate))}
    if not found:
        return
    names = [each for own in found.values() for each in own]
    indexes = " or ".join(shown(str(candidate / DATASET_INFO_FILE)) for candidate in found)
    at_hub = f" From the Hugging Face hub: --dataset hf::{body}" if _HUB_ID.fullmatch(body.partition(":")[0]) else ""
    raise DataError(
        f"There is no data set '{shown(name)}' in {indexes}.{did_you_mean(name, names)}",
        hint=f"It has: {_listed(names)}.{at_hub}",
    )


def _typed(text: str) -> str:
    """Return the folder of a data set as it was typed, without the number of rows."""
    return shown(text.partition("#")[0].rstrip("/") or "/")


def _listed(names: Sequence[str]) -> str:
    return listed([shown(name) for name in names], _SHOWN)


def _limit(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)#(\d+)", text, flags=re.DOTALL)
    if match is None:
        return text, None
    limit = int(match[2]) if len(match[2]) <= _DIGITS else 10**_DIGITS
    if limit == 0:
        raise DataError(f"'{shown(text)}' asks for 0 rows.", hint="Write #N with N of at least 1, or leave it out.")
    return match[1], limit


def _exists(folder: Path, text: str) -> bool:
    try:
        return (folder / Path(text).expanduser()).exists()
    except (OSError, ValueError, RuntimeError):  # too long for a file name, a null byte, or no such home folder
        return False


def _inside(text: str, base: Path, subset: str, limit: int | None) -> Source:
    path = inside(base, subset, DataError, source=f"The data set '{shown(text)}'") if subset else base
    if subset in entry_names(base):
        raise DataError(
            f"'{shown(subset)}' is a name of {shown(str(base / DATASET_INFO_FILE))}, which follows a slash.",
            hint=f"Did you mean --dataset {_typed(text).removesuffix(':' + subset)}/{shown(subset)}?",
        )
    if not subset or not _exists(base, subset):
        raise DataError(f"'{shown(base)}' has no subset '{shown(subset)}': there is no such folder or file in it.")
    return by_index(Source(text, "path", str(path), limit=limit))


def _names(folder: Path) -> list[str]:
    """Return names of a folder to choose a likely one from: not of all where there are very many."""
    try:
        return [each.name for each in islice(folder.iterdir(), _LISTED)]
    except (OSError, ValueError):
        return []


def _hub(text: str, kind: Literal["hf", "ms"], body: str, limit: int | None, folder: Path | None = None) -> Source:
    name, _, subset = body.partition(":")
    if not _HUB_ID.fullmatch(name):
        raise DataError(f"'{shown(text)}' is neither a file or folder that exists nor a hub id.", hint=_EXAMPLE)
    if len(name) > _LONGEST_NAME:
        raise DataError(f"'{shown(text)}' is too long for a hub id.", hint=_EXAMPLE)
    if "/" not in name and name not in ALIASES and folder is not None:
        names = _names(folder)
        typed = next((each for each in names if each in [name + suffix for suffix in SUFFIXES]), name)
        if guess := did_you_mean(typed, [*ALIASES, *known_names(folder), *names]):
            raise DataError(f"There is no data set {name!r}.{guess}", hint=_EXAMPLE)
    return Source(text, kind, ALIASES.get(name, name), subset=subset or None, limit=limit)
