"""Interface of optimizers: what they must see, the slots they keep, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel


class Reads(StrEnum):
    """The smallest part of a weight that an update must see whole. A backend declares which of them it can serve.

    - `ELEMENTS`: Each element by itself (Adam, Lion, SGD): any shard will do, a flat range of elements too.
    - `BLOCKS`: Runs of consecutive elements, such as those that share one scale in 8 bits.
    - `ROWS`: Whole rows and columns (Adafactor).
    - `MATRICES`: Whole matrices, in one process.
    - `PARTS`: Rectangular parts, and where they lie (`Placement`). What it needs of the others it gathers by itself, as
      `swift_tuning.matrix_sharding` does.
    """

    ELEMENTS = "elements"
    BLOCKS = "blocks"
    ROWS = "rows"
    MATRICES = "matrices"
    PARTS = "parts"


@dataclass(frozen=True)
class Slot:
    """One tensor that an optimizer keeps for each weight: `optim.<HF name>.<slot>` in a checkpoint.

    - `name`: Its key in `torch.optim.Optimizer.state[parameter]`.
    - `shape`: Of the shape of the weight, sharded as the weight is; one number, such as a count of steps; or a shape of
      its own, which is stored whole and only where weights are whole. `matrix` is a shape of its own too, for each
      tensor on disk by itself (`Placement.matrices`), which the processes that update it have whole:
      `StoresMatrixSlots`.
    - `dtype`: Of a number, as it is made when there is none yet; tensors like the weight have the weight's dtype.
    """

    name: str
    shape: Literal["like", "scalar", "own", "matrix"] = "like"
    dtype: str = "float32"


@dataclass(frozen=True)
class Matrix:
    """One tensor of a weight under its name in Hugging Face files: a flat range of the parameter that holds it."""

    name: str
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where the part of a weight lies that this process updates.

    Groups have `placements`, in the order of `params`, for an optimizer that reads `PARTS`.

    - `name`: In memory.
    - `shape`: Of the whole weight.
    - `region`: The rectangle of it that the parameter in the group is.
    - `matrices`: What it is on disk: one tensor, or one for each expert where a model keeps experts together.
    - `vocabulary`: Whether its rows are tokens or labels: an embedding, or a head.
    - `heads`: How many heads of attention its rows are, where it makes queries or keys.
    - `processes`: The process group that holds all parts of it, or None where this process has the whole.
    """

    name: str
    shape: tuple[int, ...]
    region: tuple[slice, ...]
    matrices: tuple[Matrix, ...]
    vocabulary: bool = False
    heads: int | None = None
    processes: Any = None


class Optimizer(Protocol):
    """One optimizer. The entry point in `swift.optimizers` names a class that is called without arguments.

    - `options_model`: The keys of the section `optim` that are the optimizer's own, such as `beta1`. Core has `lr`, the
      schedule, `weight_decay` and `max_grad_norm` for all of them.
    - `slots`: All that it keeps between steps. What is not among them is not in a checkpoint.
    """

    options_model: type[BaseModel]
    reads: Reads
    slots: tuple[Slot, ...]

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return how many bytes it keeps for each element of a weight of this shape, with its default options.

        A class whose bytes depend on options has `bytes_with_options(shape, options)` too, which `swift plan` asks.
        One that needs packages which its distribution does not install has `packages`: module → requirement for pip.
        """

    def make(self, groups: list[dict[str, Any]], options: BaseModel, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer over these parameter groups, whose updates are computed on `device`.

        Every group has `params`, `lr`, `weight_decay` and `lr_scale`. Its `lr` is set anew before every step; `update`
        must read it, and `weight_decay`, from the group.

        What is returned may keep its slots in another form in memory, such as 8 bits. It then has the methods of
        `StoresSlots`.
        """


@runtime_checkable
class UsesGradientView(Protocol):
    """A `torch.optim.Optimizer` whose gradients are taken at other weights than those that are saved and served.

    Its plugin has the attribute `gradient_view = True`, so that backends without the feature `optim.gradient_view`
    refuse it. Outside of a step, weights are those that are saved: nobody has to switch.
    """

    def to_gradient_view(self) -> None:
        """Make weights those at which gradients are taken. Called before the first micro-batch of a step."""

    def to_weights(self) -> None:
        """Make weights those that are saved, where `step` has not done it: after a step that was left out."""


@runtime_checkable
class ScalesGradients(Protocol):
    """A `torch.optim.Optimizer` whose `step` multiplies gradients itself: clipping them takes no pass of its own.

    - `gradient_factor`: 1.0 at first; set before each step by backends that clip by it.
    """

    gradient_factor: float


@runtime_checkable
class StoresSlots(Protocol):
    """A `torch.optim.Optimizer` that keeps its slots in another form than they have in a checkpoint."""

    def slot_values(self, parameter: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the declared slots of a parameter as they go into a checkpoint; none before its first step."""

    def take_slots(self, parameter: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
        """Keep slots that were read from a checkpoint."""


@runtime_checkable
class StoresMatrixSlots(Protocol):
    """A `torch.optim.Optimizer` with slots of the shape `matrix`: by the names of matrices, then of slots.

    What each process gives and takes is of the matrices that it updates; several may have the same ones.
    """

    def matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return what goes into a checkpoint; of a matrix that was not updated yet, nothing."""

    def empty_matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return memory for the slots of all matrices that this process updates, to be read into."""

    def take_matrix_slots(self, slots: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Keep slots that were read from a checkpoint."""
