"""The exporter `lmdeploy`: a merged model folder that the installed LMDeploy loads."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from swift import HOOK_API, hookimpl
from swift_export_lmdeploy.plugin import TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import ExportRequest, WeightStream


class LMDeployExporter:
    """Writes what core's exporter `hf` writes, once LMDeploy, where it is installed, is known to run such a model."""

    HOOK_API = HOOK_API
    tasks = TASKS

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        from swift.export import HuggingFaceExporter

        if importlib.util.find_spec("lmdeploy") is not None:
            from swift.toolkit import architecture_of
            from swift_export_lmdeploy.server import LIBRARY
            from swift_export_lmdeploy.supported import check_architecture
            from swift_infer.servers import find_interpreter

            check_architecture(architecture_of(request.source), find_interpreter(LIBRARY, None))
        folder: Path = HuggingFaceExporter().swift_export(weights, request)
        return folder
