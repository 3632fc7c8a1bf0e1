"""The training state of a model that torch's autograd trains, in one process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import ForwardResult, Objective, Run, Slot
from swift.data.batch import Batch
from swift.models.names import Piece, canonical_parameters
from swift.models.parts import rates_of_parts, trains_on_images
from swift.models.view import ViewModule
from swift.optim.build import build_optimizer, clip, parameter_groups
from swift.optim.placements import add_placements
from swift.optim.selected import slots_of
from swift.train.layer_rotation import LayerRotation
from swift.train.steps import Arithmetic, accumulate, score
from swift.train.sums import GlobalSums


class TorchState:
    """Model and optimizer of one process. Each process has the whole model, and gradients are all-reduced.

    The hooks of `swift.TorchBackend` call these methods. Override what your backend does differently:

    - `distribute`: shard the model, once;
    - `wrap`: what a training step calls instead of the view, such as DDP;
    - `make_optimizer`, and `local` where it knows parameters by other tensors;
    - `around` and `passes`: what surrounds each micro-batch, and how many passes every process makes;
    - `accumulate`, `score`: passes with and without gradient;
    - `reduce_gradients`, `clip`, `all_reduce`: communication of a step;
    - `slices`, `whole` and `part`: what this process has of a weight, and how the rest is gathered.
    """

    def __init__(self, run: Run, model: Any) -> None:
        self.step = 0
        self.arithmetic = Arithmetic.of(run)
        self.view: ViewModule = self.distribute(run, model)
        """The model as objectives see it; what evaluation calls."""
        self.slots: Mapping[str, Slot] = slots_of(run.config.optim)
        """What the optimizer keeps for each weight."""
        self.trains_encoder = trains_on_images(run, self.model)
        """Whether weights are trained that only images reach."""
        self.rotation = LayerRotation.of(run, self.model)
        """Which layers are trained in which step, where they rotate."""
        if self.rotation is not None:
            self.rotation.activate(0)
        self._prepare(run)

    def _prepare(self, run: Run) -> None:
        self.module = self.wrap(run)
        """What training calls: the view, or what wraps it."""
        self.optimizer = self.make_optimizer(run)

    def rotate(self, run: Run, step: int) -> None:
        """Train the layers of a step from here on, where they rotate: wrapper and optimizer are made for them alone."""
        if self.rotation is not None and self.rotation.activate(step):
            self._prepare(run)

    @property
    def model(self) -> torch.nn.Module:
        """The transformers (or PEFT) model itself."""
        return self.view.model

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that the optimizer updates."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    # --- before the first step ----------------------------------------------------------------------------------

    def distribute(self, run: Run, model: Any) -> ViewModule:
        """Return the view of the model that `swift_wrap_model` built, with its weights where they stay."""
        view: ViewModule = model
        return view

    def wrap(self, run: Run) -> torch.nn.Module:
        """Return what training calls."""
        return self.view

    def make_optimizer(self, run: Run) -> torch.optim.Optimizer:
        """Return the optimizer of the `optim` section over the trained parameters."""
        groups = self.parameter_groups(run)
        add_placements(groups, self.model)
        return build_optimizer(groups, run.config.optim, run.config.learning_rate, self.arithmetic.device)

    def parameter_groups(self, run: Run) -> list[dict[str, Any]]:
        """Return the trained parameters by weight decay and learning rate, with the `names` of each group."""
        config, named = run.config, self.model.named_parameters()
        return parameter_groups(named, config.optim, config.tuner, rates=rates_of_parts(config, self.model))

    # --- a step -------------------------------------------------------------------------------------------------

    def accumulate(self, run: Run, batch: Batch, objective: Objective) -> GlobalSums:
        """Run forward and backward passes over the micro-batches of this process."""
        self.module.train()
        if self.trains_encoder and self.passes_without_image(run):
            batch = batch.with_stand_ins()
        around, passes = self.around, self.passes(run, batch)
        return accumulate(self.module, batch, objective, self.arithmetic, around=around, passes=passes)

    def score(self, run: Run, batch: Batch, objective: Objective) -> ForwardResult:
        """Compute views and sums of the micro-batches of this process, without gradient."""
        all_reduce, passes = self.all_reduce, self.passes(run, batch)
        return score(self.view, self.model, batch, objective, self.arithmetic, all_reduce=all_reduce, passes=passes)

    def passes_without_image(self, run: Run) -> bool:
        """Return whether the encoder runs in micro-batches without an image too: others may wait for its gradients."""
        return run.world.size > 1

    def around(self, last: bool) -> AbstractContextManager[Any]:
        """Return a context for each micro-batch; `last` is whether it is the last one of the step."""
        return contextlib.nullcontext()

    def passes(self, run: Run, batch: Batch) -> int:
        """Return how many passes each process makes at least, where every pass is collective."""
        return 0

    def reduce_gradients(self, run: Run) -> None:
        """Make the gradients of this process's slice those of the global batch: add them up, never average.

        Every process adds up every trained parameter, in the same order: one without a gradient here has zeros.
        """
        if not dist.is_initialized():
            return
        for parameter in self.trained():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def unscale(self) -> None:
        """Undo the scale of the loss under fp16, and note an overflow."""
        self.arithmetic.scaler.unscale_(self.optimizer)

    def clip(self, run: Run) -> float:
        """Clip the whole gradient to `optim.max_grad_norm`, and return its norm from before."""
        return clip(self.trained(), run.config.optim.max_grad_norm or math.inf, self.optimizer)

    def drop_gradients(self) -> None:
        """Drop gradients that the optimizer does not know, after a step."""

    def all_reduce(self, table: torch.Tensor) -> None:
        """Add a tensor up, in place, over the processes that hold other slices of the batch."""
        if dist.is_initialized():
            dist.all_reduce(table)

    # --- checkpoints --------------------------------------------------------------------------------------------

    @property
    def local_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that keeps this process's state; another one where `optimizer` wraps it."""
        return self.optimizer

    def local(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return what the optimizer of this process knows a parameter by; None where it does not update it."""
        return parameter if parameter.requires_grad else None

    def slices(self, piece: Piece, parameter: torch.Tensor, held: torch.Tensor | None = None) -> Any:
        """Return where one tensor on disk lies in memory: in the parameter, or in `held`, which is like its shard.

        A tensor, or the `swift.toolkit.TensorSlices` that this process has.
        """
        return piece.view_of(parameter.detach() if held is None else held)

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the whole of a parameter. Collective where it has to be gathered."""
        return parameter.detach()

    def part(self, piece: Piece, parameter: torch.Tensor) -> torch.Tensor:
        """Return one tensor on disk of a parameter that holds several. Collective where it has to be gathered."""
        return piece.view_of(self.whole(parameter))

    def weights(self) -> dict[str, Any]:
        """Return the weights by name on disk, as live views."""
        return {
            piece.name: self.slices(piece, parameter)
            for pieces, parameter in canonical_parameters(self.model)
            for piece in pieces
        }
