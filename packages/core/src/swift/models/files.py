"""Weights in a folder of safetensors: names and shapes from the headers, tensors only when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from swift.errors import ModelError

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
        self._entries: dict[str, tuple[Path, dict[str, Any]]] = {}
        self._headers: dict[Path, tuple[int, dict[str, Any]]] = {}
        self._opened: tuple[Path, Any] | None = None
        for path in _weight_files(folder) if file is None else [folder / file]:
            start, header = _header(path)
            self._headers[path] = (start, header)
            self._entries.update({name: (path, entry) for name, entry in header.items() if name != "__metadata__"})

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Names as they stand in the files."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape from the header."""
        return tuple(self._entries[name][1]["shape"])

    def dtype(self, name: str) -> str:
        """Precision from the header, as safetensors calls it: 'BF16'."""
        return str(self._entries[name][1]["dtype"])

    def size(self, name: str) -> int:
        """Bytes, from the header."""
        begin, end = self._entries[name][1]["data_offsets"]
        return int(end - begin)

    def read(self, name: str) -> torch.Tensor:
        """One tensor, in the precision of the file; its bytes are fetched when they are looked at."""
        from safetensors import safe_open

        file, _ = self._entries[name]
        # Tensors are mostly read in the order of the files, and opening one reads its header.
        if self._opened is None or self._opened[0] != file:
            self._opened = file, safe_open(file, framework="pt")
        tensor: torch.Tensor = self._opened[1].get_tensor(name)
        return tensor

    def digest(self) -> str:
        """Changes when any weight, name or shape changes, at a cost that does not grow with the model.

        Up to a gibibyte every byte is hashed. Reading hundreds of gibibytes at every start would take minutes, so
        that beyond it the headers and the beginning, middle and end of every tensor are: an optimizer step that
        moves a weight matrix moves those as well.
        """
        digest = xxhash.xxh3_128()
        whole = sum(file.stat().st_size for file in self._headers) <= HASHED_WHOLE
        for file, (start, header) in sorted(self._headers.items()):
            digest.update(json.dumps([file.name, header], sort_keys=True).encode())
            with file.open("rb") as handle:
                if whole:
                    while block := handle.read(1 << 20):
                        digest.update(block)
                    continue
                for name in sorted(header.keys() - {"__metadata__"}):
                    begin, end = header[name]["data_offsets"]
                    for offset in (begin, (begin + end) // 2, max(begin, end - SAMPLE)):
                        handle.seek(start + offset)
                        digest.update(handle.read(min(SAMPLE, end - offset)))
        return digest.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelError(
                f"{folder} lacks {missing[0]}, one of the {len(shards)} files that {INDEX} names.",
                hint="Copy or download the model again; it is not complete.",
            )
        return [folder / shard for shard in shards]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickles = [file.name for pattern in PICKLES for file in folder.glob(pattern)]
    if pickles:
        raise ModelError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which can run code when it is opened; swift reads "
            "safetensors only.",
            hint="Convert it where you trust it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) "
            "writes safetensors.",
        )
    raise ModelError(
        f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there.",
        hint="Give the folder of a whole model, or --model.random_weights true to start from random ones.",
    )


def _header(file: Path) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and the header; checked against the size of the file."""
    size = file.stat().st_size
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if length > size:
                raise ValueError
            header: dict[str, Any] = json.loads(handle.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{file} is not a safetensors file, or its header is damaged.", hint="Copy or download it again."
        ) from error
    if 8 + length + end != size:
        raise ModelError(
            f"{file} should have {8 + length + end} bytes and has {size}: it is truncated or altered.",
            hint="Copy or download it again.",
        )
    return 8 + length, header
