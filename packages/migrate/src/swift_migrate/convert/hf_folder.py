"""Reader of Hugging Face folders for `swift convert`: models, adapters, checkpoints of the Trainer.

Weights are safetensors. The Trainer's optimizer state is a pickle, which torch's restricted unpickler reads as tensors
and plain containers. Tensors are loaded only when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from swift.contracts import ThirdPartyCheckpoint
from swift.errors import CheckpointError
from swift.models import HfSource, check_finite
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.files import INDEX, SINGLE, SafetensorsFolder
from swift.toolkit import HEAD, Piece, load_pickle
from swift.untrusted import read_json_object
from swift_migrate.convert.trainer_order import Groups, pieces_by_parameter, possible_groups, skeleton_of

OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"
PREFIX = "base_model.model."
"""PEFT's prefix of names."""
ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})

_OTHER_MODEL = "Type --model with the model that training started from."
_OTHER_FILE = "Copy it again, or convert another checkpoint."
_WEIGHTS_ALONE = "Convert the weights only: --weights-only"


def open_hf_folder(
    folder: Path, *, adapter: Mapping[str, Any] | None, weights_only: bool
) -> ThirdPartyCheckpoint | None:
    """Open a folder with safetensors; return None where it has none."""
    if not has_weights(folder):
        return None
    if not is_adapter(folder):
        adapter = None
    elif adapter is None:
        raise CheckpointError(
            f"{folder} has an adapter, but its adapter_config.json is missing.", hint="Type --adapter-config FILE"
        )
    return HfFolder(folder, adapter=adapter, weights_only=weights_only)


def has_weights(folder: Path) -> bool:
    """Return whether the folder has a model or an adapter in safetensors."""
    return is_whole(folder) or is_adapter(folder)


def is_whole(folder: Path) -> bool:
    """Return whether the folder has all weights of a model."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def is_adapter(folder: Path) -> bool:
    """Return whether the folder has an adapter, and no whole model."""
    return (folder / ADAPTER_WEIGHTS).is_file() and not is_whole(folder)


class HfFolder(ThirdPartyCheckpoint):
    """A model or an adapter, with the Trainer's optimizer state if there is one."""

    def __init__(self, folder: Path, *, adapter: Mapping[str, Any] | None, weights_only: bool) -> None:
        self._folder = folder
        self._adapter = adapter
        self._files = SafetensorsFolder(folder, file=None if adapter is None else ADAPTER_WEIGHTS)
        progress = _progress(folder / STATE)
        self.step = int(progress.get("global_step") or 0)
        self.total_steps = int(progress.get("max_steps") or 0)
        self.rows_per_step = 0  # trainer_state.json has neither the number of processes nor the accumulation
        self._spellings: dict[str, str] = {}
        self._parameter_of: dict[str, tuple[str, Piece]] = {}
        self._state: dict[str, Mapping[str, torch.Tensor]] = {}
        kind = "a model" if adapter is None else "an adapter"
        self.description = f"a checkpoint of the Hugging Face Trainer ({kind})" if progress else f"{kind} of PEFT"
        if adapter is None and not progress:
            self.description = "a Hugging Face model"
        self._optimizer = {} if weights_only else self._open_optimizer()
        if not self._optimizer:
            self.description += ", weights alone"
        self.param_groups = self._optimizer.get("param_groups", ())

    def attach(self, source: HfSource) -> None:
        """Compare with the model by name and shape, and assign names to the optimizer states."""
        model = skeleton_of(source, self._adapter)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        pieces = pieces_by_parameter(model)
        self._parameter_of = {piece.name: (name, piece) for name, parts in pieces.items() for piece in parts}
        for disk, (_, piece) in self._parameter_of.items():
            spellings = source.spellings(disk) if self._adapter is None else (disk,)
            self._spellings[disk] = self._find(spellings, piece.shape)
        if self._optimizer:
            self._state = self._assign(list(possible_groups(model)), shapes)

    def labels(self) -> int | None:
        """Return the number of scores of the head; None where the folder has no head."""
        heads = [name for name in (HEAD, f"{PREFIX}{HEAD}") if name in self._files]
        return next(iter(self._files.shape(heads[0])), 0) if heads else None

    def left_out(self) -> list[str]:
        """Return the tensors in the files that belong to no parameter: tied copies, buffers, frozen layers."""
        taken = set(self._spellings.values())
        return [name for name in self._files.names() if name not in taken]

    def names(self) -> Collection[str]:
        """Return the names on disk, as the model and PEFT write them."""
        return self._parameter_of

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return a weight from its file, with its optimizer state."""
        owner, piece = self._parameter_of[name]
        stored = self._spellings[name]
        weight = self._files.read(stored)
        if not weight.is_floating_point():
            raise CheckpointError(f"{stored} in {self._folder} has the integer type {weight.dtype}.", hint=_OTHER_FILE)
        check_finite(stored, weight, self._folder)
        found = {"weight": weight}
        for slot, tensor in self._state.get(owner, {}).items():
            found[slot] = tensor if slot == "step" else piece.view_of(tensor.contiguous())
        return found

    def _find(self, spellings: tuple[str, ...], shape: tuple[int, ...]) -> str:
        there = [name for name in spellings if name in self._files]
        for name in there:
            if self._files.shape(name) == shape:
                return name
        found = f"{there[0]} with shape {self._files.shape(there[0])}" if there else f"no {spellings[0]}"
        raise CheckpointError(f"{self._folder} has {found}; its shape in the model is {shape}.", hint=_OTHER_MODEL)

    def _open_optimizer(self) -> Mapping[str, Any]:
        file = self._folder / OPTIMIZER
        if not file.exists():
            if any(self._folder.glob("optimizer*")):
                self.description += ", whose optimizer is not in one file"
            return {}
        try:
            content: Mapping[str, Any] = load_pickle(file, CheckpointError)
        except CheckpointError as error:
            error.hint = _WEIGHTS_ALONE
            raise
        kept = _slots_of(content)
        if kept is None:
            raise CheckpointError(f"{file} is not an optimizer state.", hint=_WEIGHTS_ALONE)
        if kept != ADAM:
            other = f"keeps {', '.join(sorted(map(str, kept)))}" if kept else "keeps nothing"
            self.description += f", whose optimizer {other}, which is not AdamW's state"
            return {}
        return content

    def _assign(
        self, candidates: list[Groups], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return name in memory → state, by the first order with matching counts and shapes."""
        indices = [list(group["params"]) for group in self._optimizer["param_groups"]]
        sizes = [len(each) for each in indices]
        fitting = [names for names in candidates if [len(each) for each in names] == sizes]
        if not fitting:
            raise CheckpointError(
                f"{OPTIMIZER} has groups of {_counted(sizes)} parameters; for this model the Trainer makes "
                f"{_counted([len(each) for each in candidates[0]])}.",
                hint=f"{_OTHER_MODEL} If some weights were frozen, add --weights-only.",
            )
        held = self._optimizer["state"]
        misfits = []
        for groups in fitting:
            numbered = dict(zip(chain(*indices), chain(*groups), strict=True))
            state = {name: held[number] for number, name in numbered.items() if number in held}
            misfit = _misfit(state, shapes)
            if misfit is None:
                return state
            misfits.append(misfit)
        raise CheckpointError(misfits[0], hint=_OTHER_MODEL)


def _slots_of(content: Any) -> set[Any] | None:
    """Return the slots per parameter of an optimizer state; None where it is not one."""
    state, groups = (content.get(key) if isinstance(content, dict) else None for key in ("state", "param_groups"))
    if not isinstance(state, dict) or not all(isinstance(each, dict) for each in state.values()):
        return None
    if not isinstance(groups, list) or not all(
        isinstance(each, dict) and isinstance(each.get("params"), list) for each in groups
    ):
        return None
    if any(not _is_slot(slot, slots[slot]) for slots in state.values() for slot in ADAM & slots.keys()):
        return None
    if not all(type(number) is int for number in state):
        return None
    return {slot for slots in state.values() for slot in slots}


def _is_slot(slot: str, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_complex() and (slot != "step" or value.numel() == 1)


def _misfit(state: Mapping[str, Mapping[str, torch.Tensor]], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    for name, slots in state.items():
        if lacking := ADAM - slots.keys():
            return f"{OPTIMIZER} lacks {min(lacking)} of {name}."
        for slot in ("exp_avg", "exp_avg_sq"):
            found = tuple(slots[slot].shape)
            if found != shapes[name]:
                return f"{slot} of {name} has the shape {found} in {OPTIMIZER}, but {shapes[name]} in the model."
    return None


def _counted(sizes: list[int]) -> str:
    return " and ".join(map(str, sizes))


def _progress(file: Path) -> dict[str, Any]:
    """Return the content of trainer_state.json, empty where the file does not exist."""
    if not os.path.lexists(file):  # a broken link is a file that was not copied
        return {}
    content = read_json_object(file, CheckpointError)
    for key in ("global_step", "max_steps"):
        value = content.get(key) or 0
        if type(value) is not int or not 0 <= value < 1 << 53:
            raise CheckpointError(f"{file}: {key} must be a number of steps, not {value!r:.60}.")
    return content
