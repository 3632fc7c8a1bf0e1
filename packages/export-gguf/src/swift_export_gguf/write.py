"""Write a model as one GGUF file, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType

from swift.contracts import ExportRequest, ModelSource, WeightStream
from swift.errors import ExportError, listed
from swift.toolkit import merged
from swift_export_gguf.architectures import add_metadata, architecture_of, rope_factors
from swift_export_gguf.modelfile import write_modelfile
from swift_export_gguf.plugin import AUTO
from swift_export_gguf.vocabulary import add_vocabulary

FILE = "model.gguf"
ROPE_FACTORS = "rope_freqs.weight"
_OF_DTYPE = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def export(weights: WeightStream, request: ExportRequest) -> Path:
    """Write `model.gguf` and `Modelfile`; adapters are merged."""
    source = request.source
    if request.adapter is not None:
        weights = merged(source, weights, request.adapter)
    config = source.config
    architecture = architecture_of(config)
    kind = _kind(request)
    names = gguf_names(source)
    writer = GGUFWriter(request.destination / FILE, architecture.name)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(Path(config.name_or_path).name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    add_metadata(writer, config, architecture)
    add_vocabulary(writer, source.tokenizer, config.vocab_size)
    shapes = {names[name]: source.shape(name) for name in names}
    factors = rope_factors(config)
    if factors is not None:
        shapes[ROPE_FACTORS] = tuple(factors.shape)
    specs = {name: (shape, _stored_type(name, shape, kind)) for name, shape in shapes.items()}
    offsets = _begin(writer, specs)
    assert writer.fout is not None
    file = writer.fout[0]
    if factors is not None:
        _write_tensor(file, offsets.pop(ROPE_FACTORS), factors, GGMLQuantizationType.F32)
    for each, tensor in weights:
        name = names[each]
        weight = architecture.stored(name, tensor.detach().float().cpu(), config)
        _write_tensor(file, offsets.pop(name), weight, specs[name][1])
    writer.close()
    if offsets:
        raise ExportError(f"{len(offsets)} weights were never passed: {listed(list(offsets))}.")
    write_modelfile(request.destination, FILE, source.tokenizer)
    return request.destination


def gguf_names(source: ModelSource) -> dict[str, str]:
    """Return the GGUF name of every weight; refuse one that llama.cpp does not know."""
    name = architecture_of(source.config).name
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    known = gguf.get_tensor_name_map(architecture, source.config.num_hidden_layers)
    found = {each: known.get_name(each, try_suffixes=(".weight", ".bias")) for each in source.names()}
    for each, stored in found.items():
        if stored is None:
            raise ExportError(f"llama.cpp has no tensor for {each} in {name} models.")
    return {each: stored for each, stored in found.items() if stored is not None}


def _kind(request: ExportRequest) -> str:
    """Return the type of the matrices; `auto` is the precision that core's `--dtype` gives to most of them."""
    kind: str = getattr(request.own, "outtype", AUTO)
    if kind != AUTO:
        return kind
    if request.options.dtype != "auto":
        return _OF_DTYPE[getattr(torch, request.options.dtype)]
    matrix = next(name for name in request.source.names() if len(request.source.shape(name)) > 1)
    return _OF_DTYPE.get(request.source.read(matrix).dtype, "f32")


def _stored_type(name: str, shape: tuple[int, ...], kind: str) -> GGMLQuantizationType:
    if len(shape) < 2 or name.endswith("_norm.weight"):
        return GGMLQuantizationType.F32  # llama.cpp reads vectors in no other type
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    return GGMLQuantizationType[kind.upper()] if shape[-1] % block == 0 else GGMLQuantizationType.F16


def _begin(writer: GGUFWriter, specs: Mapping[str, tuple[tuple[int, ...], GGMLQuantizationType]]) -> dict[str, int]:
    """Write everything before the tensors' values, and return where those of each tensor belong in the file."""
    sizes = {}
    for name, (shape, stored) in specs.items():
        block, width = GGML_QUANT_SIZES[stored]
        sizes[name] = math.prod(shape) // block * width
        writer.add_tensor_info(name, shape, np.dtype(np.float32), sizes[name], raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    offsets, end = {}, GGUFWriter.ggml_pad(writer.fout[0].tell(), writer.data_alignment)
    for name, size in sizes.items():
        offsets[name], end = end, end + GGUFWriter.ggml_pad(size, writer.data_alignment)
    writer.fout[0].truncate(end)
    return offsets


def _write_tensor(file: BinaryIO, offset: int, tensor: torch.Tensor, stored: GGMLQuantizationType) -> None:
    file.seek(offset)
    file.write(np.ascontiguousarray(gguf.quantize(tensor.contiguous().numpy(), stored)).data)
