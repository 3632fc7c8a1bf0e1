"""Changes to megatron-core, mcore-bridge and the modules they import, made once per process."""

from __future__ import annotations

import importlib.util
import logging
import sys
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from swift_backend_megatron.cpu.dummy_modules import add_module
from swift_backend_megatron.cpu.unsupported import refuse


def patch_rope() -> None:
    """Keep mcore-bridge from overwriting an entry of transformers' table of rope initialisers, with CUDA too.

    It does so whenever it computes frequencies, and models of transformers that are built later fail.
    """
    from mcore_bridge.model import rope
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS as table

    original = rope.get_rope_inv_freq
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def get_rope_inv_freq(*args: Any, **kwargs: Any) -> Any:
        before = dict(table)
        try:
            return original(*args, **kwargs)
        finally:
            table.clear()
            table.update(before)

    for name, module in list(sys.modules.items()):
        if name.startswith("mcore_bridge.") and getattr(module, "get_rope_inv_freq", None) is original:
            vars(module)["get_rope_inv_freq"] = get_rope_inv_freq


def replace_triton_modules() -> None:
    """Install dummies of two modules that every model imports, and that need triton and CUDA."""
    if importlib.util.find_spec("triton") is not None:
        return
    for name, functions in {
        "megatron.core.inference.contexts.attention_context.triton.tensor_ops": (
            "tensor_get_slice_after",
            "tensor_masked_update",
            "tensor_merge",
        ),
        "mcore_bridge.model.modules.kernels.qsa_block_sparse_attn": ("qsa_sparse_attention_from_indices",),
    }.items():
        add_module(name, **{function: partial(refuse, f"{function}, in triton") for function in functions})


def patch_megatron() -> None:
    """Replace what megatron-core does with tensors that it believes to be on the GPU."""
    from megatron.core.tensor_parallel import mappings, random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    vars(random)["_get_cuda_rng_state"] = lambda *_, **__: torch.get_rng_state()
    vars(random)["_set_cuda_rng_state"] = lambda state, *_, **__: torch.set_rng_state(state)
    # The only generator is the CPU's, so that drawing from a tracked state changes it, and it is put back.
    logging.getLogger(random.__name__).addFilter(lambda record: "CPU RNG state changed" not in record.getMessage())
    vars(moe_utils)["maybe_move_tensor_to_cpu"] = vars(token_dispatcher)["maybe_move_tensor_to_cpu"] = _on_host
    _patch_uneven_exchanges(mappings)


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _patch_uneven_exchanges(mappings: Any) -> None:
    """Pad gathers and reduce scatters of unequal shards: gloo takes equal ones only, and experts' are unequal."""
    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather_uneven(input_: Tensor, group: Any, output_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if group.size() == 1 or not _uneven(output_split_sizes):
            return gather(input_, group, output_split_sizes, *args, **kwargs)  # type: ignore[no-any-return]
        padded = F.pad(input_, (0, 0) * (input_.dim() - 1) + (0, max(output_split_sizes) - len(input_)))
        shards = [torch.empty_like(padded) for _ in output_split_sizes]
        dist.all_gather(shards, padded, group=group)
        return torch.cat([shard[:size] for shard, size in zip(shards, output_split_sizes, strict=True)])

    def scatter_uneven(input_: Tensor, group: Any, input_split_sizes: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        if group.size() == 1 or not _uneven(input_split_sizes):
            return scatter(input_, group, input_split_sizes, *args, **kwargs)  # type: ignore[no-any-return]
        total = input_.clone()
        dist.all_reduce(total, group=group)
        shard: Tensor = torch.split(total, list(input_split_sizes))[group.rank()]
        return shard.clone()

    vars(mappings)["_gather_along_first_dim"] = gather_uneven
    vars(mappings)["_reduce_scatter_along_first_dim"] = scatter_uneven


def _uneven(sizes: Any) -> bool:
    return sizes is not None and len({int(size) for size in sizes}) > 1
