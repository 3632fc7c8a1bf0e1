"""The exporter `vllm`: a merged model folder that the installed vLLM loads, and quantised forms of it."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from swift import hookimpl
from swift.contracts import ExportRequest, WeightStream
from swift.export import HuggingFaceExporter
from swift.hookspecs import lazy_hook
from swift_export_vllm.plugin import TASKS
from swift_export_vllm.quantise.schemes import SCHEMES


class VllmExporter(HuggingFaceExporter):
    """Writes what core's exporter `hf` writes, once vLLM is known to run such a model."""

    schemes = MappingProxyType({name: scheme.facts for name, scheme in SCHEMES.items()})
    tasks = TASKS
    swift_quantize = lazy_hook("swift_export_vllm.quantise.run:quantise")

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        from swift_export_vllm.supported import check_exported

        check_exported(request.source)
        return super().swift_export(weights, request)
