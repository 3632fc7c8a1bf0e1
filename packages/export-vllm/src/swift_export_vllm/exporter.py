"""The exporter `vllm`: a merged model folder that the installed vLLM loads, and quantised forms of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from swift import HOOK_API, hookimpl
from swift_export_vllm.quantise.schemes import SCHEMES
from swift_export_vllm.tasks import TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import ExportRequest, Quantized, QuantizeRequest, WeightStream


class VllmExporter:
    """Writes what core's exporter `hf` writes, once vLLM is known to run such a model."""

    HOOK_API = HOOK_API
    schemes = MappingProxyType({name: scheme.facts for name, scheme in SCHEMES.items()})
    tasks = TASKS

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        from swift.export import HuggingFaceExporter
        from swift_export_vllm.supported import check_exported, check_task

        check_task(request.source)
        check_exported(request.source)
        folder: Path = HuggingFaceExporter().swift_export(weights, request)
        return folder

    @hookimpl
    def swift_quantize(self, request: QuantizeRequest) -> Quantized:
        from swift_export_vllm.quantise.run import quantise

        return quantise(request)
