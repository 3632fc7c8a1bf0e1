"""The engine `lmdeploy`, which serves, and the exporter `lmdeploy`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from swift import hookimpl
from swift.contracts import EngineLibrary, ExportRequest, WeightStream
from swift.export import HuggingFaceExporter
from swift.hookspecs import lazy_hook
from swift_infer.servers import ServerOnlyEngine, find_interpreter

TASKS = frozenset({"causal_lm"})
"""Tasks of the models that LMDeploy serves, as values of `model.task`."""


class LMDeployEngine(ServerOnlyEngine):
    """`swift serve --engine lmdeploy`: LMDeploy's own OpenAI server."""

    title = "LMDeploy"
    tasks = TASKS
    library = EngineLibrary("lmdeploy", {"lmdeploy": "lmdeploy"})
    swift_serve = lazy_hook("swift_export_lmdeploy.server:serve")


class LMDeployExporter(HuggingFaceExporter):
    """Writes what core's exporter `hf` writes, once LMDeploy, where it is installed, is known to run such a model."""

    tasks = TASKS

    @hookimpl
    def swift_export(self, weights: WeightStream, request: ExportRequest) -> Path:
        if importlib.util.find_spec("lmdeploy") is not None:
            from swift.toolkit import architecture_of
            from swift_export_lmdeploy.server import LIBRARY
            from swift_export_lmdeploy.supported import check_architecture

            check_architecture(architecture_of(request.source), find_interpreter(LIBRARY, None))
        return super().swift_export(weights, request)
