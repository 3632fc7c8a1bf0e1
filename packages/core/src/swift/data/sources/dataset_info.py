"""LLaMA-Factory's `dataset_info.json`: names of data sets, where they lie, and how their columns are called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.data.conversation import ROLES, STANDARD_TAGS, RoleTags
from swift.data.sources.rows import Source
from swift.errors import DataError
from swift.untrusted import inside, json_kind, read_json_object, shown

DATASET_INFO_FILE = "dataset_info.json"

_ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "history": "history"}
_SHAREGPT = {"messages": "messages"}
_BOTH = {"system": "system", "tools": "tools", "chosen": "chosen", "rejected": "rejected", "kto_tag": "label"}
_DEFAULTS = {"alpaca": {"prompt": "instruction", "query": "input", "response": "output"}, "sharegpt": {}}
_WHERE = ("file_name", "hf_hub_url", "ms_hub_url")
"""Keys that say where a data set is: a file of the same name by Hugging Face's datasets has none of them."""
_TAGS = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "call",
    "system_tag": "system",
}
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("formatting", "file_name", "hf_hub_url", "ms_hub_url", "subset", "split"), str),
    "num_samples": int,
    "columns": dict,
    "tags": dict,
}
_KIND_NAMES = {str: "a string", int: "a whole number", dict: "an object"}


def find_entry(name: str, folder: Path) -> Source | None:
    """Return the data set called `name` by the file of `folder`, of its `data` folder or of that in `a/folder/name`."""
    path = Path(name)
    siblings = [(folder / path.parent, path.name)] if path.parent != Path() else []
    for directory, key in [(folder, name), (folder / "data", name), *siblings]:
        entries = _read(directory / DATASET_INFO_FILE)
        if key in entries:
            return _entry(key, entries[key], directory)
    return None


def entry_names(folder: Path) -> list[str]:
    """Return the names of data sets in the folder's own file; none where the file is another kind of index."""
    entries = _read(folder / DATASET_INFO_FILE)
    return [name for name, entry in entries.items() if any(isinstance(entry.get(key), str) for key in _WHERE)]


def known_names(folder: Path) -> list[str]:
    """Return all names that `find_entry` would find without a folder in front."""
    return [name for directory in (folder, folder / "data") for name in _read(directory / DATASET_INFO_FILE)]


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            return {}
    except (OSError, ValueError):  # a name that no file can have
        return {}
    # Saved Hugging Face data sets have a file of the same name whose values are not all entries.
    return {name: value for name, value in read_json_object(path, DataError).items() if isinstance(value, dict)}


def _entry(name: str, entry: Mapping[str, Any], directory: Path) -> Source:
    where = f"The entry '{shown(name)}' of {shown(directory / DATASET_INFO_FILE)}"
    _check_types(where, entry)
    formatting = entry.get("formatting") or "alpaca"
    if formatting not in _DEFAULTS:
        raise DataError(f"{where} has the formatting '{shown(formatting)}'; 'alpaca' and 'sharegpt' are understood.")
    file_name = entry.get("file_name")
    hf_id, ms_id = entry.get("hf_hub_url"), entry.get("ms_hub_url")
    if not (file_name or hf_id or ms_id):
        raise DataError(f"{where} has no file_name, hf_hub_url or ms_hub_url.")
    path = inside(directory, file_name, DataError, source=where) if file_name else None
    if path is not None and not path.exists():
        raise DataError(f"{where} names the file '{shown(path)}', which does not exist.")
    limit = entry.get("num_samples")
    if limit is not None and limit < 1:
        raise DataError(f"{where}: num_samples must be at least 1, not {limit}.")
    return Source(
        text=name,
        kind="path" if path else "hf" if hf_id else "ms",
        location=str(path or hf_id or ms_id),
        subset=entry.get("subset"),
        split=entry.get("split") or "train",
        limit=limit,
        columns=_columns(where, formatting, entry.get("columns") or {}),
        tags=_role_tags(entry.get("tags") or {}),
    )


def _check_types(where: str, entry: Mapping[str, Any]) -> None:
    """Raise `DataError` for a key that holds another kind of value than it should."""
    for key, kind in _KINDS.items():
        value = entry.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise DataError(f"{where}: {key} must be {_KIND_NAMES[kind]}, not {json_kind(value)}.")
    for key in ("columns", "tags"):
        for inner, value in (entry.get(key) or {}).items():
            if value is not None and not isinstance(value, str):
                raise DataError(f"{where}: {key}.{shown(inner)} must be a string, not {json_kind(value)}.")


def _columns(where: str, formatting: str, written: Mapping[str, str]) -> dict[str, str]:
    """Column of the data set → our name. LLaMA-Factory writes it the other way round."""
    targets = {**(_ALPACA if formatting == "alpaca" else _SHAREGPT), **_BOTH}
    if unknown := sorted(set(written) - set(targets) - {"images", "videos", "audios"}):
        raise DataError(f"{where} has unknown columns: {shown(', '.join(unknown))}.")
    named = {**_DEFAULTS[formatting], **written}
    return {column: targets[key] for key, column in named.items() if key in targets and column}


def _role_tags(written: Mapping[str, str]) -> RoleTags:
    if not written:
        return STANDARD_TAGS
    written = {tag: name for tag, name in written.items() if name is not None}
    own = {written[tag]: role for tag, role in _TAGS.items() if tag in written}
    return RoleTags(
        role_keys=(written.get("role_tag", "from"), "role"),
        content_keys=(written.get("content_tag", "value"), "content"),
        roles={**ROLES, **own},
    )
