"""DeepSpeed's own checkpoints, read for `swift convert`: ZeRO 1 to 3, and universal ones.

DeepSpeed writes pickles. They are opened by torch's restricted reader, which makes tensors and plain containers and
nothing else; the few classes of DeepSpeed that lie among them become empty objects. Tensors stay on the disk until a
parameter is asked for. This module does not import deepspeed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from swift.contracts import ThirdPartyCheckpoint
from swift.errors import CheckpointError
from swift.toolkit import load_pickle
from swift.untrusted import inside, read_text
from swift_backend_deepspeed.partitions import MOMENTS

_MODEL = "*mp_rank_*_model_states.pt"
_OPTIM = "*zero_pp_rank_*_optim_states.pt"
_LATEST = 4096
"""Bytes of the file that names the newest folder."""
_STEP = re.compile(r"global_step([0-9]{1,18})(?:_universal)?")
_INERT = (
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
)
_STAGE = "deepspeed.runtime.zero.config.ZeroStageEnum"
_STAGES = ("disabled", "optimizer_states", "gradients", "weights")
"""Its members, by number."""


def open_native(folder: Path) -> ThirdPartyCheckpoint | None:
    """Open a folder that DeepSpeed saved into, or one of its `global_step` folders; None where there is none."""
    found = _inside(folder)
    if found is None:
        return None
    with _damage(found):
        return _opened(found)


@contextmanager
def _damage(location: Path) -> Iterator[None]:
    """Say that a folder is damaged where its files hold values of other kinds than DeepSpeed writes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as problem:
        found = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise CheckpointError(
            f"{location} holds something else than DeepSpeed writes ({found[:200]}).",
            hint="Copy the folder again, or convert an earlier one.",
        ) from None


def _opened(found: Path) -> ThirdPartyCheckpoint:
    if (found / "zero").is_dir():
        return Universal(found)
    files = sorted(found.glob(_OPTIM), key=_rank)
    if not files:
        raise CheckpointError(
            f"{found} holds no optimizer state of ZeRO: it was saved with stage 0, or in part.",
            hint="If the weights are next to it as safetensors, convert these alone: swift convert --weights-only",
        )
    return Sharded(found, files)


def _inside(folder: Path) -> Path | None:
    """Return the folder with the files themselves."""
    for name in ("latest_universal", "latest"):
        if (folder / name).is_file():
            value = read_text(folder / name, CheckpointError, limit=_LATEST).strip()
            if not value:
                continue
            tag = inside(folder, value, CheckpointError, source=str(folder / name))
            if any(tag.glob(_MODEL)) or (tag / "zero").is_dir():
                return tag
    if any(folder.glob(_MODEL)):
        return folder
    steps = {
        int(number[1]): each
        for each in folder.glob("global_step*")
        if (number := _STEP.fullmatch(each.name)) and any(each.glob(_MODEL))
    }
    return steps[max(steps)] if steps else None


def _rank(file: Path) -> int:
    """Return the number of the process that wrote a file; the first one where its name tells none."""
    found = re.search(r"pp_rank_([0-9]{1,9})_", file.name)
    return int(found[1]) if found else 0


class _Nothing:
    """Instead of an object that is of no use here."""


def _stage_named(kind: Any, name: str) -> int:
    """Return a stage as Python 3.11.0 to 3.11.3 pickles it: getattr(ZeroStageEnum, "gradients"), and no other."""
    if kind is not int:
        raise ValueError("only a stage of ZeRO is got by its name")
    return _STAGES.index(name)


def _load(file: Path) -> Any:
    allowed: list[Any] = [(_Nothing, name) for name in _INERT]
    with torch.serialization.safe_globals([*allowed, (int, _STAGE), (_stage_named, "builtins.getattr")]):
        return load_pickle(file, CheckpointError)


@dataclass(frozen=True)
class _Location:
    """Where a parameter lies in flat pieces."""

    group: int
    start: int
    shape: tuple[int, ...]


class Sharded(ThirdPartyCheckpoint):
    """A folder of ZeRO 1, 2 or 3: one file of flat pieces per process."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self._folder = folder
        model = _load(min(folder.glob(_MODEL)))
        if model.get("mp_world_size", 1) > 1:
            raise CheckpointError(
                f"{folder} was saved under tensor parallel, with a part of each matrix in every file.",
                hint="Make it universal first, with DeepSpeed's ds_to_universal, and convert that.",
            )
        self._ranks = [_load(file)["optimizer_state_dict"] for file in files]
        stage = int(self._ranks[0]["zero_stage"])
        expected = int(model.get("dp_world_size", len(files)))
        if len(files) != expected:
            raise CheckpointError(f"{folder} holds the files of {len(files)} of {expected} processes.")
        self.description = f"DeepSpeed ZeRO {stage} of {len(files)} processes"
        self.step = _step(model["global_steps"])
        self.rows_per_step = _rows_per_step(model)
        self._stage = stage
        self._shared: Mapping[str, str] = model["shared_params"]
        self._frozen = self._frozen_parameters(folder, model)
        shapes = model["param_shapes"]
        self._locations = _locations_of(shapes, stage, len(files))
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        inner = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
        self._weights = [rank[key] for rank in self._ranks]
        self._states = [rank[inner]["state"] for rank in self._ranks]
        self.param_groups = _settings(self._ranks[0][inner])

    def names(self) -> Collection[str]:
        """Trained and frozen, tied ones once."""
        return [*self._locations, *self._frozen]

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        """Pieces of all processes put together."""
        with _damage(self._folder / name):
            if name in self._frozen:
                return {"weight": self._frozen[name].float()}
            location = self._locations[name]
            found = {"weight": self._piece(location, self._weights)}
            group = _in_groups(self._weights[0], location.start)[0] if self._stage == 3 else location.group
            state = self._states[0].get(group, {})
            if MOMENTS[0] in state:
                for slot in MOMENTS:
                    of_groups = [[rank[group][slot] for group in sorted(rank)] for rank in self._states]
                    found[slot] = self._piece(location, of_groups)
                found["step"] = torch.as_tensor(float(state["step"]))
            return found

    def _piece(self, location: _Location, ranks: Sequence[Any]) -> torch.Tensor:
        """`ranks` holds, of each process, flat pieces by group."""
        numel = prod(location.shape)
        if self._stage == 3:
            length = -(-numel // len(ranks))
            group, start = _in_groups(ranks[0], location.start)
            parts = [rank[group].narrow(0, start, length) for rank in ranks]
        else:
            parts, begin = [], 0
            for rank in ranks:
                piece = rank[location.group]
                first, last = max(location.start, begin), min(location.start + numel, begin + piece.numel())
                if first < last:
                    parts.append(piece.narrow(0, first - begin, last - first))
                begin += piece.numel()
        return torch.cat(parts)[:numel].float().view(location.shape)

    def _frozen_parameters(self, folder: Path, model: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Name → a parameter that nobody trained."""
        shapes = model.get("frozen_param_shapes") or {}
        if self._stage < 3:
            return {name: model["module"][name] for name in shapes}
        models = [_load(file) for file in sorted(folder.glob(_MODEL), key=_rank)] if shapes else []
        found = {}
        for name, shape in shapes.items():
            whole = torch.cat([each["frozen_param_fragments"][name].view(-1) for each in models])
            found[name] = whole[: prod(shape)].view(tuple(shape))
        return found


class Universal(ThirdPartyCheckpoint):
    """Universal checkpoint, made by DeepSpeed's `ds_to_universal`: one folder per parameter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "zero"
        model = _load(min(folder.glob(_MODEL)))
        self.description = "a universal checkpoint of DeepSpeed"
        self.step = _step(model["global_steps"])
        self.rows_per_step = _rows_per_step(model)
        self._shapes = {_name(name): tuple(shape) for group in model["param_shapes"] for name, shape in group.items()}
        self._step = float(model["global_steps"] - model.get("skipped_steps", 0))
        common = self._folder / "optimizer_state.pt"
        self.param_groups = _settings(_load(common)) if common.is_file() else []

    def names(self) -> Collection[str]:
        """Return the names of all parameters that have a folder."""
        return [each.name for each in sorted(self._folder.iterdir()) if (each / "fp32.pt").is_file()]

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        """Its files."""
        found = {}
        with _damage(self._folder / name):
            for slot, file in (("weight", "fp32"), *((slot, slot) for slot in MOMENTS)):
                path = self._folder / name / f"{file}.pt"
                if path.is_file():
                    content = _load(path)
                    tensor = content["param"] if isinstance(content, dict) else content
                    found[slot] = tensor.float().view(self._shapes.get(name, tensor.shape))
            if MOMENTS[0] in found:
                path = self._folder / name / "step.pt"
                step = _load(path) if path.is_file() else self._step
                found["step"] = torch.as_tensor(float(step["param"] if isinstance(step, dict) else step))
        return found


def _locations_of(shapes: Iterable[Mapping[str, Sequence[int]]], stage: int, ranks: int) -> dict[str, _Location]:
    """Return the locations of parameters.

    Under ZeRO 1 and 2 a group is one run of elements, split into equal partitions. Under ZeRO 3 a process has an equal
    part of every parameter, one after the other through all groups.
    """
    locations = {}
    start = 0
    for group, members in enumerate(shapes):
        start = start if stage == 3 else 0
        for name, shape in members.items():
            locations[_name(name)] = _Location(group, start, tuple(shape))
            start += -(-prod(shape) // ranks) if stage == 3 else prod(shape)
    return locations


def _in_groups(groups: Sequence[torch.Tensor], start: int) -> tuple[int, int]:
    """In which of a process's pieces an element lies, and where in it."""
    for index, group in enumerate(groups):
        if start < group.numel():
            return index, start
        start -= group.numel()
    raise CheckpointError("The pieces of the checkpoint are shorter than its parameters.")


def _settings(optimizer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return Adam's settings for each parameter group."""
    groups = optimizer.get("param_groups", ())
    return [group for group in groups if {"lr", "betas", "eps"} <= group.keys()]


def _step(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError(f"global_steps is {value!r:.40}")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"param_shapes names a parameter {value!r:.40}")
    return value


def _rows_per_step(model: Mapping[str, Any]) -> int:
    config = model.get("ds_config") or {}
    whole = config.get("train_batch_size")
    if isinstance(whole, int):
        return whole
    micro, steps = config.get("train_micro_batch_size_per_gpu"), config.get("gradient_accumulation_steps", 1)
    if isinstance(micro, int) and isinstance(steps, int):
        return micro * steps * int(model.get("dp_world_size", 1))
    return 0
