"""What the backend can do. Importing this module does not import torch."""

from swift import Capabilities, TorchBackend, hookimpl, lazy_hook
from swift.contracts import Traffic


class ShardedAdam(TorchBackend):
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate"}),
        precisions=frozenset({"float32", "bfloat16"}),
        tuners=frozenset({"full", "lora"}),
        features=frozenset({"train.gradient_checkpointing"}),
        calls_before_update=True,
    )

    swift_shard = lazy_hook("swift_sharded_adam_state:State")

    @hookimpl
    def swift_estimate_memory(self, run, weights):
        # Every process has weights and gradients whole, and the moments of the parameters that it owns.
        return {
            "weights": 4 * weights.trained + weights.frozen_bytes * weights.frozen,
            "gradients": 4 * weights.trained,
            "optimizer": weights.slot_bytes * weights.trained / run.world.size,
        }

    @hookimpl
    def swift_estimate_traffic(self, run, weights):
        kinds = {"gradients": "all_reduce", "updated weights": "all_gather"}
        return [Traffic(name, kind, 4 * weights.trained, run.world.size) for name, kind in kinds.items()]
