"""What the backend can do, and one line per hook. Importing this module does not import torch."""

from pydantic import Field

from swift import HOOK_API, Capabilities, Section, hookimpl
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

    @hookimpl
    def swift_setup(self, run):
        from swift_zero_redundancy import engine

        return engine.setup(run)

    @hookimpl
    def swift_wrap_model(self, run, source):
        from swift.toolkit import build_view

        return build_view(run, source)

    @hookimpl
    def swift_shard(self, run, model):
        from swift_zero_redundancy import engine

        return engine.State(run, model)

    @hookimpl
    def swift_train_step(self, run, state, batch, objective):
        from swift_zero_redundancy import engine

        return engine.train_step(run, state, batch, objective)

    @hookimpl
    def swift_forward(self, state, batch, objective):
        import torch.distributed as dist

        from swift.toolkit import score

        return score(state.view, state.view.model, batch, objective, state.arithmetic, all_reduce=dist.all_reduce)

    @hookimpl
    def swift_save_checkpoint(self, state, writer):
        from swift_zero_redundancy import engine

        writer.tensors(engine.tensors(state))

    @hookimpl
    def swift_load_checkpoint(self, state, reader):
        from swift_zero_redundancy import engine

        engine.load(state, reader)

    @hookimpl
    def swift_iter_weights(self, state):
        from swift.toolkit import canonical_weights

        return canonical_weights(state.view.model)

    @hookimpl
    def swift_teardown(self):
        from swift.toolkit import leave_group

        leave_group()

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
