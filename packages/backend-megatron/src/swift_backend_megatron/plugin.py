"""Megatron-Core: tensor, pipeline, context and expert parallel training of Hugging Face models.

Every hook is one line that leads to the file where the work is done; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import hookimpl
from swift_backend_megatron.config import MegatronConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from swift.config.sections import Config
    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        ForeignCheckpoint,
        ForwardResult,
        LayerSizes,
        LocalWeights,
        ModelSource,
        Objective,
        ProcessLayout,
        Run,
        StepResult,
        Topology,
        Traffic,
        TrainedState,
        WeightStream,
    )
    from swift.data.batch import Batch
    from swift_backend_megatron.built import MegatronModel
    from swift_backend_megatron.shard import MegatronState


class MegatronBackend:
    """Megatron-Core with mcore-bridge."""

    HOOK_API = HOOK_API
    config_model = MegatronConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset({Trains.FULL, Trains.LORA, Trains.START}),
        quantisers=frozenset(),
        optimizers=frozenset({Reads.ELEMENTS}),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image"}),
        cuts_media=True,
        calls_before_update=True,
        features=frozenset({"train.gradient_checkpointing", "train.pad_token", "backend.stages"}),
        roles=8,
    )

    @hookimpl
    def swift_check_plan(self, run: Run) -> None:
        from swift_backend_megatron.plan import check_plan

        check_plan(run)

    @hookimpl
    def swift_check_model(self, run: Run, model_config: Any) -> None:
        from swift_backend_megatron.plan import check_model

        check_model(run, model_config)

    @hookimpl
    def swift_setup(self, run: Run) -> Topology:
        from swift_backend_megatron.topology import setup

        return setup(run)

    @hookimpl
    def swift_wrap_model(self, run: Run, source: ModelSource) -> MegatronModel:
        from swift_backend_megatron.self_check import build_checked

        return build_checked(run, source)

    @hookimpl
    def swift_shard(self, run: Run, model: MegatronModel) -> MegatronState:
        from swift_backend_megatron.shard import shard

        return shard(run, model)

    @hookimpl
    def swift_train_step(self, run: Run, state: MegatronState, batch: Batch, objective: Objective) -> StepResult:
        from swift_backend_megatron.step import train_step

        return train_step(run, state, batch, objective)

    @hookimpl
    def swift_forward(self, run: Run, state: MegatronState, batch: Batch, objective: Objective) -> ForwardResult:
        from swift_backend_megatron.step import forward

        return forward(run, state, batch, objective)

    @hookimpl
    def swift_save_checkpoint(self, state: MegatronState, writer: CheckpointWriter) -> bool:
        from swift_backend_megatron.checkpoint import save

        save(state, writer)
        return True

    @hookimpl
    def swift_load_checkpoint(self, state: MegatronState, reader: CheckpointReader) -> bool:
        from swift_backend_megatron.checkpoint import load

        load(state, reader)
        return True

    @hookimpl
    def swift_iter_weights(self, state: MegatronState) -> WeightStream:
        from swift_backend_megatron.weights import stream

        return stream(state)

    @hookimpl
    def swift_teardown(self, run: Run) -> bool:
        from swift_backend_megatron.topology import teardown

        teardown(run)
        return True

    @hookimpl
    def swift_layout(self, config: Config, processes: int) -> ProcessLayout:
        from swift_backend_megatron.plan import layout_of

        return layout_of(config.parallel, processes)

    @hookimpl
    def swift_estimate_memory(self, run: Run, weights: LocalWeights) -> Mapping[str, float]:
        from swift_backend_megatron.estimate import estimate_memory

        return estimate_memory(run, weights)

    @hookimpl
    def swift_estimate_activations(self, run: Run, layer: LayerSizes) -> float:
        from swift_backend_megatron.estimate import estimate_activations

        return estimate_activations(run, layer)

    @hookimpl
    def swift_estimate_traffic(self, run: Run, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
        from swift_backend_megatron.estimate import estimate_traffic

        return estimate_traffic(run, weights, micro_batches)

    @hookimpl
    def swift_describe_plan(self, config: Config, processes: int) -> list[str]:
        from swift_backend_megatron.plan import describe

        return describe(config.parallel, processes)

    @hookimpl
    def swift_read_foreign(self, folder: Path) -> ForeignCheckpoint | None:
        """Read what Megatron itself saved."""
        from swift_backend_megatron.native import open_native

        return open_native(folder)

    @hookimpl
    def swift_write_foreign(self, state: TrainedState, folder: Path) -> bool:
        """Write a torch_dist checkpoint."""
        from swift_backend_megatron.native_writer import write_native

        write_native(state, folder)
        return True
