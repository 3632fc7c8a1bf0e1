"""Quantised folders decoded in plain torch, from what is published about the formats: no code of swift's."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


def decoded(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight of the model, in fp32."""
    tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    found = {}
    for name, tensor in tensors.items():
        stem, _, leaf = name.rpartition(".")
        if leaf == "weight_packed":
            found[f"{stem}.weight"] = _packed_groups(tensors, stem)
        elif leaf == "qweight":
            found[f"{stem}.weight"] = _gptq(tensors, stem) if method == "gptq" else _awq(tensors, stem)
        elif leaf == "weight" and f"{stem}.weight_scale" in tensors:
            found[name] = tensor.float() * tensors[f"{stem}.weight_scale"].float()
        elif leaf == "weight" and f"{stem}.weight.absmax" in tensors:
            found[name] = _nf4(tensors, stem)
        elif leaf in ("weight", "bias"):
            found[name] = tensor.float()
    return found


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Eight values of each int32, from the lowest bits on, in a new last dimension."""
    unsigned = packed.numpy().astype("uint32")
    return torch.stack([torch.from_numpy(((unsigned >> (4 * at)) & 15).astype("int64")) for at in range(8)], -1)


def _packed_groups(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    integers = _nibbles(tensors[f"{stem}.weight_packed"]).flatten(1) - 8
    rows, columns = tensors[f"{stem}.weight_shape"].tolist()
    scales = tensors[f"{stem}.weight_scale"].float()
    groups = integers[:, :columns].reshape(rows, scales.shape[1], -1)
    return (groups * scales[..., None]).reshape(rows, columns)


def _gptq(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    packed = tensors[f"{stem}.qweight"]
    integers = _nibbles(packed).permute(0, 2, 1).reshape(-1, packed.shape[1])  # [inputs, outputs]
    zeros = _nibbles(tensors[f"{stem}.qzeros"]).flatten(1) + 1
    group_of = tensors[f"{stem}.g_idx"].long()
    scales = tensors[f"{stem}.scales"].float()
    return ((integers - zeros[group_of]) * scales[group_of]).T


def _awq(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    place = [0, 4, 1, 5, 2, 6, 3, 7]  # where in the int32 the k-th of eight neighbours lies
    integers = _nibbles(tensors[f"{stem}.qweight"])[..., place].flatten(1)
    zeros = _nibbles(tensors[f"{stem}.qzeros"])[..., place].flatten(1)
    scales = tensors[f"{stem}.scales"].float()
    each = len(integers) // len(scales)
    return ((integers - zeros.repeat_interleave(each, 0)) * scales.repeat_interleave(each, 0)).T


def _nf4(tensors: dict[str, torch.Tensor], stem: str) -> torch.Tensor:
    state_name = next(name for name in tensors if name.startswith(f"{stem}.weight.quant_state."))
    state = json.loads(bytes(tensors[state_name].tolist()))
    packed = tensors[f"{stem}.weight"].flatten().long()
    values = torch.stack([packed >> 4, packed & 15], -1).flatten()
    levels = tensors[f"{stem}.weight.quant_map"].float()[values]
    scales = tensors[f"{stem}.weight.absmax"].float().repeat_interleave(state["blocksize"])
    return (levels * scales[: len(levels)]).reshape(state["shape"])
