"""Writer of checkpoints of transformers' Trainer, for its `train(resume_from_checkpoint=...)`."""

from __future__ import annotations

import functools
import mmap
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import LambdaLR

from swift.checkpoint import Checkpoint
from swift.config.own_options import AdamOptions
from swift.terminal import progress
from swift_migrate.convert.hf_folder import OPTIMIZER, STATE
from swift_migrate.convert.stored_state import StoredState

SCHEDULER = "scheduler.pt"
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_optimizer(folder: Path, state: StoredState) -> None:
    """Write optimizer.pt and scheduler.pt.

    The file is first written from fake tensors and mapped, then filled parameter by parameter, so that only one is in
    memory.
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
    """Write trainer_state.json with the progress of training, without its log."""
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
    """Return the Trainer's optimizer and scheduler at this step, with a dummy tensor for each group."""
    adam = state.optim.options(AdamOptions)
    decays = [state.optim.weight_decay, *(0.0 for _ in state.groups[1:])]
    groups = [{"params": [torch.zeros(1)], "weight_decay": decay} for decay in decays]
    optimizer = torch.optim.AdamW(groups, lr=state.peak, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)
    ratio = state.learning_rate / state.peak
    # A partial, as in transformers' schedules, so that its state dict is the same.
    scheduler = LambdaLR(optimizer, functools.partial(lambda _, value: value, value=ratio))
    scheduler.last_epoch = state.step
    scheduler._step_count = state.step + 1
    scheduler._last_lr = [state.learning_rate for _ in groups]
    for group in optimizer.param_groups:
        group["lr"] = state.learning_rate
    return optimizer, scheduler


def _param_groups(optimizer: torch.optim.Optimizer, state: StoredState) -> list[dict[str, Any]]:
    """Return the groups with consecutive parameter numbers, as in a state dict."""
    found, start = [], 0
    for group, names in zip(optimizer.param_groups, state.groups, strict=True):
        found.append({**group, "params": list(range(start, start + len(names)))})
        start += len(names)
    return found
