"""Megatron's process groups, and which slice of each batch a process trains on.

Neighbouring ranks share tensors first, then sequences, then data, then the pipeline: rank = ((pp × dp + data) × cp +
sequence) × tp + tensor. Experts are distributed within the same order, tensor parallel inside an expert first, then
expert parallel, over all processes of a pipeline stage.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from swift.contracts import RequestedRun, Run, Topology
from swift.toolkit import choose_device, join_group, leave_group
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.layout import options_of, shards_optimizer, sizes_of


@dataclass
class MegatronProcess:
    """Process-wide state to undo at the end of a run; `Run.backend_state`, shared by all roles of the run."""

    variables: frozenset[str] = frozenset()
    """Those of Transformer Engine that were set before the run."""
    wrapped: list[Any] = field(default_factory=list)
    """Chunks in Megatron's data parallel wrapper."""


def setup(run: RequestedRun) -> Topology:
    """Join the group and let Megatron divide it."""
    run.keep(MegatronProcess(frozenset(name for name in os.environ if name.startswith("NVTE_"))))
    options, sizes = options_of(run), sizes_of(run)
    device = choose_device(options.device, run.world, cpu_threads=options.cpu_threads)
    run.facts["layers by"] = megatron_runtime.prepare(run.say)
    join_group(device, run.world, timeout=run.timeout, alone=True)
    with megatron_runtime.active():
        from megatron.core import parallel_state, tensor_parallel

        sharded = shards_optimizer(run) and sizes.replicate > 1
        parallel_state.initialize_model_parallel(
            sizes.tp,
            sizes.pp,
            virtual_pipeline_model_parallel_size=sizes.vpp if sizes.vpp > 1 else None,
            context_parallel_size=sizes.cp,
            expert_model_parallel_size=sizes.ep,
            expert_tensor_parallel_size=sizes.etp,
            num_distributed_optimizer_instances=sizes.replicate if sharded else 1,
            distributed_timeout_minutes=max(1, round(run.timeout.total_seconds() / 60)),
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(run.config.train.seed)
        data_rank = parallel_state.get_data_parallel_rank()
    return Topology(
        world=run.world, data_rank=data_rank, data_size=sizes.data, device=str(device), layout=sizes.named("dp_shard")
    )


def teardown(run: RequestedRun) -> None:
    """Leave all groups, and Megatron's modules as they were found."""
    if "megatron.core" in sys.modules:
        with megatron_runtime.active():
            _forget(run.backend_state or MegatronProcess(frozenset(os.environ)))
    leave_group()


def remember(run: Run, wrapped: list[Any]) -> None:
    """Have wrapped chunks taken apart at the end of the run."""
    run.backend_state.wrapped.extend(wrapped)


def take_apart(chunk: Any) -> None:
    """Release what autograd keeps alive through hooks on gradients: the wrapper, the model and all groups."""
    for parameter in chunk.parameters():
        vars(parameter).clear()
        parameter.data = parameter.data.new_empty(0)
    for module in list(chunk.modules()):
        vars(module).clear()


def _forget(process: MegatronProcess) -> None:
    """Release what Megatron keeps for the life of the process: groups, caches of its layers, and its variables."""
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings import RotaryEmbedding, YarnRotaryEmbedding
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

    while process.wrapped:
        take_apart(process.wrapped.pop())
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_global_memory_buffer()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = False
    get_moe_layer_wise_logging_tracker().clear()
    bridge: Any = sys.modules.get("mcore_bridge.bridge.gpt_bridge")
    if bridge is not None:
        bridge.EP_PP_GROUP = bridge.EP_PP_RANK = bridge.EP_PP_SIZE = None
    for name, value in list(vars(parallel_state).items()):
        if isinstance(value, dist.ProcessGroup):
            setattr(parallel_state, name, None)
    for embedding in (RotaryEmbedding, YarnRotaryEmbedding):
        for method in vars(embedding).values():
            while method is not None:
                getattr(method, "cache_clear", lambda: None)()
                method = getattr(method, "__wrapped__", None)
    for name in [each for each in os.environ if each.startswith("NVTE_") and each not in process.variables]:
        del os.environ[name]


def last_stage_rank() -> int:
    """Return the global rank of the process at the end of this one's pipeline."""
    from megatron.core import parallel_state

    return int(dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())[-1])
