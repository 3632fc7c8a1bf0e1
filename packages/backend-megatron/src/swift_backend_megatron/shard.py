"""Megatron's data parallel wrapper and optimizer, and the weights read into them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from swift.config.own_options import AdamOptions, LoraOptions
from swift.contracts import Run
from swift.toolkit import build_optimizer, slots_of, tuner_of
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.fp8 import tokens_multiple
from swift_backend_megatron.layout import options_of, shards_optimizer, sizes_of
from swift_backend_megatron.masters import MasterWeights
from swift_backend_megatron.routers import MegatronRouters
from swift_backend_megatron.sequences import SequenceSlicer
from swift_backend_megatron.tensor_map import MegatronModel, TensorMap
from swift_backend_megatron.topology import remember


@dataclass
class MegatronState:
    """Holds everything that training changes."""

    built: MegatronModel
    wrapped: list[Any]
    """The chunks in Megatron's DistributedDataParallel."""
    optimizer: Any
    """Megatron's, a chain of one for dense and one for expert weights."""
    masters: MasterWeights
    slicer: SequenceSlicer
    routers: MegatronRouters
    step: int = 0
    owned: set[Any] | None = None
    """TensorSlices that this process contributes when weights are streamed; found when they first are."""

    @property
    def tensor_map(self) -> TensorMap:
        return self.built.tensor_map

    @property
    def config(self) -> Any:
        return self.built.config


def shard(run: Run, model: MegatronModel) -> MegatronState:
    """Wrap, make the optimizer, read the weights."""
    with megatron_runtime.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("megatron").setLevel(logging.ERROR)
        wrapped = _wrap(run, model)
        remember(run, wrapped)
        optimizer = _optimizer(run, model, wrapped)
        state = MegatronState(
            built=model,
            wrapped=wrapped,
            optimizer=optimizer,
            masters=MasterWeights(optimizer, wrapped, slots_of(run.config.optim)),
            slicer=slicer_of(run, model.config),
            routers=MegatronRouters(run, model),
        )
        _fill(run, state)
    return state


def slicer_of(run: Run, config: Any) -> SequenceSlicer:
    """Return the slicer of this process in a run with this configuration of Megatron's."""
    from megatron.core import parallel_state

    sizes = sizes_of(run)
    return SequenceSlicer(
        cp=sizes.cp,
        rank=parallel_state.get_context_parallel_rank(),
        multiple=(sizes.tp if config.sequence_parallel else 1) * tokens_multiple(options_of(run)),
        device=torch.device(run.topology.device),
    )


def _wrap(run: Run, built: MegatronModel) -> list[Any]:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    options = options_of(run)
    sharded = shards_optimizer(run)
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=options.overlap,
        overlap_param_gather=options.overlap and sharded,
        use_distributed_optimizer=sharded,
        num_distributed_optimizer_instances=sizes_of(run).replicate if sharded else 1,
    )
    wrapped = [
        # As in Megatron's own training: communication of later chunks overlaps that of the first for free.
        DistributedDataParallel(built.config, settings, chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(built.chunks)
    ]
    config = built.config
    if options.overlap:
        quiet = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = quiet if len(quiet) > 1 else quiet[0]
    return wrapped


def _optimizer(run: Run, built: MegatronModel, wrapped: list[Any]) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate

    optim, adam = run.config.optim, run.config.optim.options(AdamOptions)
    lora = run.config.tuner.options(LoraOptions)
    config = OptimizerConfig(
        optimizer="adam",
        lr=run.config.learning_rate,
        weight_decay=optim.weight_decay,
        adam_beta1=adam.beta1,
        adam_beta2=adam.beta2,
        adam_eps=adam.eps,
        clip_grad=optim.max_grad_norm,
        params_dtype=built.dtype,
        bf16=built.dtype is torch.bfloat16,
        fp16=built.dtype is torch.float16,
        initial_loss_scale=2.0**16,
        min_loss_scale=1.0,
        loss_scale_window=2000,
        hysteresis=1,
        use_distributed_optimizer=shards_optimizer(run),
        overlap_param_gather=options_of(run).overlap and shards_optimizer(run),
    )
    overrides = get_standard_config_overrides(config)
    if lora.lora_plus_ratio is not None:
        faster = ParamWithNamePredicate(name="lora_b", fn=lambda _, name: name.endswith(".b"))
        overrides[ParamKey(with_name_predicate=faster)] = {"lr_scale": lora.lora_plus_ratio}
    for factor in sorted(set(built.rates.values())):
        part = ParamWithNamePredicate(name=f"part at {factor}", fn=_has_rate(built.rates, factor))
        overrides[ParamKey(with_name_predicate=part)] = {"lr_scale": factor}
    optimizer = get_megatron_optimizer(config, wrapped, overrides, use_gloo_process_groups=False)
    for group in optimizer.param_groups:
        # Megatron's own scheduler, which is not used, would do this.
        group["weight_decay"] = optim.weight_decay * group["wd_mult"]
        group.setdefault("lr_scale", 1.0)
    if optim.name != "adamw":
        _replace(run, optimizer)
    built.config.grad_scale_func = optimizer.scale_loss
    return optimizer


def _replace(run: Run, optimizer: Any) -> None:
    """Let another optimizer update the fp32 weights, which Megatron has laid out for its Adam."""
    for each in optimizer.chained_optimizers:
        if getattr(each, "is_stub_optimizer", False):
            continue
        laid_out = each.optimizer.param_groups
        # Ranges of weights are views, over which torch makes no optimizer: it is made over the same memory, and then
        # given the tensors that Megatron gives gradients to.
        leaves = [
            {**group, "params": [torch.nn.Parameter(weight.detach()) for weight in group["params"]]}
            for group in laid_out
        ]
        made = build_optimizer(leaves, run.config.optim, run.config.learning_rate, run.topology.device)
        for group, known in zip(made.param_groups, laid_out, strict=True):
            group["params"] = known["params"]
        each.optimizer = made


def _has_rate(rates: dict[int, float], factor: float) -> Callable[[torch.nn.Parameter, str], bool]:
    return lambda parameter, _: rates.get(id(parameter)) == factor


@torch.no_grad()
def _fill(run: Run, state: MegatronState) -> None:
    """Read each tensor that this process has a shard of, one after the other; only one is in memory at a time."""
    source, tuner = state.built.source, tuner_of(run.config.tuner)
    adapters = state.built.adapter_tensors
    given = _given(run)
    for name, mapped in state.tensor_map.items():
        if not mapped.tiles:
            continue
        if name not in adapters:
            whole = source.read(name)
        elif name in given or name in run.adapter_start:
            whole = given[name] if name in given else run.adapter_start[name]
        elif name in state.built.saved_with_adapters:
            whole = source.read(state.built.saved_with_adapters[name])
        else:
            first = tuner.initial(name, mapped.shape, run.config.train.seed)
            whole = torch.zeros(mapped.shape) if first is None else first
        for tile in mapped.tiles:
            shard_values = whole[tile.region]
            state.masters.write(tile, shard_values if not tile.shift else shard_values - tile.shift)
    state.masters.publish()


def _given(run: Run) -> dict[str, torch.Tensor]:
    folder = run.config.tuner.adapter
    if folder is None:
        return {}
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return tensors
