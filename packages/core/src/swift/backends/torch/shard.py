"""Optimizer, loss scaling and data parallel wrapping; the state that steps work on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from swift.backends.torch.config import TorchConfig
from swift.backends.torch.gradients import add_up
from swift.models.build import decoder_blocks
from swift.models.parts import rates_of_parts, reaches_trained, trains_on_images
from swift.models.step_copies import use_copies
from swift.optim.build import build_optimizer, parameter_groups
from swift.optim.placements import add_placements
from swift.optim.selected import slots_of
from swift.train.layer_rotation import Turns
from swift.train.steps import Arithmetic
from swift.tuners.selected import tuner_of

if TYPE_CHECKING:
    from swift.contracts import Run, Slot
    from swift.models.media import ProcessorReader
    from swift.models.view import ViewModule


@dataclass
class TorchState:
    """The training state of one process."""

    view: ViewModule
    """Answers views; what evaluation calls."""
    replica: torch.nn.Module
    """The same behind DDP when there are several processes; what training calls."""
    optimizer: torch.optim.Optimizer
    slots: Mapping[str, Slot]
    """What the optimizer keeps for each weight."""
    arithmetic: Arithmetic
    step: int = 0
    sees: bool = False
    """Whether weights are trained that only images reach."""
    turns: Turns | None = None
    """Who of the weights has a turn, where they take turns."""

    @property
    def model(self) -> torch.nn.Module:
        """The transformers (or PEFT) model itself."""
        return self.view.model

    def trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def shard(run: Run, model: ViewModule) -> TorchState:
    """Nothing is cut here: every process keeps a whole replica, and gradients are added up."""
    turns = Turns.of(run, model.model)
    if turns is not None:
        turns.take(0)
    arithmetic = Arithmetic.of(run)
    alone = run.world.size == 1
    if alone and arithmetic.compute is not torch.float32 and not tuner_of(run.config.tuner).adapter:
        use_copies(decoder_blocks(model.model))
    return TorchState(
        view=model,
        replica=model if alone else _data_parallel(run, model, arithmetic.device),
        optimizer=_optimizer(run, model, arithmetic.device),
        slots=slots_of(run.config.optim),
        arithmetic=arithmetic,
        sees=trains_on_images(run, model.model),
        turns=turns,
    )


def take_turn(run: Run, state: TorchState, step: int) -> None:
    """Let the weights of a step have their turn, where they take turns: optimizer and buckets are for them alone."""
    if state.turns is None or not state.turns.take(step):
        return
    device = state.arithmetic.device
    state.replica = _data_parallel(run, state.view, device) if run.world.size > 1 else state.view
    state.optimizer = _optimizer(run, state.view, device)


def _optimizer(run: Run, view: ViewModule, device: torch.device) -> torch.optim.Optimizer:
    config = run.config
    groups = parameter_groups(
        view.model.named_parameters(), config.optim, config.tuner, rates=rates_of_parts(config, view.model)
    )
    add_placements(groups, view.model)
    return build_optimizer(groups, config.optim, config.learning_rate, device)


def _data_parallel(run: Run, view: ViewModule, device: torch.device) -> DistributedDataParallel:
    options = run.options(TorchConfig)
    reader = run.media_reader if trains_on_images(run, view.model) else None
    reached = reaches_trained(view, cast("ProcessorReader | None", reader))
    # Said of a mixture where each expert has had a token in the first micro-batch.
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    with warnings.catch_warnings():
        # Newer torch has another name for it, which the oldest one that we support does not know.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        replica = DistributedDataParallel(
            view,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_mb,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=not reached,  # it would wait for their gradients otherwise
        )
    replica.register_comm_hook(None, add_up)
    return replica
