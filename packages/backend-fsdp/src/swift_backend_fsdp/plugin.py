"""FSDP2: parameters, gradients and optimizer state in shards, gathered block by block.

Every hook is one line that leads to the file where the work is done; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import hookimpl
from swift_backend_fsdp.config import FsdpConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from swift.config.sections import Config
    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        ForwardResult,
        LocalWeights,
        ModelSource,
        Objective,
        ProcessLayout,
        Run,
        StepResult,
        Topology,
        Traffic,
        WeightStream,
    )
    from swift.data.batch import Batch
    from swift_backend_fsdp.model import MetaModel
    from swift_backend_fsdp.shard import FsdpState


class FsdpBackend:
    """PyTorch's FSDP2, alone or with tensor parallel, Ulysses or context parallel."""

    HOOK_API = HOOK_API
    config_model = FsdpConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "cp", "ulysses"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset(Trains),
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "torchao-nf4"}),
        optimizers=frozenset({Reads.ELEMENTS, Reads.BLOCKS, Reads.PARTS}),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image", "audio"}),
        cuts_media=True,
        calls_before_update=True,
        features=frozenset(
            {
                "train.compile",
                "train.gradient_checkpointing",
                "data.padding_free",
                "train.neftune_alpha",
                "train.pad_token",
                "optim.gradient_view",
                "optim.matrix_slots",
                "parallel.tp with modules",
            }
        ),
        roles=8,
    )

    @hookimpl
    def swift_check_plan(self, run: Run) -> None:
        from swift_backend_fsdp.plan import check_plan

        check_plan(run)

    @hookimpl
    def swift_check_model(self, run: Run, model_config: Any) -> None:
        from swift_backend_fsdp.plan import check_model

        check_model(run, model_config)

    @hookimpl
    def swift_setup(self, run: Run) -> Topology:
        from swift_backend_fsdp.topology import setup

        return setup(run)

    @hookimpl
    def swift_wrap_model(self, run: Run, source: ModelSource) -> MetaModel:
        from swift_backend_fsdp.model import build

        return build(run, source)

    @hookimpl
    def swift_shard(self, run: Run, model: MetaModel) -> FsdpState:
        from swift_backend_fsdp.shard import shard

        return shard(run, model)

    @hookimpl
    def swift_train_step(self, run: Run, state: FsdpState, batch: Batch, objective: Objective) -> StepResult:
        from swift_backend_fsdp.step import train_step

        return train_step(run, state, batch, objective)

    @hookimpl
    def swift_forward(self, run: Run, state: FsdpState, batch: Batch, objective: Objective) -> ForwardResult:
        from swift_backend_fsdp.step import forward

        return forward(run, state, batch, objective)

    @hookimpl
    def swift_save_checkpoint(self, state: FsdpState, writer: CheckpointWriter) -> bool:
        from swift_backend_fsdp.checkpoint import save

        save(state, writer)
        return True

    @hookimpl
    def swift_load_checkpoint(self, run: Run, state: FsdpState, reader: CheckpointReader) -> bool:
        from swift_backend_fsdp.checkpoint import load

        load(run, state, reader)
        return True

    @hookimpl
    def swift_iter_weights(self, state: FsdpState) -> WeightStream:
        from swift_backend_fsdp.weights import stream

        return stream(state)

    @hookimpl
    def swift_teardown(self, run: Run) -> bool:
        from swift_backend_fsdp.topology import teardown

        teardown(run)
        return True

    @hookimpl
    def swift_layout(self, config: Config, processes: int) -> ProcessLayout:
        from swift_backend_fsdp.plan import layout_of

        return layout_of(config, processes)

    @hookimpl
    def swift_variants(self) -> Mapping[str, Sequence[str]]:
        from swift_backend_fsdp.estimate import VARIANTS

        return VARIANTS

    @hookimpl
    def swift_estimate_memory(self, run: Run, weights: LocalWeights) -> Mapping[str, float]:
        from swift_backend_fsdp.estimate import estimate_memory

        return estimate_memory(run, weights)

    @hookimpl
    def swift_estimate_traffic(self, run: Run, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
        from swift_backend_fsdp.estimate import estimate_traffic

        return estimate_traffic(run, weights, micro_batches)
