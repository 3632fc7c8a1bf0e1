"""A hand-written training loop with FSDP2, or with `deepspeed.initialize`, only.

    torchrun --nproc_per_node N -m benchmarks.sharded_loop ORDER.json    trains, records the memory of each process

FSDP2: built without weights and sharded block by block; each process reads its shards. DeepSpeed: the bare loop.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.bare_loop import BareLoop
from benchmarks.commands import ROWS
from benchmarks.facts import MemoryWatch
from benchmarks.peer import read_order


class ShardedLoop(BareLoop):
    """A bare loop on every process, each with samples of its own."""

    def load(self, model: str | Path) -> Any:
        """Sharded on the meta device, then given memory and the weights in a file."""
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        config = AutoConfig.from_pretrained(model, dtype=torch.float32)
        with torch.device("meta"):
            module: Any = AutoModelForCausalLM.from_config(config)
        for block in module.model.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
        module.to_empty(device="cpu")
        module.tie_weights()
        module.model.rotary_emb = type(module.model.rotary_emb)(config)
        with safe_open(Path(model) / "model.safetensors", "pt") as file, torch.no_grad():
            for name, parameter in module.named_parameters():
                whole = file.get_tensor(name)
                parameter.copy_(distribute_tensor(whole, mesh, parameter.placements, src_data_rank=None))
        return module

    def step(self, batch: Sequence[int]) -> tuple[float, int]:
        loss_sum, counts = self.losses(batch)
        dist.all_reduce(counts)
        loss = loss_sum / counts[0]
        self.update(loss * dist.get_world_size())  # both engines take the mean of gradients
        total = loss.detach()
        dist.all_reduce(total)
        return total.item(), int(counts[1])

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeedLoop(ShardedLoop):
    """The same with DeepSpeed's engine in its middle."""

    config: ClassVar[dict[str, Any]] = {}

    def __init__(self, model: str | Path, chats: str | Path, learning_rate: float) -> None:
        import deepspeed

        super().__init__(model, chats, learning_rate)
        own = {"train_micro_batch_size_per_gpu": ROWS, "steps_per_print": 10**9, "zero_allow_untested_optimizer": True}
        config = json.loads(json.dumps({**self.config, **own}))
        self.model, *_ = deepspeed.initialize(
            model=self.model, optimizer=self.optimizer, config=config, dist_init_required=False
        )

    def load(self, model: str | Path) -> Any:
        return BareLoop.load(self, model)

    def update(self, loss: torch.Tensor) -> None:
        self.model.backward(loss)
        self.model.step()


def main() -> None:
    """Train on the batches of an order, and note this process's memory."""
    order = read_order()
    kind: type[BareLoop] = ShardedLoop
    if "deepspeed" in order:
        if not torch.cuda.is_available():
            os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        kind, DeepSpeedLoop.config = DeepSpeedLoop, order["deepspeed"]
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    rank = dist.get_rank()
    watch = MemoryWatch()
    loop = kind(order["model"], order["chats"], order["learning_rate"])
    watch.mark("loading")
    for batch in order["batches"][rank]:
        loop.step(batch)
    watch.mark("training")
    (Path(order["folder"]) / f"memory-{rank}.json").write_text(json.dumps({"mib": watch.end()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
