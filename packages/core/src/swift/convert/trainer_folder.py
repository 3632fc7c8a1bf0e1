"""A checkpoint as transformers' Trainer writes it, for its `train(resume_from_checkpoint=...)`."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import LambdaLR

from swift.checkpoint.load import Checkpoint
from swift.config.own_options import AdamOptions
from swift.convert.hf_folder import OPTIMIZER, STATE
from swift.convert.stored_state import StoredState
from swift.terminal import progress

SCHEDULER = "scheduler.pt"
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_optimizer(folder: Path, state: StoredState) -> None:
    """optimizer.pt and scheduler.pt.

    The file is laid out first, from tensors without memory, and mapped; then one parameter after the other is read
    into it. So no more than one is ever held.
    """
    optimizer, scheduler = _like_the_trainers(state)
    names = [name for group in state.groups for name in group]
    with FakeTensorMode():
        empty = {
            number: {"step": torch.empty(()), **{slot: torch.empty(state.shape(name)) for slot in MOMENTS}}
            for number, name in enumerate(names)
        }
    file = folder / OPTIMIZER
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save({"state": empty, "param_groups": _param_groups(optimizer, state)}, file)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        mapped: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    for number, name in enumerate(progress(names, "Converting", total=len(names))):
        for slot in ("step", *MOMENTS):
            mapped["state"][number][slot].copy_(state.read(name, slot))
    torch.save(scheduler.state_dict(), folder / SCHEDULER)


def write_trainer_state(folder: Path, state: StoredState, checkpoint: Checkpoint) -> None:
    """trainer_state.json: how far training is. What was logged stays behind."""
    from transformers import TrainerControl, TrainerState

    done: Any = checkpoint.manifest["facts"].get("progress", {})
    trained = TrainerState(
        epoch=float(done.get("epoch", 0.0)),
        global_step=state.step,
        max_steps=state.total_steps,
        num_train_epochs=int(-(-state.config.train.epochs // 1)),
        train_batch_size=state.config.train.micro_batch,
        stateful_callbacks=[TrainerControl()],  # as the Trainer itself does
    )
    trained.save_to_json(str(folder / STATE))


def _like_the_trainers(state: StoredState) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Its optimizer and scheduler at this step, over a dummy for every group."""
    adam = state.optim.options(AdamOptions)
    groups = [{"params": [torch.zeros(1)], "weight_decay": decay} for decay in _decays(state)]
    optimizer = torch.optim.AdamW(groups, lr=state.peak, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)
    share = state.learning_rate / state.peak
    # A partial, as transformers' schedules are: nothing of it is saved but that it is one.
    scheduler = LambdaLR(optimizer, functools.partial(lambda _, value: value, value=share))
    scheduler.last_epoch = state.step
    scheduler._step_count = state.step + 1
    scheduler._last_lr = [state.learning_rate for _ in groups]
    for group in optimizer.param_groups:
        group["lr"] = state.learning_rate
    return optimizer, scheduler


def _decays(state: StoredState) -> Iterator[float]:
    for index, _ in enumerate(state.groups):
        yield state.optim.weight_decay if index == 0 else 0.0


def _param_groups(optimizer: torch.optim.Optimizer, state: StoredState) -> list[dict[str, Any]]:
    """Assign consecutive numbers to parameters over all groups, as a state dict does."""
    found, start = [], 0
    for group, names in zip(optimizer.param_groups, state.groups, strict=True):
        found.append({**group, "params": list(range(start, start + len(names)))})
        start += len(names)
    return found
