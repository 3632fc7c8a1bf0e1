"""Interface of tuners: what they need of a backend, what they train, their initial values, and their export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel


class Trains(StrEnum):
    """Requirement of a tuner. A backend lists those it can serve in `Capabilities.tuners`.

    The first four are what core's own tuners ask for, which a backend may implement in a way of its own. The others
    are for any other tuner: a backend that builds its model by `swift.toolkit.build_view` serves the first two of them.

    - `FULL`: All weights of the model, or some by pattern.
    - `START`: LoRA that begins as a part of the weights, which a second, frozen adapter takes out again (PiSSA, OLoRA),
      or where the first batches point (EVA, LoRA-GA). Served by `swift.toolkit.build_view` with `fill`; a backend with
      adapters of its own calls `read_initialization`.
    - `WEIGHTS`: Any choice of the model's own weights, which `attach` makes on a transformers model.
    - `MODULES`: Any modules of PEFT, which `attach` puts into a transformers model.
    - `ROTATION`: Other weights in other steps, as `Tuner.trained` chooses them: only these have gradients and optimizer
      state. Served by `swift.toolkit.TorchState`, where a backend can make its optimizer anew between two steps.
    """

    FULL = "full"
    LORA = "lora"
    DORA = "dora"
    START = "start"
    WEIGHTS = "weights"
    MODULES = "modules"
    ROTATION = "layer rotation"


class Acts(StrEnum):
    """Where modules of PEFT act on a linear layer, which decides what tensor parallel, cutting the layer, has to do.

    - `SUM`: Something is added to the outputs that depends on the inputs alone.
    - `INPUTS`: Inputs are changed before the layer sees them.
    - `SCALE`: Each output has a factor; or each input, where the module is marked `is_feedforward`.
    - `FACTOR`: Each weight has a factor, and what comes of that is added; `get_delta_weight` returns the factors.
    """

    SUM = "sum"
    INPUTS = "inputs"
    SCALE = "scale"
    FACTOR = "factor"


@dataclass(frozen=True)
class TunerContext:
    """Context of `Tuner.attach`, besides the model and the tuner's own options.

    - `say`: Show a line to the user.
    - `adapter`: `tuner.adapter`: a folder to start from.
    - `quantize`: `tuner.quantize`: how frozen weights are stored.
    - `frozen`: Modules of the parts that `tuner.freeze_vit` and its kin leave as they are, by name; none in a model of
      text. Core takes their gradient away after `attach`: an adapter on one of them would learn nothing.
    """

    seed: int
    say: Callable[[str], None]
    adapter: Path | None = None
    quantize: str = "none"
    frozen: frozenset[str] = frozenset()


class Tuner(Protocol):
    """One way of choosing what is trained. The entry point in `swift.tuners` names a class called without arguments.

    A tuner that trains other weights in other steps needs `Trains.ROTATION` and has one more method,
    `trained(names, step, options, seed) -> Collection[str]`: given the names on disk of all weights that `attach` has
    left to train, in the order of the model, it returns those that are trained at a step, counted from 0. It must
    depend on nothing but the arguments, so that all processes, and resumed runs, train the same. Whenever a step trains
    other weights than the step before, the optimizer begins anew.

    A tuner of modules runs under tensor parallel where it has a method `cut(options) -> Acts | None`, which says where
    its modules act. Without it, or where it returns None, `parallel.tp` is refused.

    - `options_model`: The keys of the section `tuner` that are the tuner's own. Core has `kind`, `quantize` and
      `adapter` for all.
    - `adapter`: How it is stored and exported. True: what is trained is a PEFT adapter, stored alone, which export can
      merge. False: weights of the model itself, stored and exported with all others.
    - `learning_rate`: The peak where the user names none.
    """

    options_model: type[BaseModel]
    adapter: bool
    learning_rate: float

    def needs(self, options: Any) -> frozenset[str]:
        """Return what a backend must serve, as `Trains`."""

    def attach(self, model: torch.nn.Module, options: Any, context: TunerContext) -> torch.nn.Module:
        """Return the model with `requires_grad` on exactly the parameters that are trained.

        The same on every process, and on the meta device too: nothing may be read from the weights, and what is drawn
        is drawn by `initial`. Core makes fp32 masters of what is trained.
        """

    def initial(self, name: str, shape: Sequence[int], options: Any, seed: int) -> torch.Tensor | None:
        """Return the whole tensor that an adapter's parameter begins with, in fp32 on the CPU, by its name on disk.

        None leaves it as `attach` made it, as for all parameters of a tuner without this method. It must depend on
        nothing but the arguments.
        """

    def lr_scale(self, name: str, options: Any) -> float:
        """Return the factor on the learning rate of a parameter, by its name in the model; 1 without this method."""
