"""A checkpoint of another program → one of this: the same tensors under canonical names, one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint.folders import checkpoint_folder
from swift.checkpoint.manifest import Manifest
from swift.checkpoint.names import model_name, optim_name
from swift.checkpoint.save import save_checkpoint
from swift.config.sections import Config
from swift.errors import CheckpointError, PluginError
from swift.models.names import ADAPTER
from swift.models.source import HfSource, open_source
from swift.plugins.discover import list_plugins
from swift.plugins.load import load

if TYPE_CHECKING:
    from swift.contracts import CheckpointWriter, ForeignCheckpoint

ADAPTER_CONFIG = "adapter_config.json"
SLOTS = ("exp_avg", "exp_avg_sq", "step")


def convert_checkpoint(
    path: Path, *, model: str, out: Path, adapter_config: Path | None, say: Callable[[str], None]
) -> Path:
    """Write `out/checkpoint-<step>`; what was trained is compared with the model by name and shape."""
    foreign = _recognised(path)
    names = list(foreign.names())
    adapter = _adapter_config(path, adapter_config) if any(".lora_" in name for name in names) else None
    config = Config.model_validate({"model": {"path": model}, "tuner": {"kind": "full" if adapter is None else "lora"}})
    source = open_source(config.model, say=say)
    if checkpoint_folder(out, foreign.step).exists():
        raise CheckpointError(
            f"{checkpoint_folder(out, foreign.step)} is there already.", hint="Choose another folder with --out."
        )
    say(f"{path} is {foreign.description}, step {foreign.step}.")
    tensors = _adapters(foreign, names) if adapter is not None else _weights(foreign, source)

    def fill(writer: CheckpointWriter) -> None:
        writer.stream(_counted(tensors, len(names), say))

    manifest = Manifest(
        step=foreign.step,
        rows_per_step=foreign.rows_per_step,
        seed=config.train.seed,
        model_fingerprint=source.fingerprint,
        data_fingerprint="",
        backend="",
        config={name: value for name, value in config.model_dump(mode="json").items() if name in ("model", "tuner")},
        adapter=adapter,
        facts={"imported": foreign.description},
    )
    folder = save_checkpoint(out, foreign.step, fill=fill, manifest=manifest, is_main=True).wait()
    say(f"Converted to {folder}")
    say(f"Go on from it: swift sft --model {model} --dataset DATA --resume_from_checkpoint {folder}")
    return folder


def _recognised(path: Path) -> ForeignCheckpoint:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder.", hint="Name the folder that the other program saved.")
    readers = []
    for entry in list_plugins("swift.backends"):
        try:
            reader = getattr(load(entry).object, "foreign_checkpoint", None)
        except PluginError:
            continue  # `swift plugins` says what is wrong with it
        if reader is None:
            continue
        readers.append(entry.name)
        found: ForeignCheckpoint | None = reader(path)
        if found is not None:
            return found
    asked = ", ".join(readers) or "none of them can"
    raise CheckpointError(
        f"{path} is no checkpoint that an installed backend can read (asked: {asked}).",
        hint='For those of DeepSpeed: pip install "swift-core[deepspeed]"',
    )


def _weights(foreign: ForeignCheckpoint, source: HfSource) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights of the model; what the checkpoint says nothing of was not trained."""
    known = set(foreign.names())
    if not known & set(source.name_map.parameters()):
        raise CheckpointError(
            "The checkpoint has no parameter of this model.",
            hint="Name with --model the model that training started from.",
        )
    for name in source.name_map.parameters():
        pieces = source.name_map.pieces(name)
        if name not in known:
            yield from ((model_name(piece.name), source.read(piece.name)) for piece in pieces)
            continue
        tensors = foreign.read(name)
        numel = sum(piece.numel for piece in pieces)
        if tensors["weight"].numel() != numel:
            raise CheckpointError(
                f"{name} has {tensors['weight'].numel()} elements in the checkpoint and {numel} in the model.",
                hint="Name with --model the model that training started from.",
            )
        for piece in pieces:
            yield from _named(piece.name, {key: _part(piece, key, each) for key, each in tensors.items()})


def _part(piece: Any, key: str, tensor: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = tensor if key == "step" else piece.view_of(tensor.contiguous())
    return part


def _adapters(foreign: ForeignCheckpoint, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name in names:
        if ".lora_" in name or ".modules_to_save." in name:
            disk = name.replace(f".modules_to_save.{ADAPTER}", "").replace(f".{ADAPTER}", "")
            yield from _named(disk, foreign.read(name))


def _named(disk: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    yield model_name(disk), tensors["weight"].float()
    for slot in SLOTS:
        if slot in tensors:
            yield optim_name(disk, slot), tensors[slot].float()


def _adapter_config(path: Path, given: Path | None) -> dict[str, Any]:
    for file in [given] if given is not None else [path / ADAPTER_CONFIG, path.parent / ADAPTER_CONFIG]:
        if file.is_file():
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return content
    raise CheckpointError(
        f"The checkpoint holds adapters, and there is no {ADAPTER_CONFIG} beside it.",
        hint="Name it with --adapter-config.",
    )


def _counted(
    tensors: Iterator[tuple[str, torch.Tensor]], parameters: int, say: Callable[[str], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    count = size = 0
    for name, tensor in tensors:
        count, size = count + 1, size + tensor.nbytes
        yield name, tensor
    say(f"{count} tensors of {parameters} parameters, {size / 2**20:,.1f} MiB")
