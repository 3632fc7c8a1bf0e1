"""Run by torchrun: trains for a few steps, and lets Megatron save in its own format beside swift's checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    from swift.config.parse import config_from_mapping
    from swift.testing.subjects import conversations
    from swift.train.loop import Loop
    from swift.train.prepare import opened
    from swift_backend_megatron import engine

    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    with opened(config_from_mapping(settings), rows=conversations(13)) as job:
        Loop(job, []).run()
        with engine.active():
            save(job.state, folder / "iter_0000003")


def save(state: Any, folder: Path) -> None:
    """As Megatron's own training does it."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    form = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    chunks = [each.sharded_state_dict(metadata=form) for each in state.built.chunks]
    models = {"model": chunks[0]} if len(chunks) == 1 else {f"model{n}": each for n, each in enumerate(chunks)}
    optimizer = state.optimizer.sharded_state_dict(chunks[0] if len(chunks) == 1 else models, metadata=form)
    everything = {"iteration": 3, "checkpoint_version": 3.0, **models, "optimizer": optimizer}
    dist_checkpointing.save(everything, str(folder), validate_access_integrity=False)


if __name__ == "__main__":
    main()
