"""The exporter `sglang`: a merged model folder, of a task that SGLang serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift import HOOK_API, hookimpl
from swift_export_sglang.plugin import TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import ExportRequest, WeightStream


class SGLangExporter:
    """Writes what core's exporter `hf` writes: SGLang runs models that it has no code for by transformers."""

    HOOK_API = HOOK_API
    tasks = TASKS

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        from swift.export import HuggingFaceExporter

        folder: Path = HuggingFaceExporter().swift_export(weights, request)
        return folder
