"""Transformer Engine's modules in plain torch, importable under its names on a machine without CUDA.

Modules, parameter names, marks on parameters, layouts of tensors and communication are those of the real one, so that
megatron-core builds the same layer specification and mcore-bridge converts weights the same way. What is missing here
is refused by name or cannot be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from swift_backend_megatron.cpu.dummy_modules import add_module
from swift_backend_megatron.cpu.transformer_engine.attention import DotProductAttention
from swift_backend_megatron.cpu.transformer_engine.fp8 import (
    Format,
    FP8GlobalStateManager,
    Fp8Recipe,
    QuantizedTensor,
    fp8_autocast,
)
from swift_backend_megatron.cpu.transformer_engine.linear import GroupedLinear, LayerNormLinear, Linear
from swift_backend_megatron.cpu.transformer_engine.modules import LayerNorm, LayerNormMLP, RMSNorm
from swift_backend_megatron.cpu.transformer_engine.optimizer import (
    FusedAdam,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_scale,
)
from swift_backend_megatron.cpu.transformer_engine.recompute import CudaRNGStatesTracker, checkpoint
from swift_backend_megatron.cpu.unsupported import refuse

VERSION = "2.8.0"
"""The version of Transformer Engine that megatron-core sees. Later ones promise what is missing here."""


class _SplitAlongDim:
    @staticmethod
    def apply(tensor: Tensor, dim: int, sizes: int | Sequence[int]) -> tuple[Tensor, ...]:
        return torch.split(tensor, sizes if isinstance(sizes, int) else list(sizes), dim=dim)


def install() -> None:
    """Make these modules importable under the names of Transformer Engine, and no others."""
    root = "transformer_engine"
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling")
    fused = ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
    add_module(root, __version__=VERSION)
    add_module(f"{root}.common")
    add_module(f"{root}.common.recipe", Format=Format, **{name: type(name, (Fp8Recipe,), {}) for name in recipes})
    add_module(
        f"{root}.pytorch",
        DotProductAttention=DotProductAttention,
        GroupedLinear=GroupedLinear,
        LayerNorm=LayerNorm,
        LayerNormLinear=LayerNormLinear,
        LayerNormMLP=LayerNormMLP,
        Linear=Linear,
        RMSNorm=RMSNorm,
        fp8_autocast=fp8_autocast,
        fp8_model_init=fp8_autocast,
    )
    # mcore-bridge looks for both.
    add_module(
        f"{root}.pytorch.attention",
        _SplitAlongDim=_SplitAlongDim,
        apply_rotary_pos_emb=partial(refuse, "fused rotary embeddings"),
    )
    add_module(
        f"{root}.pytorch.distributed",
        CudaRNGStatesTracker=CudaRNGStatesTracker,
        activation_recompute_forward=partial(refuse, "recomputation in fp8"),
        checkpoint=checkpoint,
    )
    add_module(f"{root}.pytorch.fp8", FP8GlobalStateManager=FP8GlobalStateManager, fp8_autocast=fp8_autocast)
    # Annotations of megatron-core name these.
    add_module(f"{root}.pytorch.ops", FusibleOperation=LayerNormMLP, Sequential=LayerNormMLP)
    add_module(
        f"{root}.pytorch.optimizers",
        FusedAdam=FusedAdam,
        FusedSGD=torch.optim.SGD,
        multi_tensor_applier=multi_tensor_applier,
        multi_tensor_l2norm=multi_tensor_l2norm,
        multi_tensor_scale=multi_tensor_scale,
    )
    # megatron-core refuses what is None when it is asked for.
    add_module(f"{root}.pytorch.router", **dict.fromkeys(fused))
    add_module(f"{root}.pytorch.tensor", QuantizedTensor=QuantizedTensor)
