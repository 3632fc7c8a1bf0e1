"""Folders that `save_to_disk` of `datasets` wrote, read without it: what they say about themselves is not believed."""

from __future__ import annotations

from pathlib import Path

from swift.data.sources.arrow_tables import ArrowRows
from swift.data.sources.rows import Chained, Rows
from swift.data.sources.unchanged_files import SteadyFile
from swift.errors import DataError
from swift.untrusted import inside, read_json_object, shown


def read_saved(folder: Path, split: str) -> Rows:
    """Return the rows of a saved data set, or of one split of several."""
    if (folder / "dataset_dict.json").exists():
        folder = _pick_split(folder, split)
    about = folder / "state.json"
    state = read_json_object(about, DataError)
    if state.get("_indices_files"):
        raise DataError(
            f"{shown(folder)} was saved by an old version of datasets, which stored a selection of rows separately.",
            hint="Load it and save it again: load_from_disk(...).flatten_indices().save_to_disk(...)",
        )
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise DataError(f"{shown(about)} should list the files of the data set under '_data_files'.")
    files = [inside(folder, each.get("filename"), DataError, source=shown(about)) for each in listed]
    parts = [ArrowRows(SteadyFile(file)) for file in files]
    return parts[0] if len(parts) == 1 else Chained(parts)


def _pick_split(folder: Path, split: str) -> Path:
    """Return the folder of the split that was asked for, or of the only one there is."""
    about = folder / "dataset_dict.json"
    splits = read_json_object(about, DataError).get("splits")
    if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
        raise DataError(f"{shown(about)} should list the splits of the data set under 'splits'.")
    name = split if split in splits else splits[0]
    if name != split and len(splits) > 1:
        listed = ", ".join(sorted(splits))[:500]
        raise DataError(f"The data set {shown(folder)} has no split {split!r}, only {listed}.")
    return inside(folder, name, DataError, source=shown(about))
