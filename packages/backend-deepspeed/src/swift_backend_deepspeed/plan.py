"""Which plans cannot be honoured, before anything is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.errors import UnsupportedPlan
from swift_backend_deepspeed.ds_json import check_batch, offload_device, stage_of

if TYPE_CHECKING:
    from swift.contracts import Run
    from swift_backend_deepspeed.config import DeepSpeedOptions


def options_of(run: Run) -> DeepSpeedOptions:
    """The backend's own section."""
    return run.backend_options  # type: ignore[return-value]  # validated by config_model


def data_size(run: Run) -> int:
    """Processes that train on samples of their own."""
    return run.world.size // (run.config.parallel.ulysses * run.config.parallel.tp)


def check_plan(run: Run) -> None:
    """Refuse what sizes, stage, tuner or machine rule out."""
    config, world = run.config, run.world.size
    parallel, tuner = config.parallel, config.tuner
    content = options_of(run).content
    stage = stage_of(content)
    sharing = parallel.ulysses * parallel.tp
    replicas = (parallel.dp_replicate or 1) * (parallel.dp_shard or 1)
    given = parallel.dp_replicate is not None or parallel.dp_shard is not None
    if world % sharing or (given and world != replicas * sharing):
        wanted = replicas * sharing
        product = " × ".join(
            f"{name} {size}"
            for name, size in (
                ("dp_replicate", parallel.dp_replicate), ("dp_shard", parallel.dp_shard),
                ("ulysses", parallel.ulysses), ("tp", parallel.tp),
            )
            if size not in (None, 1)
        )  # fmt: skip
        raise UnsupportedPlan(
            f"The plan {product or 'dp 1'} takes {wanted} processes, but {world} were started.",
            hint=f"Start with --nproc {wanted}" + ("." if given else " or a multiple of it."),
        )
    if stage == 3 and tuner.quantize != "none":
        raise UnsupportedPlan(
            f"ZeRO 3 cuts weights into flat pieces, which {tuner.quantize} cannot be cut into.",
            hint="Type --deepspeed zero2 (each process keeps the quantised weights), or --backend fsdp to shard them.",
        )
    if config.optim.name != "adamw":
        raise UnsupportedPlan(
            f"ZeRO updates flat pieces of weights, and {config.optim.name} needs whole tensors or kernels of its own.",
            hint="Type --optim.name adamw, or --backend torch.",
        )
    _check_offload(run)
    check_batch(content, config, data_size(run))


def _check_offload(run: Run) -> None:
    content = options_of(run).content
    stage = stage_of(content)
    if offload_device(content, "offload_optimizer") != "none" and stage == 0:
        raise UnsupportedPlan(
            "zero_optimization.offload_optimizer needs a ZeRO stage from 1: stage 0 shards nothing.",
            hint='Write "stage": 2, or type --deepspeed zero2_offload.',
        )
    for part in ("offload_optimizer", "offload_param"):
        if offload_device(content, part) == "nvme":
            raise UnsupportedPlan(
                f"zero_optimization.{part} to nvme is not offered yet: what is swapped out could not be checkpointed.",
                hint='Write "device": "cpu".',
            )
