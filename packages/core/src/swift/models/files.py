"""Weights in a folder of safetensors: names and shapes from the headers, tensors only when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from swift.errors import ModelError
from swift.safetensors_header import Entry, Header, read_header
from swift.untrusted import inside, read_json_object

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
HASHED_WHOLE = 1 << 30
"""Weights up to this many bytes are hashed byte by byte; of larger ones, samples of every tensor."""
SAMPLE = 4096


class SafetensorsFolder:
    """A single `model.safetensors` or shards behind an index. A pickle (`PICKLES`) is never opened."""

    def __init__(self, folder: Path, *, file: str | None = None) -> None:
        """With `file`, that one of the folder alone: an adapter's, say."""
        self.folder = folder
        self._entries: dict[str, tuple[Path, Entry]] = {}
        self._headers: dict[Path, Header] = {}
        self._opened: tuple[Path, Any] | None = None
        shards = _weight_files(folder) if file is None else {folder / file: None}
        for path, names in shards.items():
            header = read_header(path, ModelError)
            self._headers[path] = header
            absent = sorted((names or set()) - header.entries.keys())
            if absent:
                raise ModelError(
                    f"{path} lacks {absent[0]}, which {INDEX} lists for it.", hint="Copy or download the model again."
                )
            self._entries.update({name: (path, entry) for name, entry in header.entries.items()})

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Names as they stand in the files."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name][1].shape

    def dtype(self, name: str) -> str:
        """Precision from the header, as safetensors calls it: 'BF16'."""
        return self._entries[name][1].dtype

    def size(self, name: str) -> int:
        """Bytes, from the header."""
        entry = self._entries[name][1]
        return entry.end - entry.start

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor, in the precision of the file; its bytes are fetched when they are looked at."""
        from safetensors import safe_open

        file, _ = self._entries[name]
        # Tensors are mostly read in the order of the files, and opening one reads its header.
        if self._opened is None or self._opened[0] != file:
            self._opened = file, safe_open(file, framework="pt")
        tensor: torch.Tensor = self._opened[1].get_tensor(name)
        return tensor

    def digest(self) -> str:
        """Return a hash that changes with any weight, name or shape, at a cost that does not grow with the model.

        Up to a gibibyte every byte is hashed. Reading hundreds of gibibytes at every start would take minutes, so
        that beyond it the headers and the beginning, middle and end of every tensor are: an optimizer step that
        moves a weight matrix moves those as well.
        """
        digest = xxhash.xxh3_128()
        whole = sum(file.stat().st_size for file in self._headers) <= HASHED_WHOLE
        for file, header in sorted(self._headers.items()):
            digest.update(json.dumps([file.name, header.content], sort_keys=True).encode())
            with file.open("rb") as handle:
                if whole:
                    while block := handle.read(1 << 20):
                        digest.update(block)
                    continue
                for name in sorted(header.entries):
                    entry = header.entries[name]
                    for offset in (entry.start, (entry.start + entry.end) // 2, max(entry.start, entry.end - SAMPLE)):
                        handle.seek(header.data + offset)
                        digest.update(handle.read(min(SAMPLE, entry.end - offset)))
        return digest.hexdigest()


def _weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Files with weights, and the names that the index says are in each."""
    index = folder / INDEX
    if index.exists() or index.is_symlink():
        return _shards(folder, index)
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        return {folder / SINGLE: None}
    pickles = [file.name for pattern in PICKLES for file in folder.glob(pattern)]
    if pickles:
        raise ModelError(
            f"{folder} stores its weights in {pickles[0]}, a pickle file, which can run code when it is loaded. "
            "swift reads only safetensors.",
            hint="If you trust the file, convert it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) "
            "writes safetensors.",
        )
    raise ModelError(
        f"{folder} has no weights: both {SINGLE} and {INDEX} are missing.",
        hint="Pass the folder of a complete model, or --model.random_weights true to train from scratch.",
    )


def _shards(folder: Path, index: Path) -> dict[Path, set[str] | None]:
    weight_map = read_json_object(index, ModelError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} is invalid: it has no weight_map.", hint="Copy or download it again.")
    shards: dict[Path, set[str] | None] = {}
    for name, file in sorted(weight_map.items(), key=lambda item: str(item[1])):
        names = shards.setdefault(inside(folder, file, ModelError, source=str(index)), set())
        assert names is not None
        names.add(name)
    missing = [path.name for path in shards if not path.exists()]
    if missing:
        raise ModelError(
            f"{folder} is incomplete: {missing[0]}, one of {len(shards)} files listed in {INDEX}, is missing.",
            hint="Copy or download the model again.",
        )
    return shards
