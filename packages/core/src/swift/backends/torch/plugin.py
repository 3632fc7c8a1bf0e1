"""The built-in backend: one process, or data parallel (DDP). Registered through an entry point like anyone's.

Every hook is one line that leads to the file where the work is done; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.backends.torch.config import TorchConfig
from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from swift.backends.torch.shard import TorchState
    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        ForwardResult,
        LocalWeights,
        ModelSource,
        Objective,
        Run,
        StepResult,
        Topology,
        Traffic,
        WeightStream,
    )
    from swift.data.batch import Batch
    from swift.models.view import ViewModule


class TorchBackend:
    """Plain PyTorch: the reference that other backends are compared with."""

    HOOK_API = HOOK_API
    config_model = TorchConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset(Trains),
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "bnb-int8", "torchao-nf4"}),
        optimizers=frozenset(Reads),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image", "audio"}),
        calls_before_update=True,
        features=frozenset(
            {
                "train.compile",
                "train.gradient_checkpointing",
                "model.liger",
                "data.padding_free",
                "train.neftune_alpha",
                "train.pad_token",
                "optim.gradient_view",
                "optim.matrix_slots",
            }
        ),
        roles=8,
    )

    @hookimpl
    def swift_check_plan(self, run: Run) -> None:
        from swift.backends.torch.plan import check_plan

        check_plan(run)

    @hookimpl
    def swift_setup(self, run: Run) -> Topology:
        from swift.backends.torch.topology import setup

        return setup(run)

    @hookimpl
    def swift_wrap_model(self, run: Run, source: ModelSource) -> ViewModule:
        from swift.backends.torch.model import build

        return build(run, source)

    @hookimpl
    def swift_shard(self, run: Run, model: ViewModule) -> TorchState:
        from swift.backends.torch.shard import shard

        return shard(run, model)

    @hookimpl
    def swift_train_step(self, run: Run, state: TorchState, batch: Batch, objective: Objective) -> StepResult:
        from swift.backends.torch.step import train_step

        return train_step(run, state, batch, objective)

    @hookimpl
    def swift_forward(self, run: Run, state: TorchState, batch: Batch, objective: Objective) -> ForwardResult:
        from swift.backends.torch.step import forward

        return forward(run, state, batch, objective)

    @hookimpl
    def swift_save_checkpoint(self, state: TorchState, writer: CheckpointWriter) -> bool:
        from swift.backends.torch.checkpoint import save

        save(state, writer)
        return True

    @hookimpl
    def swift_load_checkpoint(self, run: Run, state: TorchState, reader: CheckpointReader) -> bool:
        from swift.backends.torch.checkpoint import load

        load(run, state, reader)
        return True

    @hookimpl
    def swift_iter_weights(self, state: TorchState) -> WeightStream:
        from swift.backends.torch.weights import stream

        return stream(state)

    @hookimpl
    def swift_teardown(self) -> bool:
        from swift.processes.device import leave_group

        leave_group()
        return True

    @hookimpl
    def swift_estimate_memory(self, run: Run, weights: LocalWeights) -> Mapping[str, float]:
        from swift.backends.torch.estimate import estimate_memory

        return estimate_memory(run, weights)

    @hookimpl
    def swift_estimate_traffic(self, run: Run, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
        from swift.backends.torch.estimate import estimate_traffic

        return estimate_traffic(run, weights, micro_batches)
