"""Interfaces of checkpoints, swift's own and those of other programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from swift.contracts.model import ModelSource


class CheckpointWriter(Protocol):
    """Interface through which a backend writes its shard of a checkpoint."""

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Add tensors by canonical name: plain, DTensor or `TensorSlices`. Called once, on every process."""

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write tensors one whole tensor at a time, where views are not valid; the main process writes."""

    def facts(self, facts: Mapping[str, Any]) -> None:
        """JSON values of this backend for the manifest; main process's are kept."""


class ThirdPartyCheckpoint(Protocol):
    """A checkpoint in a backend's own format, as returned by the hook `swift_read_third_party`.

    It may have three more methods. `attach(source)` is given the model before anything is read; `names` and `read`
    then go by names on disk. `left_out()` returns the names of tensors that it holds and that are not among what is
    trained. `labels()` returns how many scores per text the head of a model has that was trained to return scores.

    - `description`: What it is: 'DeepSpeed ZeRO 2 of 8 processes'.
    - `step`: Updates that were made.
    - `rows_per_step`: Samples per update; 0 where that is not known.
    - `total_steps`: Updates that were planned; 0 where that is not known.
    - `param_groups`: The settings of AdamW's groups, under torch's keys, where they are known.
    """

    description: str
    step: int
    rows_per_step: int
    total_steps: int = 0
    param_groups: Sequence[Mapping[str, Any]] = ()

    def names(self) -> Collection[str]:
        """Names of the parameters in memory, tied ones once: those of the transformers or PEFT model."""

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        """Return one parameter: `weight` in fp32, and `exp_avg`, `exp_avg_sq` and `step` if it was trained by then."""


class TrainedState(Protocol):
    """A checkpoint of swift for `swift_write_third_party`, by parameters of the transformers or PEFT model.

    - `step`: Updates that were made.
    - `rows_per_step`: Samples per update; 0 where that is not known.
    - `total_steps`: Updates of the whole training; 0 where that is not known.
    - `groups`: Names in memory of what is trained: with weight decay, and without.
    - `adapter`: The PEFT configuration when adapters were trained.
    - `source`: The model that training started from.
    - `optim`: The `optim` section.
    - `peak`: The highest learning rate of the schedule.
    - `min_lr`: Its learning rate at the end.
    - `learning_rate`: Of the next update.
    """

    step: int
    rows_per_step: int
    total_steps: int
    warmup_steps: int
    groups: list[list[str]]
    adapter: Mapping[str, Any] | None
    source: ModelSource
    optim: Any
    peak: float
    min_lr: float
    learning_rate: float

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one parameter."""

    def slots(self) -> list[str]:
        """Names of the optimizer's slots of every parameter: `exp_avg`, `exp_avg_sq` and `step`, or none."""

    def read(self, name: str, slot: str) -> torch.Tensor:
        """Return one tensor in fp32, whole: the slot `weight`, or one of `slots`."""

    def read_stored(self, name: str, slot: str) -> torch.Tensor:
        """Read a tensor by its name in Hugging Face files.

        Any weight of the model can be read; one that was not trained has its initial values, and zeros for the
        optimizer's slots.
        """


class CheckpointReader(Protocol):
    """Interface through which a backend reads its shard of a checkpoint."""

    folder: Path
    manifest: Mapping[str, Any]

    def names(self) -> list[str]:
        """Canonical names of all tensors."""

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Fill these tensors in place (plain, DTensor or `TensorSlices`), reading only what they hold."""

    def read(self, name: str) -> torch.Tensor:
        """Return one whole tensor."""
