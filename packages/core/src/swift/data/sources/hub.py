"""Data sets that other libraries hold: the Hugging Face hub, ModelScope, and in-memory `datasets.Dataset`s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift.data.sources.rows import ListRows, RowData, Source, as_row, first_line
from swift.errors import DataError
from swift.installation import pip_install

_REACH_SECONDS = 10.0
"""How long to wait for the hub before saying that it cannot be reached."""


def read_hub(source: Source) -> ListRows:
    """Return a data set of a hub, from its cache or downloaded into it."""
    loaded = _load_modelscope(source) if source.kind == "ms" else _load_hugging_face(source, streaming=False)
    dataset = _pick_split(loaded, source)
    if len(dataset) == 0:
        raise DataError(f"The data set {source.text!r} is empty.")
    return ListRows(dataset, source.text, fingerprint=dataset._fingerprint)


def stream_hub(source: Source) -> Iterator[RowData]:
    """Stream a data set of the hub, read while it is used."""
    dataset = _pick_split(_load_hugging_face(source, streaming=True), source)
    return (as_row(row, source.text) for row in dataset)


def _load_hugging_face(source: Source, *, streaming: bool) -> Any:
    import datasets

    try:
        if not _is_cached(source.location):
            from huggingface_hub import HfApi, constants

            # One short question first: a download against a silent network would retry, and print each attempt.
            if not constants.is_offline_mode():
                HfApi().dataset_info(source.location, timeout=_REACH_SECONDS)
        return datasets.load_dataset(source.location, name=source.subset, streaming=streaming)
    except Exception as error:  # every loader and network layer below raises its own
        raise DataError(
            f"The data set {source.location!r} is not a local file, and loading it from the Hugging Face hub "
            f"failed: {first_line(error)}",
            hint="Check the spelling and the network, or give a file: --dataset data/train.jsonl",
        ) from error


def _is_cached(name: str) -> bool:
    """Return whether a data set of the hub was downloaded before: then it can be had without the hub."""
    from datasets.config import HF_DATASETS_CACHE
    from datasets.naming import camelcase_to_snakecase
    from huggingface_hub.constants import HF_HUB_CACHE

    *owner, own = name.split("/")
    prepared = Path(HF_DATASETS_CACHE) / "___".join([*owner, camelcase_to_snakecase(own)])
    downloaded = Path(HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    return prepared.is_dir() or downloaded.is_dir()


def _load_modelscope(source: Source) -> Any:
    try:
        from modelscope.msdatasets import MsDataset
    except ImportError as error:  # of modelscope itself, or of what only its data sets need
        lacking = (error.name or "modelscope").partition(".")[0]
        raise DataError(
            f"{source.text!r} is on ModelScope, and the package {lacking} is not installed.",
            hint=f"Type: {pip_install('modelscope[datasets]')}   or take it from the Hugging Face hub with hf::",
        ) from error
    try:
        loaded = MsDataset.load(source.location, subset_name=source.subset or "default", split=source.split)
    except Exception as error:  # every loader and network layer below raises its own
        raise DataError(
            f"The data set {source.location!r} could not be loaded from ModelScope: {first_line(error)}",
            hint="Check the spelling and the network.",
        ) from error
    return loaded.to_hf_dataset() if hasattr(loaded, "to_hf_dataset") else loaded


def _pick_split(loaded: Any, source: Source) -> Any:
    """Return the split that was asked for, or the only one there is."""
    if not isinstance(loaded, dict):
        return loaded
    if source.split in loaded:
        return loaded[source.split]
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise DataError(f"The data set {source.text!r} has no split {source.split!r}, only {', '.join(sorted(loaded))}.")
