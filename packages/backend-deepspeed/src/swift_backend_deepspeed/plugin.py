"""DeepSpeed: ZeRO in all stages, offload, AutoTP and Ulysses, from its own JSON.

Every hook is one line that leads to the file where the work is done; nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import hookimpl
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import PRESETS, implied_settings, preset_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        ForeignCheckpoint,
        ForwardResult,
        LocalWeights,
        ModelSource,
        Objective,
        Run,
        StepResult,
        Topology,
        Traffic,
        TrainedState,
        WeightStream,
    )
    from swift.data.batch import Batch
    from swift_backend_deepspeed.model import BuiltModel
    from swift_backend_deepspeed.shard import DeepSpeedState


class DeepSpeedBackend:
    """ZeRO 0 to 3 with offload, alone, with Ulysses or with AutoTP."""

    HOOK_API = HOOK_API
    config_model = DeepSpeedOptions
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "ulysses"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        # ZeRO lays out what is trained once, in flat tensors.
        tuners=frozenset(Trains) - {Trains.TURNS},
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "bnb-int8"}),
        optimizers=frozenset({Reads.ELEMENTS}),
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
                "parallel.tp with modules",
            }
        ),
        roles=8,
    )

    @hookimpl
    def swift_check_plan(self, run: Run) -> None:
        from swift_backend_deepspeed.plan import check_plan

        check_plan(run)

    @hookimpl
    def swift_check_model(self, run: Run, model_config: Any) -> None:
        from swift_backend_deepspeed.plan import check_model

        check_model(run, model_config)

    @hookimpl
    def swift_setup(self, run: Run) -> Topology:
        from swift_backend_deepspeed.topology import setup

        return setup(run)

    @hookimpl
    def swift_wrap_model(self, run: Run, source: ModelSource) -> BuiltModel:
        from swift_backend_deepspeed.model import build

        return build(run, source)

    @hookimpl
    def swift_shard(self, run: Run, model: BuiltModel) -> DeepSpeedState:
        from swift_backend_deepspeed.shard import shard

        return shard(run, model)

    @hookimpl
    def swift_train_step(self, run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> StepResult:
        from swift_backend_deepspeed.step import train_step

        return train_step(run, state, batch, objective)

    @hookimpl
    def swift_forward(self, run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> ForwardResult:
        from swift_backend_deepspeed.step import forward

        return forward(run, state, batch, objective)

    @hookimpl
    def swift_save_checkpoint(self, state: DeepSpeedState, writer: CheckpointWriter) -> bool:
        from swift_backend_deepspeed.checkpoint import save

        save(state, writer)
        return True

    @hookimpl
    def swift_load_checkpoint(self, state: DeepSpeedState, reader: CheckpointReader) -> bool:
        from swift_backend_deepspeed.checkpoint import load

        load(state, reader)
        return True

    @hookimpl
    def swift_iter_weights(self, state: DeepSpeedState) -> WeightStream:
        from swift_backend_deepspeed.weights import stream

        return stream(state)

    @hookimpl
    def swift_teardown(self, run: Run) -> bool:
        from swift_backend_deepspeed.topology import teardown

        teardown(run)
        return True

    @hookimpl
    def swift_variants(self) -> Mapping[str, Sequence[str]]:
        from swift_backend_deepspeed.estimate import VARIANTS

        return VARIANTS

    @hookimpl
    def swift_estimate_memory(self, run: Run, weights: LocalWeights) -> Mapping[str, float]:
        from swift_backend_deepspeed.estimate import estimate_memory

        return estimate_memory(run, weights)

    @hookimpl
    def swift_estimate_traffic(self, run: Run, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
        from swift_backend_deepspeed.estimate import estimate_traffic

        return estimate_traffic(run, weights, micro_batches)

    @hookimpl
    def swift_core_settings(self, options: DeepSpeedOptions) -> Mapping[str, tuple[Any, str]]:
        return implied_settings(options.content)

    @hookimpl
    def swift_presets(self) -> Mapping[str, str]:
        return {name: preset_text(name) for name in PRESETS}

    @hookimpl
    def swift_read_foreign(self, folder: Path) -> ForeignCheckpoint | None:
        """Read what DeepSpeed's own `save_checkpoint` and `ds_to_universal` write."""
        from swift_backend_deepspeed.native import open_native

        return open_native(folder)

    @hookimpl
    def swift_write_foreign(self, state: TrainedState, folder: Path) -> bool:
        """Write a universal checkpoint, which any number of processes loads."""
        from swift_backend_deepspeed.universal import write_universal

        write_universal(state, folder)
        return True
