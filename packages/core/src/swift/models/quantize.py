"""QLoRA: a model whose linear layers and experts are stored in 4 or 8 bits, for adapters to be trained on.

Weights are read one at a time and quantised at once, so that the whole model never exists in full precision. The
packages are in the extra `qlora`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, prod
from typing import Any

import torch

from swift.config.incompatibilities import no_quantiser
from swift.config.sections import TunerSection
from swift.contracts import ModelSource, QuantizedShare
from swift.errors import ModelError
from swift.models.heads import head_modules, value_head_of
from swift.models.names import name_map
from swift.models.peft_targets import weights_read
from swift.models.quantized_experts import NF4_BLOCK, NF4_SCALER_BLOCK, is_stack, packed_experts, quantise_experts

_QUANTISED = frozenset({"Params4bit", "Int8Params", "NF4Tensor", "PackedExperts"})

Placer = Callable[[torch.nn.Parameter], None]


def is_quantised(weight: torch.Tensor) -> bool:
    """Return whether a weight is stored in 4 or 8 bits, so that a tensor on disk is no part of it."""
    return type(weight).__name__ in _QUANTISED


def quantize_model(
    model: Any, source: ModelSource, section: TunerSection, device: torch.device | str, placer: Placer | None = None
) -> torch.nn.Module:
    """Read the weights of a model that `meta_model` made, quantised as `tuner.quantize` says, all frozen.

    Those of linear layers but for the head are, and of experts that are stacked into one parameter. `placer` is called
    with each quantised weight before the next one is read, to leave a part of it in this process; all other weights
    are on the meta device then.
    """
    quantise = _QUANTISERS[section.quantize](section)
    library = _library(section)
    names, quantised = name_map(model), weights_to_quantise(model)
    buffers = {name for name, _ in model.named_buffers()}
    for name in names.parameters():
        if name in buffers or (placer is not None and name not in quantised):
            continue
        weight = torch.empty_like(model.get_parameter(name), device="cpu", requires_grad=False)
        for piece in names.pieces(name):
            piece.view_of(weight).copy_(source.read(piece.name))
        weight = weight.to(device)
        if name not in quantised:
            _set(model, name, torch.nn.Parameter(weight, requires_grad=False))
            continue
        _check_blocks(name, weight, section)
        if weight.ndim == 2:
            quantise(model, name.rpartition(".")[0], weight)
        else:
            quantise_experts(model, name, *packed_experts(weight, section, library))
        if placer is not None:
            placer(model.get_parameter(name))
    _read_buffers(model, source, device)
    model.tie_weights()
    model.requires_grad_(False)
    model.is_loaded_in_4bit = section.quantize in ("bnb-nf4", "bnb-fp4")
    model.is_loaded_in_8bit = section.quantize == "bnb-int8"
    model.eval()
    built: torch.nn.Module = model
    return built


def weights_to_quantise(model: Any) -> list[str]:
    """Return the names of the weights of a model that are quantised: of linear layers but for heads, and of experts."""
    modules = dict(model.named_modules())
    left = {id(head) for head in _heads(model)}
    # Code that reads a layer's weight, to multiply with it in its own way, expects a matrix.
    for module in modules.values():
        left |= {id(getattr(module, name, None)) for name in weights_read(module.__class__)}
    return [
        f"{path}.{name}"
        for path, module in modules.items()
        for name, weight in module.named_parameters(recurse=False)
        if is_stack(path, module, weight)
        or (name == "weight" and type(module) is torch.nn.Linear and id(module) not in left)
    ]


def _heads(model: Any) -> set[Any]:
    scores = (module for name in head_modules(model) for module in model.get_submodule(name).modules())
    return {model.get_output_embeddings(), value_head_of(model), *scores}


def quantized_share(model: Any, dtype: torch.dtype) -> QuantizedShare:
    """Return how much of a model, as `meta_model` makes it, is quantized; all else is stored in `dtype`."""
    quantised, heads = {*weights_to_quantise(model)}, _heads(model)
    ends = [module for module in model.modules() if isinstance(module, torch.nn.Embedding) or module in heads]
    of_ends = {id(weight) for module in ends for weight in module.parameters()}
    weights = dict(model.named_parameters())
    left = {
        name: each.numel()
        for name, each in weights.items()
        if each.ndim > 1 and name not in quantised and id(each) not in of_ends
    }
    count = sum(left.values())
    return QuantizedShare(
        quantized=sum(each.numel() for name, each in weights.items() if name in quantised),
        frozen=sum(each.numel() for each in weights.values()),
        left=count,
        left_bytes=count * dtype.itemsize,
        are_experts=2 * sum(each for name, each in left.items() if "experts" in name.split(".")) > count,
        dtype=str(dtype).removeprefix("torch."),
    )


def stored_bytes(shape: Sequence[int], quantize: str, *, double_quant: bool) -> int:
    """Return the bytes of a quantized weight of this shape, with its scales."""
    count = prod(shape)
    blocks = ceil(count / NF4_BLOCK)
    if quantize == "bnb-int8":
        return count + 4 * prod(shape[:-1])
    if quantize == "torchao-nf4" or double_quant:  # scales of one byte, and scales of these
        return ceil(count / 2) + blocks + 4 * ceil(blocks / NF4_SCALER_BLOCK)
    return ceil(count / 2) + 4 * blocks


def scale_bytes(shape: Sequence[int], quantize: str, *, double_quant: bool) -> int:
    """Return the bytes of those scales that backends do not shard: bitsandbytes keeps its own apart from the weight."""
    if quantize == "torchao-nf4":
        return 0
    values = prod(shape) if quantize == "bnb-int8" else ceil(prod(shape) / 2)
    return stored_bytes(shape, quantize, double_quant=double_quant) - values


def in_low_bit(weight: torch.Tensor, section: TunerSection, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix, or a stack of experts, as 4 or 8 bits keep it, in fp32: what is multiplied with."""
    library = _library(section)
    if weight.ndim == 3:
        experts, scales = packed_experts(weight.to(dtype), section, library)
        return scales.dense(experts.data).float()
    holder = torch.nn.Module()
    outputs, inputs = weight.shape
    holder.linear = torch.nn.Linear(inputs, outputs, bias=False, device="meta", dtype=dtype)
    _QUANTISERS[section.quantize](section)(holder, "linear", weight.to(dtype))
    packed: Any = holder.linear.weight
    if section.quantize == "torchao-nf4":
        kept: torch.Tensor = packed.data.get_original_weight()
    elif section.quantize == "bnb-int8":
        kept = library.functional.int8_vectorwise_dequant(packed.CB, packed.SCB)
    else:
        kept = library.functional.dequantize_4bit(packed.data, packed.quant_state)
    return kept.float()


def _read_buffers(model: torch.nn.Module, source: ModelSource, device: torch.device | str) -> None:
    names = name_map(model)
    mapped = set(names.parameters())
    for name, buffer in list(model.named_buffers()):
        if name in mapped:
            for piece in names.pieces(name):
                piece.view_of(buffer).copy_(source.read(piece.name))
        module, _, leaf = name.rpartition(".")
        model.get_submodule(module)._buffers[leaf] = buffer.to(device)


def _bnb_4bit(quant_type: str, double: bool, model: torch.nn.Module, path: str, weight: torch.Tensor) -> None:
    bnb = _import("bnb")
    old: Any = model.get_submodule(path)
    layer = bnb.nn.Linear4bit(
        old.in_features,
        old.out_features,
        bias=old.bias is not None,
        compute_dtype=weight.dtype,
        compress_statistics=double,
        quant_type=quant_type,
        # As wide as the other weights, so that FSDP can lay them out together.
        quant_storage=weight.dtype,
        device="meta",
    )
    # On processors that multiply in bfloat16, the first evaluation would repack the weights for good, for a product
    # that is off by 3e-3 and has no gradient.
    layer.support_avx512bf16_for_cpu = False
    packed = bnb.nn.Params4bit(
        weight.cpu(),
        requires_grad=False,
        compress_statistics=double,
        quant_type=quant_type,
        quant_storage=weight.dtype,
        module=layer,
    )
    layer.weight = packed.to(weight.device)
    layer.bias = old.bias
    model.set_submodule(path, layer)


def _bnb_int8(model: torch.nn.Module, path: str, weight: torch.Tensor) -> None:
    bnb = _import("bnb")
    old: Any = model.get_submodule(path)
    layer = bnb.nn.Linear8bitLt(
        old.in_features, old.out_features, bias=old.bias is not None, has_fp16_weights=False, device="meta"
    )
    layer.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False).to(weight.device)
    layer.bias = old.bias
    model.set_submodule(path, layer)


def _check_blocks(name: str, weight: torch.Tensor, section: TunerSection) -> None:
    """Refuse a weight that torchao's NF4 cannot divide into blocks."""
    if section.quantize == "torchao-nf4" and weight.numel() % (NF4_BLOCK * NF4_SCALER_BLOCK):
        raise ModelError(
            f"{name} has {weight.numel()} weights; torchao's NF4 needs a multiple of {NF4_BLOCK * NF4_SCALER_BLOCK}.",
            hint="Type --tuner.quantize bnb-nf4.",
        )


def _torchao_nf4(model: torch.nn.Module, path: str, weight: torch.Tensor) -> None:
    nf4 = _import("torchao")
    packed = nf4.to_nf4(weight, block_size=NF4_BLOCK, scaler_block_size=NF4_SCALER_BLOCK)
    model.get_submodule(path).weight = torch.nn.Parameter(packed, requires_grad=False)


Quantise = Callable[[torch.nn.Module, str, torch.Tensor], None]

_QUANTISERS: dict[str, Callable[[Any], Quantise]] = {
    "bnb-nf4": lambda section: partial(_bnb_4bit, "nf4", section.double_quant),
    "bnb-fp4": lambda section: partial(_bnb_4bit, "fp4", section.double_quant),
    "bnb-int8": lambda _: _bnb_int8,
    "torchao-nf4": lambda _: _torchao_nf4,
}


def _library(section: TunerSection) -> Any:
    """Return the module that quantises."""
    return _import(section.quantize.partition("-")[0])


def _import(kind: str) -> Any:
    package, module = {
        "bnb": ("bitsandbytes", "bitsandbytes"),
        "torchao": ("torchao", "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"),
    }[kind]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise no_quantiser(package) from error


def _set(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, parameter)
