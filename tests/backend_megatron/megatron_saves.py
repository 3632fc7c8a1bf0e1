"""Trains for a few steps, and lets Megatron save in its own format beside swift's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil


def train_and_save(folder: Path) -> None:
    """Runs on every process."""
    from swift.parsing import config_from_mapping
    from swift.train.loop import Loop
    from swift.train.prepare import open_job
    from swift_backend_megatron import megatron_runtime
    from swift_testing.subjects import conversations

    settings = json.loads((folder / "settings.json").read_text())
    with open_job(config_from_mapping(settings), rows=conversations(13)) as job:
        Loop(job, []).run()
        with megatron_runtime.active():
            save(job.state, folder / "iter_0000003")
    for each in psutil.Process().children(recursive=True):
        each.kill()  # Megatron's saving keeps a process for the next one


FORM = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def save(state: Any, folder: Path) -> None:
    """As Megatron's own training does it."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    common = {"iteration": 3, "checkpoint_version": 3.0}
    dist_checkpointing.save({**common, **everything(state)}, str(folder), validate_access_integrity=False)


def load(state: Any, folder: Path) -> int:
    """The same; answers the step."""
    from megatron.core import dist_checkpointing

    found = dist_checkpointing.load(everything(state, is_loading=True), str(folder))
    for name, chunk in named(state).items():
        # Not strict: Megatron does not save what its attention keeps besides tensors, and goes on without it as well.
        missing, unexpected = chunk.load_state_dict(found[name], strict=False)
        assert not unexpected
        assert all(each.endswith("core_attention._extra_state") for each in missing), missing
    state.optimizer.load_state_dict(found["optimizer"])
    step: int = found["iteration"]
    return step


def named(state: Any) -> dict[str, Any]:
    """Parts of the model by what they are called in a checkpoint."""
    chunks = state.built.chunks
    return {"model": chunks[0]} if len(chunks) == 1 else {f"model{number}": each for number, each in enumerate(chunks)}


def everything(state: Any, *, is_loading: bool = False) -> dict[str, Any]:
    """Model and optimizer, sharded."""
    models = {name: chunk.sharded_state_dict(metadata=FORM) for name, chunk in named(state).items()}
    whole = models["model"] if len(models) == 1 else models
    return {**models, "optimizer": state.optimizer.sharded_state_dict(whole, is_loading, metadata=FORM)}
