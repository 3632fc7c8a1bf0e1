"""Marks on the expert weights of megatron-core, which versions before 0.19 set wrongly, with CUDA and without.

Under tensor parallelism 0.16.1 reduces the gradients of experts over the wrong processes where neither experts nor
their tensors are sharded, and counts only some shards in the gradient norm, so that clipping is too weak. Neither
shows in the losses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def mark_experts(models: Iterable[nn.Module], config: Any) -> None:
    """Mark on every routed expert's weight who reduces its gradient, and that each process has another shard of it.

    To be called with the bare models, before megatron's data parallel wrapper and optimizer read the marks. Shared
    experts follow the dense layers and are left alone.
    """
    expert_tensor = config.expert_tensor_parallel_size or config.tensor_model_parallel_size
    own_group = config.expert_model_parallel_size > 1 or expert_tensor != config.tensor_model_parallel_size
    for model in models:
        for name, parameter in model.named_parameters():
            if ".experts." not in name:
                continue
            row = "linear_fc2" in name
            if parameter.dim() < 2 and row and expert_tensor > 1:
                raise NotImplementedError(f"biases of experts with expert tensor parallelism: {name}")
            marks = {
                "allreduce": not own_group,
                "tensor_model_parallel": True,
                "partition_dim": int(row),
                "partition_stride": 1,
            }
            for mark, value in marks.items():
                setattr(parameter, mark, value)
