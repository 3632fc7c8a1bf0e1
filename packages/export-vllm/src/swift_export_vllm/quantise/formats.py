"""How rounded matrices lie in files, format by format, and how they are read back.

Formats of compressed-tensors are written by that library; those of GPTQ and AWQ have no library that lives in one
environment with vLLM and are a few lines of packing each; bitsandbytes' is written by bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from swift_export_vllm.quantise.rounding import Grid
from swift_export_vllm.quantise.schemes import Scheme

_EIGHT = torch.arange(0, 32, 4)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours lies in which four bits, from the lowest."""
_GPTQ_ZERO = 8
FP8 = torch.float8_e4m3fn
NF4_BLOCK = 64
"""Values that share a scale. Only rows that are made of whole blocks are stored so: bitsandbytes 0.50 decodes others
wrongly on the CPU."""


@dataclass(frozen=True)
class Stored:
    """One matrix as it is written, and as it will be used."""

    tensors: dict[str, torch.Tensor]
    """Suffix of the layer's name → tensor."""
    weight: torch.Tensor
    """Decoded, in fp32."""


def store(scheme: Scheme, integers: torch.Tensor, grid: Grid) -> Stored:
    """Integers on a grid."""
    if scheme.name == "gptq":
        tensors = _gptq(integers, grid)
    elif scheme.name == "awq":
        tensors = _awq(integers, grid)
    else:
        tensors = _compressed(scheme, grid.values(integers), grid.scales)
    return Stored(tensors, grid.values(integers))


def store_fp8(scheme: Scheme, weight: torch.Tensor) -> Stored:
    """FP8 with a scale per row."""
    scales = (weight.abs().amax(-1, keepdim=True) / torch.finfo(FP8).max).clamp(min=1e-8)
    tensors = _compressed(scheme, weight, scales)
    return Stored(tensors, tensors["weight"].float() * scales)


def store_nf4(weight: torch.Tensor) -> Stored:
    """Four bits on a grid made for normally distributed values, with a scale per 64 of them."""
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(weight.contiguous(), blocksize=NF4_BLOCK, quant_type="nf4")
    tensors = {"weight": packed}
    tensors |= {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    return Stored(tensors, functional.dequantize_4bit(packed, state).float())


def decode(scheme: Scheme, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the matrix, in fp32, from the tensors of a layer as they lie in a file."""
    if scheme.name == "bnb":
        from bitsandbytes import functional

        parts = {key.removeprefix("weight."): value for key, value in tensors.items() if key.startswith("weight.")}
        state = functional.QuantState.from_dict(parts, device=torch.device("cpu"))
        whole: torch.Tensor = functional.dequantize_4bit(tensors["weight"], state)
        return whole.float()
    if scheme.name in ("gptq", "awq"):
        gptq = scheme.name == "gptq"
        scales, packed = tensors["scales"].float(), tensors["qweight"]
        integers = _unpacked(packed.T).T if gptq else _ordered(_unpacked(packed), back=True)
        zeros = _unpacked(tensors["qzeros"]) + 1 if gptq else _ordered(_unpacked(tensors["qzeros"]), back=True)
        each = len(integers) // len(scales)
        wide = (scales.repeat_interleave(each, dim=0), zeros.repeat_interleave(each, dim=0))
        return ((integers - wide[1]).float() * wide[0]).T.contiguous()
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(_format(scheme))
    decoded: torch.Tensor = compressor.decompress(
        {key: value.float() if key == "weight_scale" else value for key, value in tensors.items()},
        _compression(scheme, group=tensors["weight_scale"].shape[1]),
    )["weight"]
    return decoded.float()


def configuration(scheme: Scheme, *, group: int, left: list[str], dtype: str) -> dict[str, Any]:
    """`quantization_config` of config.json; `left` are the layers that stay as they are."""
    if scheme.name == "gptq":
        values: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": group}
        values |= {"desc_act": False, "sym": True}
        skipped: dict[str, Any] = {f"-:^{name.replace('.', '[.]')}$": {} for name in left if name != "lm_head"}
        return {**values, "lm_head": False, "checkpoint_format": "gptq", **({"dynamic": skipped} if skipped else {})}
    if scheme.name == "awq":
        values = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
        return {**values, "modules_to_not_convert": left}
    if scheme.name == "bnb":
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": dtype,
            "bnb_4bit_use_double_quant": False,
            "llm_int8_skip_modules": left,
        }
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    config = QuantizationConfig(
        config_groups={"group_0": _compression(scheme, group_size=group)},
        format=_format(scheme),
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=left,
    )
    as_json: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return as_json


def _format(scheme: Scheme) -> str:
    return {"w4a16": "pack-quantized", "w8a8": "int-quantized", "fp8": "float-quantized"}[scheme.name]


def _compression(scheme: Scheme, *, group: int = 1, group_size: int = 32) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    inputs = None
    if scheme.inputs is not None:
        kind = "int" if scheme.inputs == "int8" else "float"
        inputs = QuantizationArgs(num_bits=8, type=kind, symmetric=True, strategy="token", dynamic=True)
        weights = QuantizationArgs(num_bits=8, type=kind, symmetric=True, strategy="channel")
    else:
        weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group_size)
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)


def _compressed(scheme: Scheme, weight: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(_format(scheme))
    compression = _compression(scheme, group_size=weight.shape[1] // scales.shape[1])
    # In fp32: the library divides in the precision of the scale.
    wide = {"weight": weight.float(), "weight_scale": scales.float()}
    packed: dict[str, torch.Tensor] = compressor.compress(wide, compression)
    return {**packed, "weight_scale": scales}


def _gptq(integers: torch.Tensor, grid: Grid) -> dict[str, torch.Tensor]:
    outputs, inputs = integers.shape
    groups = grid.scales.shape[1]
    zeros = torch.full((groups, outputs), _GPTQ_ZERO - 1)  # the format's first version stores one less
    return {
        "qweight": _packed(integers + _GPTQ_ZERO).T.contiguous(),
        "scales": grid.scales.T.contiguous(),
        "qzeros": _packed(zeros),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // (inputs // groups),
    }


def _awq(integers: torch.Tensor, grid: Grid) -> dict[str, torch.Tensor]:
    assert grid.zeros is not None
    return {
        "qweight": _packed(_ordered(integers.T)),
        "scales": grid.scales.T.contiguous(),
        "qzeros": _packed(_ordered(grid.zeros.T)),
    }


def _ordered(values: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    order = torch.tensor(_AWQ_ORDER)
    order = torch.argsort(order) if back else order
    return values.reshape(len(values), -1, 8)[:, :, order].reshape(values.shape)


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Eight unsigned values of four bits in an int32, along the last dimension, the first in the lowest bits."""
    shifts = _EIGHT.to(values.device)
    wide = (values.long().reshape(len(values), -1, 8) << shifts).sum(-1)
    return torch.where(wide < 2**31, wide, wide - 2**32).to(torch.int32).contiguous()


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    wide = (packed.long()[..., None] >> _EIGHT) & 15
    return wide.reshape(len(packed), -1)
