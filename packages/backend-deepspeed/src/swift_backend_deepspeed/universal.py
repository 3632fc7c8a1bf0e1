"""A universal checkpoint of DeepSpeed, written for `swift convert --to deepspeed`: a folder per trained parameter.

Every parameter has files of its own, so that one tensor is in memory at a time. This module does not import deepspeed.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from swift.contracts import TrainedState
from swift.errors import CheckpointError
from swift_backend_deepspeed.partitions import MOMENTS

_MODEL_STATES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
"""What ZeRO 1 and 2 look for, and ZeRO 3."""


def write_universal(state: TrainedState, folder: Path) -> None:
    """Write a folder that `load_checkpoint` reads when `checkpoint.load_universal` is on."""
    if not state.slots():
        raise CheckpointError(
            "The checkpoint has no state of AdamW, and DeepSpeed does not load one without.",
            hint="Its weights alone: swift convert --to hf",
        )
    tag = folder / f"global_step{state.step}_universal"
    zero = tag / "zero"
    for name in (name for group in state.groups for name in group):
        parameter_folder = zero / name
        parameter_folder.mkdir(parents=True)
        for file, slot in (("fp32", "weight"), *((slot, slot) for slot in MOMENTS)):
            torch.save({"param": state.read(name, slot)}, parameter_folder / f"{file}.pt")
        torch.save(state.read(name, "step"), parameter_folder / "step.pt")
    torch.save(_optimizer(state), zero / "optimizer_state.pt")
    for file in _MODEL_STATES:
        torch.save(_model(state), tag / file)
    (folder / "latest_universal").write_text(tag.name, encoding="utf-8")


def _optimizer(state: TrainedState) -> dict[str, Any]:
    # Learning rate, betas and weight decay stay what the engine's own configuration says.
    groups: list[dict[str, Any]] = [{"params": []} for names in state.groups if names]
    # One count for all: an integer, as DeepSpeed's Adams keep it. ZeRO 1 and 2 read the tensors next to the moments.
    inner = {"state": {0: {"step": state.step}}, "param_groups": groups}
    return {"param_groups": groups, "optimizer_state_dict": inner, "ds_version": version("deepspeed")}


def _model(state: TrainedState) -> dict[str, Any]:
    """Return the head of a checkpoint: weights are read from `zero`."""
    return {
        "module": {},
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [{name: torch.Size(state.shape(name)) for name in names} for names in state.groups if names],
        "frozen_param_shapes": None,
        "frozen_param_fragments": None,
        "shared_params": {},
        "lr_scheduler": {"last_batch_iteration": state.step - 1},
        "skipped_steps": 0,
        "global_steps": state.step,
        "global_samples": state.step * state.rows_per_step,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {"train_batch_size": state.rows_per_step} if state.rows_per_step else {},
        "ds_version": version("deepspeed"),
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
    }
