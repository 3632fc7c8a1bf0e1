"""Opening a checkpoint: is it whole, is it unaltered, is it of this run; then reading into any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from swift.checkpoint.checksums import check_sizes, check_sums
from swift.checkpoint.coordination import agree, comms_for
from swift.checkpoint.dcp_planners import fill
from swift.checkpoint.finite import INVALID_VALUES, invalid_tensors
from swift.checkpoint.folders import earlier_checkpoint
from swift.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from swift.checkpoint.names import owned_name, owner_of
from swift.checkpoint.storage import INDEX, StoredTensors, index_from_json
from swift.checkpoint.writers import owned_facts
from swift.errors import CheckpointError, SwiftError, listed
from swift.processes.comms import Comms
from swift.untrusted import inside, read_json

_LARGEST = 1 << 30
"""Bytes of an index: that of a model of many experts on thousands of processes has some hundred megabytes."""


class Checkpoint:
    """A checkpoint that is open for reading: the `CheckpointReader` that a backend sees."""

    def __init__(self, folder: Path, facts: Manifest, stored: StoredTensors, comms: Comms, owner: str = "") -> None:
        self.folder = folder
        self.facts = facts
        self.manifest: Mapping[str, Any] = facts.model_dump(mode="json")
        self._stored = stored
        self._comms = comms
        self._owner = owner

    def for_role(self, name: str) -> Checkpoint:
        """Return a reader of another role's tensors by their canonical names; this one reads the policy's."""
        if name not in self.facts.roles:
            held = ", ".join(self.facts.roles) or "none besides the policy"
            raise CheckpointError(
                f"{self.folder} has no {name}: it was saved by a run with other roles ({held}).",
                hint="Resume with the roles of the run, or start a new one without --resume_from_checkpoint.",
            )
        reader = Checkpoint(self.folder, self.facts, self._stored, self._comms, name)
        facts = owned_facts(self.facts.facts, name)
        reader.manifest = {**self.manifest, "adapter": self.facts.roles[name].adapter, "facts": facts}
        return reader

    def names(self) -> list[str]:
        """Return the canonical names of the role's tensors."""
        start = len(owned_name(self._owner, ""))
        return [name[start:] for name in self._stored.names() if owner_of(name) == self._owner]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored.index[owned_name(self._owner, name)].shape

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Fill these tensors in place (plain, DTensor or TensorSlices), reading only what they hold.

        Called on every process, each with its own tensors. Values are converted to the dtype of the target.
        """
        agree(self._comms, _failure_of(lambda: self._fill(dict(tensors)), self.folder))

    def read(self, name: str) -> torch.Tensor:
        """Return one whole tensor; on any process alone."""
        stored = owned_name(self._owner, name)
        if stored not in self._stored.index:
            raise CheckpointError(f"{self.folder} has no tensor {stored}.")
        try:
            tensor = self._stored.read(stored)
        except Exception as error:
            raise _unreadable(self.folder, error) from error
        self._check_finite({name: tensor})
        return tensor

    def _fill(self, tensors: dict[str, Any]) -> None:
        stored = {owned_name(self._owner, name): tensor for name, tensor in tensors.items()}
        missing = [name for name in stored if name not in self._stored.index]
        if missing:
            raise CheckpointError(
                f"{self.folder} lacks {listed(missing)}.",
                hint="It was saved with other trained weights or another optimizer: resume with the same settings.",
            )
        other = [
            f"{name} ({self.shape(name)} saved, {tuple(tensor.shape)} here)"
            for name, tensor in tensors.items()
            if self.shape(name) != tuple(tensor.shape)
        ]
        if other:
            raise CheckpointError(
                f"{self.folder} has other shapes: {listed(other)}.",
                hint="It was saved with another model or other adapter settings.",
            )
        fill(stored, self._stored)
        self._check_finite(tensors)

    def _check_finite(self, tensors: Mapping[str, Any]) -> None:
        names = [owned_name(self._owner, name) for name in invalid_tensors(tensors)]
        if names:
            raise CheckpointError(
                f"{self.folder} holds {INVALID_VALUES}, in {listed(names)}: training diverged, or the file is damaged.",
                hint=_instead_of(self.folder),
            )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint and check that its files are there, of the right size and unaltered.

    Called on every process, which share the reading of checksums between them.
    """
    comms = comms_for("checkpoint")
    opened: list[Checkpoint] = []
    agree(comms, _failure_of(lambda: opened.append(_open(folder, comms)), folder))
    return opened[0]


def facts_of(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint without opening it; on any process alone."""
    try:
        return read_manifest(folder)
    except CheckpointError as error:
        error.hint = error.hint or _instead_of(folder)
        raise


def check_resume(
    manifest: Mapping[str, Any],
    *,
    model_fingerprint: str,
    data_fingerprint: str,
    seed: int,
    adapter: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Refuse to go on with another model, data set, seed or adapter: the trajectory would not be the run's.

    `config` is the configuration now, with its global batch settled.
    """
    changed = []
    imported = manifest["facts"].get("imported")  # from another program: of its data nothing is known
    if manifest["model_fingerprint"] != model_fingerprint:
        saved = manifest["config"].get("model", {}).get("path")
        changed.append(f"the model{f' (it was {saved})' if saved else ''}")
    if not imported and manifest["data_fingerprint"] != data_fingerprint:
        saved = manifest["config"].get("data", {}).get("train")
        changed.append(f"the data or how it is encoded{f' (it was {listed(saved)})' if saved else ''}")
    if not imported and manifest["seed"] != seed:
        changed.append(f"the seed (it was {manifest['seed']}, now {seed})")
    elif not imported and _order_seed(manifest["config"], seed) != (now := _order_seed(config or {}, seed)):
        changed.append(f"the seed of the order of samples (it was {_order_seed(manifest['config'], seed)}, now {now})")
    changed += _adapter_changes(manifest["adapter"], adapter)
    changed += _setting_changes(manifest["config"], config or {})
    if changed:
        raise CheckpointError(
            f"The checkpoint of step {manifest['step']} belongs to another run. Changed: {'; '.join(changed)}.",
            hint="Resume with the settings of the run, or start a new one without --resume_from_checkpoint.",
        )


# What decides the shapes and the meaning of adapter weights.
_ADAPTER_KEYS = (
    "peft_type", "r", "lora_alpha", "target_modules", "modules_to_save", "use_dora", "use_rslora",
    "rank_pattern", "alpha_pattern", "init_lora_weights",
)  # fmt: skip


def _adapter_changes(saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    if saved is None or now is None:
        if saved is now:
            return []
        return ["the tuner (it was full fine-tuning)" if saved is None else "the tuner (it was an adapter)"]

    def plain(value: Any) -> Any:
        return sorted(set(value)) if isinstance(value, list | tuple | set) else value or None

    return [
        f"the adapter's {key} (it was {plain(saved.get(key))}, now {plain(now.get(key))})"
        for key in _ADAPTER_KEYS
        if plain(saved.get(key)) != plain(now.get(key))
    ]


# What is minimised, which rows a step takes, and what learns from them.
_DECISIVE = ("objective.name", "data.packing", "data.shuffle", "train.global_batch", "train.pad_token")


def _order_seed(config: Mapping[str, Any], seed: int) -> int:
    own = config.get("train", {}).get("data_seed")
    return seed if own is None else int(own)


def _setting_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = []
    for name in _DECISIVE:
        section, _, key = name.partition(".")
        before, after = saved.get(section, {}).get(key), now.get(section, {}).get(key)
        if None not in (before, after) and before != after:
            changes.append(f"{name} (it was {before}, now {after})")
    return changes


def _open(folder: Path, comms: Comms) -> Checkpoint:
    manifest = read_manifest(folder)
    check_sizes(folder, manifest.files)
    largest_first = sorted(manifest.files.items(), key=lambda item: -item[1].size)
    check_sums(folder, dict(largest_first[comms.rank :: comms.size]))
    if INDEX not in manifest.files:
        raise CheckpointError(f"The checkpoint {folder} is damaged: {MANIFEST} does not list {INDEX}.")
    file = inside(folder, INDEX, CheckpointError, source=str(folder))
    index = index_from_json(read_json(file, CheckpointError, limit=_LARGEST), folder)
    unlisted = {chunk.file for tensor in index.values() for chunk in tensor.chunks} - manifest.files.keys()
    if unlisted:
        raise CheckpointError(f"{folder / INDEX} is damaged: {MANIFEST} does not list {min(unlisted)}.")
    return Checkpoint(folder, manifest, StoredTensors(folder, index), comms)


def _failure_of(action: Callable[[], None], folder: Path) -> SwiftError | None:
    try:
        action()
    except CheckpointError as error:
        error.hint = error.hint or _instead_of(folder)
        return error
    except SwiftError as error:
        return error
    except Exception as error:
        failure = _unreadable(folder, error)
        failure.__cause__ = error
        return failure
    return None


def _unreadable(folder: Path, error: Exception) -> CheckpointError:
    reason = str(error).rstrip(".")
    return CheckpointError(f"The checkpoint {folder} cannot be read: {reason}.", hint=_instead_of(folder))


def _instead_of(folder: Path) -> str:
    """Return the hint for a damaged checkpoint: an earlier one that can be resumed from."""
    earlier = earlier_checkpoint(folder)
    while earlier is not None:
        try:
            check_sizes(earlier, read_manifest(earlier).files)
        except CheckpointError:
            earlier = earlier_checkpoint(earlier)
            continue
        return f"Resume from the previous one: --resume_from_checkpoint {earlier}"
    return f"There is no earlier one in {folder.parent}: start the run again."
