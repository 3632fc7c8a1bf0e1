"""Which plans cannot be honoured, before anything is set up."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config.own_options import LoraOptions
from swift.config.sections import TunerSection
from swift.contracts import ProcessLayout, RequestedRun
from swift.errors import ConfigError, UnsupportedLayout
from swift.models.sizes import check_heads, check_widths
from swift.optim.selected import slots_of
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import check_batch, is_on, offload_device, stage_of

_CHANGE_BITS = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "use_all_reduce_for_fetch_params",
)
"""Keys under which what is gathered is equal as numbers, and not as bits."""


def data_size(run: RequestedRun) -> int:
    """Return the number of processes that train on samples of their own."""
    return ProcessLayout.of(run.config.parallel, run.world.size).data


def check_plan(run: RequestedRun) -> None:
    """Refuse what sizes, stage, tuner or machine rule out."""
    config = run.config
    parallel, tuner = config.parallel, config.tuner
    content = run.options(DeepSpeedOptions).content
    stage = stage_of(content)
    slices = data_size(run)
    if stage == 3 and tuner.quantize != "none":
        _check_quantised(content, tuner)
    if parallel.tp > 1:
        _check_tensor_parallel(run, stage)
    _check_slots(run)
    _check_offload(run)
    check_batch(content, config, slices)


def _check_quantised(content: dict[str, Any], tuner: TunerSection) -> None:
    """Refuse what takes packed weights for numbers, under ZeRO 3."""
    if tuner.options(LoraOptions).dora:
        raise UnsupportedLayout(
            "tuner.dora computes with whole matrices, and ZeRO 3 gathers those of tuner.quantize "
            f"{tuner.quantize} for their layers alone.",
            hint="Type --deepspeed zero2, or --tuner.dora false.",
        )
    zero = content["zero_optimization"]
    keys = [f"zero_optimization.{key}" for key in _CHANGE_BITS if zero.get(key)]
    if is_on(content, "torch_autocast"):
        keys.append("torch_autocast")
    if keys:
        raise UnsupportedLayout(
            f"DeepSpeed's {keys[0]} changes bits of weights on their way to other processes, which those of "
            f"tuner.quantize {tuner.quantize} do not survive.",
            hint='Leave the key out, or write "stage": 2.',
        )


def _check_slots(run: RequestedRun) -> None:
    """Refuse optimizers whose state cannot be found again in flat shards."""
    name = run.config.optim.name
    slots = slots_of(run.config.optim).values()
    other = [slot.name for slot in slots if slot.shape == "own" or (slot.shape == "scalar" and slot.name != "step")]
    if other:
        raise UnsupportedLayout(
            f"ZeRO keeps flat shards of what is like the weights, and one count of steps; optim.name {name} keeps "
            f"{other[0]}.",
            hint="Type --optim.name adamw, or --backend torch.",
        )


def _check_tensor_parallel(run: RequestedRun, stage: int) -> None:
    parallel, tuner = run.config.parallel, run.config.tuner
    if stage == 3:
        raise UnsupportedLayout(
            f"parallel.tp {parallel.tp} cannot be combined with ZeRO 3: weights are cut into flat pieces as they are "
            "read, before AutoTP could cut matrices.",
            hint="Type --deepspeed zero2 or zero1 with --parallel.tp, zero3 without it, or --backend fsdp for both.",
        )
    if parallel.ulysses > 1:
        raise UnsupportedLayout(
            f"DeepSpeed does not combine parallel.tp {parallel.tp} with parallel.ulysses {parallel.ulysses}.",
            hint="Type --parallel.tp 1 or --parallel.ulysses 1, or --backend fsdp for both.",
        )
    if tuner.quantize != "none" or tuner.options(LoraOptions).dora:
        dora = "tuner.dora, whose magnitudes belong to whole rows,"
        what = f"tuner.quantize {tuner.quantize}" if tuner.quantize != "none" else dora
        raise UnsupportedLayout(
            f"{what} cannot be used with parallel.tp {parallel.tp}: AutoTP cuts plain matrices.",
            hint="Type --parallel.tp 1",
        )


def _check_offload(run: RequestedRun) -> None:
    content = run.options(DeepSpeedOptions).content
    stage = stage_of(content)
    if offload_device(content, "offload_optimizer") != "none" and stage == 0:
        raise UnsupportedLayout(
            "zero_optimization.offload_optimizer needs a ZeRO stage from 1: stage 0 shards nothing.",
            hint='Write "stage": 2, or type --deepspeed zero2_offload.',
        )
    if offload_device(content, "offload_param") == "nvme":
        raise UnsupportedLayout(
            "zero_optimization.offload_param to nvme is not offered: weights on a disk could not be streamed.",
            hint='Write "device": "cpu"; offload_optimizer, which is three times as big, can go to nvme.',
        )
    if offload_device(content, "offload_optimizer") == "nvme":
        _check_nvme(run, content["zero_optimization"]["offload_optimizer"], stage)


def _check_nvme(run: RequestedRun, section: Mapping[str, Any], stage: int) -> None:
    if stage != 3:
        raise UnsupportedLayout(
            f"ZeRO {stage} keeps the optimizer's state in memory: only stage 3 swaps it to nvme.",
            hint='Write "stage": 3, or "device": "cpu".',
        )
    if run.config.optim.name != "adamw":
        raise UnsupportedLayout(
            f"The optimizer's state is swapped to nvme for adamw alone, and optim.name is {run.config.optim.name}.",
            hint='Type --optim.name adamw, or write "device": "cpu".',
        )
    if section.get("pipeline_read") or section.get("pipeline_write"):
        raise UnsupportedLayout(
            "offload_optimizer.pipeline_read and pipeline_write keep pieces in flight, which a checkpoint would miss.",
            hint="Leave them out.",
        )
    if run.config.checkpoint.asynchronous:
        raise UnsupportedLayout(
            "checkpoint.asynchronous is on, but state on a disk is read and written again for a checkpoint, which "
            "training has to wait for.",
            hint="Type --checkpoint.asynchronous false",
        )
    nvme_path = section.get("nvme_path")
    if not nvme_path:
        raise ConfigError("offload_optimizer to nvme needs a folder.", hint='Write "nvme_path": "/path/on/the/disk".')
    folder = Path(str(nvme_path))
    if not folder.is_dir():
        raise ConfigError(f"offload_optimizer.nvme_path {folder} is not a folder.", hint="Is the disk mounted?")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"offload_optimizer.nvme_path {folder} cannot be written to: {error.strerror}.",
            hint="Choose another folder.",
        ) from None


def check_model(run: RequestedRun, model_config: Any) -> None:
    """Refuse a model whose sizes the plan does not divide."""
    check_heads(model_config, run.config.parallel.tp)
    check_widths(model_config, run.config.parallel.tp)
    text = model_config.get_text_config()
    zero3 = stage_of(run.options(DeepSpeedOptions).content) == 3
    if zero3 and run.world.size > 1 and getattr(text, "indexer_compress_ratio", None):
        raise UnsupportedLayout(
            f"{text.model_type} calls its indexer as often as samples are long, and ZeRO 3 gathers weights for the "
            "same calls on every process.",
            hint="Type --deepspeed zero2, or --backend fsdp",
        )
