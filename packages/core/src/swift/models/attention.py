"""Which attention kernel a model runs with, and one of our own for samples that lie end to end.

Without flash-attn, transformers keeps packed samples apart with a mask of tokens × tokens and computes all of it.
`swift_varlen` computes within samples alone, so that work and memory grow with the sum of squared lengths: on a GPU by
the FlashAttention that torch brings, which takes all samples at once; elsewhere, and in fp32, it cuts queries, keys and
values at the boundaries and calls torch's kernel on each sample.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swift.config.incompatibilities import GPU_ATTENTION, attention_needs_gpu, no_attention
from swift.errors import ModelError
from swift.models.classes import body_class, has_encoder, is_encoder

VARLEN = "swift_varlen"
BOTH_WAYS = "swift_both_ways"
"""The kernel of encoders for samples that lie end to end; see `swift.models.attention_both_ways`."""
FLASH, FLASH_3, FLEX = "flash_attention_2", "flash_attention_3", "flex_attention"
FLASHES = {FLASH_3: "flash_attn_interface", FLASH: "flash_attn"}
"""Kernels that are told where samples begin, the fastest first → their modules."""
_SEPARABLE_LAYERS = frozenset({"full_attention", "sliding_attention", "dense", "mlp", "moe", "sparse"})
"""Types of layers in which samples that lie end to end can be kept apart. In others, states pass from token to token,
tokens are chosen, or chunks are counted from the row's beginning: they are called sample by sample.
"""
_VARLEN_LAYERS = _SEPARABLE_LAYERS | {"conv", "hybrid", "linear_attention"}
"""Types of layers whose attention, if they have any, is causal, with or without a window: it needs no mask."""
CHOOSING_LAYERS = frozenset({"indexed_attention"})
"""Types of layers that choose tokens among those that their mask leaves: it keeps samples apart."""
_UNMASKED = "sample by sample, without a mask"
_HALVES = (torch.float16, torch.bfloat16)
_WIDEST = 256
"""The widest head that FlashAttention takes."""


@dataclass(frozen=True)
class AttentionChoice:
    """A decision, to be shown to the user and given to the model."""

    name: str
    """As users write it: 'flash_attention_2', 'sdpa' or 'eager'."""
    implementation: str
    """As transformers knows it."""
    flat: bool
    """Whether it was made for samples that lie end to end."""
    reason: str


@dataclass(frozen=True)
class Packing:
    """Lengths of the samples that lie end to end in one row, padding at its end included as one more."""

    lengths: tuple[int, ...]
    edges: torch.Tensor | None = field(default=None, compare=False)
    """Where each begins and the last one ends, on the GPU; only where torch's kernel takes all of them at once."""
    longest: int = field(init=False)
    """Kept, so that compiled code does not look at `lengths`, and holds for other packs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "longest", max(self.lengths))


def choose_attention(
    requested: str, config: Any, *, flat: bool, device: str, dtype: torch.dtype | None = None
) -> AttentionChoice:
    """Return the kernel for a model of this transformers `config`, with the reason where it isn't the fastest one.

    A kernel that is requested by name is used or refused, never replaced. `flat` tells whether samples are laid end to
    end; `dtype` is the precision of the arithmetic, where it is known.
    """
    encodes, model_class, config = is_encoder(config), body_class(config), config.get_text_config()
    incompatibilities = {name: _gpu_incompatibility(name, config, model_class, device, dtype) for name in GPU_ATTENTION}
    sdpa_incompatibility = _sdpa_incompatibility(config, model_class)
    if incompatibility := incompatibilities.get(requested):
        raise no_attention(requested, incompatibility)
    if requested == "sdpa" and sdpa_incompatibility:
        raise ModelError(
            f"model.attention sdpa cannot be used: {sdpa_incompatibility}.",
            hint="Type --model.attention eager (or auto)",
        )
    if requested in GPU_ATTENTION:
        return AttentionChoice(requested, requested, flat, "requested")
    fastest = next((name for name in FLASHES if not incompatibilities[name]), None)
    if requested == "auto" and fastest is not None:
        return AttentionChoice(fastest, fastest, flat, "the fastest here")
    why = "requested" if requested != "auto" else f"not {FLASH}: {incompatibilities[FLASH]}"
    if encodes and flat:
        return _both_ways(requested, config, model_class, why)
    varlen_incompatibility = _varlen_incompatibility(config, model_class)
    if requested == "eager" or (sdpa_incompatibility and (varlen_incompatibility or not flat)):
        if requested == "auto":
            why = f"{why}; not sdpa: {sdpa_incompatibility}"
        return AttentionChoice("eager", "eager", flat, f"{why}{_masked(flat)}")
    if not flat:
        return AttentionChoice("sdpa", "sdpa", flat, why)
    if varlen_incompatibility:
        return AttentionChoice("sdpa", "sdpa", flat, f"{why}; {varlen_incompatibility}{_masked(flat)}")
    return AttentionChoice("sdpa", VARLEN, flat, f"{why}; {_UNMASKED}")


def _both_ways(requested: str, config: Any, model_class: Any, why: str) -> AttentionChoice:
    """Return the kernel for samples of an encoder that lie end to end; refuse one whose mask alone keeps them apart."""
    incompatibility = ""
    if _sdpa_incompatibility(config, model_class) or _mask_needed(config, model_class):
        incompatibility = "transformers has only their own attention for them"
    elif requested == "eager":
        incompatibility = "eager attention mixes the samples of a row"
    if incompatibility:
        raise ModelError(
            f"{config.model_type} encoders need padding: {incompatibility}.",
            hint="Turn it on: --data.packing false --data.padding_free false",
        )
    return AttentionChoice("sdpa", BOTH_WAYS, True, f"{why}; sample by sample, without a mask")


def needs_no_padding(requested: str, config: Any, *, device: str, dtype: torch.dtype | None = None) -> bool:
    """Return whether samples of a model of text can lie end to end with a kernel that needs no mask for it."""
    if has_encoder(config) or mixing_layers(config):
        return False
    try:
        choice = choose_attention(requested, config, flat=True, device=device, dtype=dtype)
    except ModelError:
        return False
    return choice.implementation in (VARLEN, BOTH_WAYS, *FLASHES)


def use_attention(model: Any, choice: AttentionChoice) -> None:
    """Make the transformers `model` run with `choice`."""
    text = model.config.get_text_config()
    if text._attn_implementation == choice.implementation:
        return
    if text is model.config:
        model.set_attn_implementation(choice.implementation)
    else:
        # Samples that lie end to end are a matter of the language model: an encoder sees one image after the other.
        parts = {key: getattr(model.config, key, None) for key in model.config.sub_configs}
        encoder = choice.name if choice.implementation.startswith("swift_") else choice.implementation
        each = {
            key: choice.implementation if part is text else encoder for key, part in parts.items() if part is not None
        }
        model.set_attn_implementation(each)
    if text._attn_implementation != choice.implementation:
        raise ModelError(
            f"The attention implementation of {type(model).__name__} cannot be changed from "
            f"{text._attn_implementation} to {choice.name}.",
            hint=f"Type --model.attention {text._attn_implementation}",
        )


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sample of a row; tensors are [1, heads, tokens, width].

    Without `packing` (generation, padded batches) it is transformers' own sdpa, mask and all. `s_aux` are attention
    sinks: a logit of each head that takes part in the softmax, and has no value.
    """
    if packing is None and s_aux is not None:
        if attention_mask is None and query.shape[2] > 1:
            attention_mask = _causal_mask(query.shape[2], sliding_window, query.device)
        return _with_sinks(query, key, value, attention_mask, s_aux, dropout, scaling), None
    if packing is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    for name in ("softcap", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} uses {name}, which attention without a mask does not support.",
                hint="Type --model.attention eager",
            )
    edges = packing.edges if s_aux is None else None
    if edges is not None and len(query) == 1 and (dtype := flash_dtype(query)) is not None:
        together = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
        return _all_at_once((*together,), edges, packing.longest, dropout, scaling, sliding_window)[None], None
    queries, keys, values = (tensor.split_with_sizes(packing.lengths, dim=2) for tensor in (query, key, value))
    outputs = [
        _causal(*sample, dropout=dropout, scaling=scaling, window=sliding_window, sinks=s_aux)
        for sample in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def _all_at_once(
    row: tuple[torch.Tensor, ...],
    edges: torch.Tensor,
    longest: int,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attention by torch's own FlashAttention, which has a gradient, to [tokens, heads, width] of a row."""
    output: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *row,
        edges,
        edges,
        longest,
        longest,
        dropout,
        window is None,
        False,
        scale=scaling,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
    )[0]
    return output


def flash_dtype(query: torch.Tensor) -> torch.dtype | None:
    """Return the precision in which torch's FlashAttention takes these queries, cast as autocast would; None if not."""
    width, dtype, device = query.shape[-1], query.dtype, query.device.type
    if dtype == torch.float32 and torch.is_autocast_enabled(device):  # a norm with weights in fp32 lies before it
        dtype = torch.get_autocast_dtype(device)
    return dtype if dtype in _HALVES and width % 8 == 0 and width <= _WIDEST else None


def _has_flash(device: torch.device) -> bool:
    """Return whether torch was built with FlashAttention for this device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dropout: float,
    scaling: float | None,
    window: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    length = query.shape[2]
    groups = query.shape[1] // key.shape[1]
    if sinks is not None:
        return _with_sinks(query, key, value, _causal_mask(length, window, query.device), sinks, dropout, scaling)
    mask = None
    if window is not None and length > window:
        mask = _causal_mask(length, window, query.device)
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)  # with a mask only the slow kernel knows groups
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=mask is None and groups > 1,
    )
    return output.transpose(1, 2)


def _causal_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions[None, :]
    causal: torch.Tensor = distance >= 0
    return causal if window is None else causal & (distance < window)


def _with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor,
    dropout: float,
    scaling: float | None,
) -> torch.Tensor:
    """Attend with one more key, whose logit is the head's sink and whose value is zero."""
    groups = query.shape[1] // key.shape[1]
    key, value = (torch.nn.functional.pad(repeat_kv(each, groups), (0, 0, 0, 1)) for each in (key, value))
    shape = (len(query), query.shape[1], query.shape[2], key.shape[2] - 1)
    logits = query.new_zeros(())
    if mask is not None:
        logits = mask if mask.is_floating_point() else torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    column = sinks.to(query.dtype)[None, :, None, None].expand(*shape[:3], 1)
    bias = torch.cat([logits.expand(shape), column], dim=-1)
    output = scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=scaling)
    return output.transpose(1, 2)


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, sdpa_mask)


def packing_of(boundaries: Sequence[int], tokens: int, device: torch.device | None = None) -> Packing:
    """Return the lengths between `boundaries`, and what is left up to `tokens`; with edges where a device has use."""
    edges = [*boundaries, tokens] if tokens > boundaries[-1] else boundaries
    lengths = tuple(end - start for start, end in pairwise(edges))
    if device is None or not _has_flash(device):
        return Packing(lengths)
    return Packing(lengths, edges_on(device, edges))


def edges_on(device: torch.device, edges: Sequence[int]) -> torch.Tensor:
    """Return where samples begin and the last one ends, as kernels take it, without waiting for the device."""
    return torch.tensor(edges, dtype=torch.int32).to(device, non_blocking=True)


def attends_causally(config: Any) -> bool:
    """Return whether tokens see those before them alone, as far as the configuration declares it."""
    return bool(getattr(config, "is_causal", True)) and not getattr(config, "use_bidirectional_attention", None)


def mixing_layers(config: Any) -> list[str]:
    """Return the types of layers in which a sample would see another one that lies before it in the row."""
    return sorted(_layer_types(config.get_text_config()) - _SEPARABLE_LAYERS)


def with_mask(choice: AttentionChoice, config: Any) -> AttentionChoice:
    """Return the choice for a model that attention without a mask does not fit."""
    text = config.get_text_config()
    name = "eager" if _sdpa_incompatibility(text, body_class(config)) else "sdpa"
    why = "" if choice.name in FLASHES else choice.reason.removesuffix(_UNMASKED)
    return AttentionChoice(name, name, choice.flat, f"{why}{text.model_type} needs its mask{_masked(True)}")


def _layer_types(config: Any) -> set[str]:
    return set(getattr(config, "layer_types", None) or ())


def _masked(flat: bool) -> str:
    return "; samples are separated by a tokens x tokens mask, which is slow" if flat else ""


def _gpu_incompatibility(name: str, config: Any, model_class: Any, device: str, dtype: torch.dtype | None) -> str:
    if not device.startswith("cuda"):
        return attention_needs_gpu(device)
    supported = "_supports_flex_attn" if name == FLEX else "_supports_flash_attn"
    if name in FLASHES and importlib.util.find_spec(FLASHES[name]) is None:
        return f"the package {'flash-attn-3' if name == FLASH_3 else 'flash-attn'} is not installed"
    if name == FLASH_3 and torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] != 9:
        return "it needs a Hopper GPU"
    if name in FLASHES and dtype is not None and dtype not in _HALVES:
        return f"it does not support {str(dtype).removeprefix('torch.')}"
    if model_class is not None and not getattr(model_class, supported):
        return f"{config.model_type} does not support it"
    return ""


def _sdpa_incompatibility(config: Any, model_class: Any) -> str:
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return f"{config.model_type} caps its attention logits, which sdpa does not support"
    if model_class is not None and not model_class._supports_sdpa:
        return f"{config.model_type} does not support it"
    return ""


def _varlen_incompatibility(config: Any, model_class: Any) -> str:
    if needed := _mask_needed(config, model_class):
        return needed
    if not attends_causally(config):
        return f"{config.model_type} does not use causal attention"
    return ""


def _mask_needed(config: Any, model_class: Any) -> str:
    # Models that support flash attention tell the kernel all that it needs (windows, caps, sinks); others may
    # have put it into the mask alone.
    known = model_class is not None and model_class._supports_flash_attn and model_class._can_set_attn_implementation()
    if not known or _layer_types(config) - _VARLEN_LAYERS:
        return f"{config.model_type} needs its mask"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return f"{config.model_type} caps its attention logits"
    return ""
