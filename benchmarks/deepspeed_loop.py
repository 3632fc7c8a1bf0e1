"""What one writes by hand with `deepspeed.initialize`, and nothing else.

torchrun --nproc_per_node N -m benchmarks.deepspeed_loop ORDER.json    trains, notes the memory of each process
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from benchmarks.bare_loop import BareLoop
from benchmarks.commands import ROWS
from benchmarks.sharded_loop import run


class DeepSpeedLoop(BareLoop):
    """A bare loop on every process, with DeepSpeed's engine in its middle."""

    config: ClassVar[dict[str, Any]] = {}
    """DeepSpeed's JSON."""

    def __init__(self, model: str | Path, chats: str | Path, learning_rate: float) -> None:
        import deepspeed

        super().__init__(model, chats, learning_rate)
        own = {
            "train_micro_batch_size_per_gpu": ROWS,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
        }
        config = json.loads(json.dumps({**self.config, **own}))
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=config, dist_init_required=False
        )
        self.model = self.engine

    def step(self, batch: Sequence[int]) -> tuple[float, int]:
        loss_sum, counts = self.losses(batch)
        dist.all_reduce(counts)
        loss = loss_sum / counts[0]
        self.engine.backward(loss * dist.get_world_size())  # DeepSpeed takes the mean of gradients
        self.engine.step()
        total = loss.detach()
        dist.all_reduce(total)
        return total.item(), int(counts[1])


def _prepare(order: dict[str, Any]) -> None:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    DeepSpeedLoop.config = order["deepspeed"]


if __name__ == "__main__":
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    run(DeepSpeedLoop, _prepare)
