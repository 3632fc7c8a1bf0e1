"""The exporters of core: a merged Hugging Face model, and a PEFT adapter. Registered like anyone's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.contracts import HOOK_API
from swift.errors import ExportError
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import ExportRequest, WeightStream


class HuggingFaceExporter:
    """A model folder that transformers, vLLM and others load: adapters are merged while streaming."""

    HOOK_API = HOOK_API

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        from swift.export.precision import export_dtypes, main_dtype
        from swift.export.writer import ShardedSafetensorsWriter, TensorSpec
        from swift.models.merge import merged
        from swift.models.reordered import as_stored
        from swift.models.source import reordered_in

        source, reordered = request.source, reordered_in(request.source)
        if request.adapter is not None:
            weights = merged(source, weights, request.adapter)
        dtypes = export_dtypes(source, request.options.dtype)
        specs = {name: TensorSpec(dtypes[name], source.shape(name)) for name in source.names()}
        for group in reordered:
            dtype = {specs.pop(name).dtype for name in group.parameters}.pop()
            specs |= {name: TensorSpec(dtype, shape) for name, shape in group.tensors.items()}
        extra = {name: source.read(name) for name in source.extra_names()}  # mapped from the file
        specs |= {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in extra.items()}
        shard_bytes = int(request.options.shard_size_gb * 10**9)
        with ShardedSafetensorsWriter(request.destination, specs, shard_bytes=shard_bytes) as writer:
            for name, tensor in as_stored(reordered, weights):
                writer.write(name, tensor)
                del tensor  # before the next one is read
            for name, tensor in extra.items():
                writer.write(name, tensor)
            writer.finish()
        source.write_assets(request.destination, main_dtype(dtypes.values()))
        return request.destination


class AdapterExporter:
    """An adapter folder that PEFT, vLLM and others load next to the base model; `auto` precision is as trained."""

    HOOK_API = HOOK_API
    needs_adapter = True

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        import torch
        from peft import PeftConfig

        from swift.checkpoint.safetensors_write import write_safetensors
        from swift.models.adapter_file import ADAPTER_WEIGHTS
        from swift.models.sentence_files import write_sentence_files
        from swift.parsing.tasks import EMBEDDING, task_of

        if request.adapter is None:
            raise ExportError("All weights were trained, so there is no adapter to export.", hint="Pass --to hf.")
        choice = request.options.dtype
        tensors = {name: tensor if choice == "auto" else tensor.to(getattr(torch, choice)) for name, tensor in weights}
        write_safetensors(request.destination / ADAPTER_WEIGHTS, tensors, {"format": "pt"})
        config = PeftConfig.from_peft_type(**{**request.adapter, "inference_mode": True})
        config.save_pretrained(request.destination)
        if task_of(request.source) == EMBEDDING:
            size = request.source.config.get_text_config().hidden_size
            write_sentence_files(request.destination, size=size, pooling=getattr(request.source, "pooling", "last"))
        return request.destination
