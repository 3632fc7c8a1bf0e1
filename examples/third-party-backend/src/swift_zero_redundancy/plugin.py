"""What the backend can do, and which functions implement its hooks. Importing this module does not import torch."""

from pydantic import Field

from swift import HOOK_API, Capabilities, Section, hookimpl, lazy_hook
from swift.contracts import Traffic


class Options(Section):
    timeout_minutes: float = Field(10.0, gt=0, description="How long a process waits for the others before it fails")


class ZeroRedundancy:
    HOOK_API = HOOK_API
    config_model = Options
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate"}),
        precisions=frozenset({"float32", "bfloat16"}),
        tuners=frozenset({"full", "lora"}),
        features=frozenset({"train.gradient_checkpointing"}),
    )

    swift_setup = lazy_hook("swift_zero_redundancy.engine:setup")
    swift_wrap_model = lazy_hook("swift.toolkit:build_view")
    swift_shard = lazy_hook("swift_zero_redundancy.engine:State")
    swift_train_step = lazy_hook("swift_zero_redundancy.engine:train_step")
    swift_forward = lazy_hook("swift_zero_redundancy.engine:forward")
    swift_save_checkpoint = lazy_hook("swift_zero_redundancy.engine:save")
    swift_load_checkpoint = lazy_hook("swift_zero_redundancy.engine:load")
    swift_iter_weights = lazy_hook("swift_zero_redundancy.engine:weights")
    swift_teardown = lazy_hook("swift.toolkit:leave_group")

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
        size = 4 * weights.trained
        return [
            Traffic("gradients", "all_reduce", size, run.world.size),
            Traffic("updated weights", "all_gather", size, run.world.size),
        ]
