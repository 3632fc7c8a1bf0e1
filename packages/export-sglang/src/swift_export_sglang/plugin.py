"""The engine `sglang`, which serves, and the exporter `sglang`."""

from __future__ import annotations

from swift.contracts import EngineLibrary
from swift.export import HuggingFaceExporter
from swift.hookspecs import lazy_hook
from swift_infer.servers import ServerOnlyEngine

TASKS = frozenset({"causal_lm", "embedding"})
"""Tasks of the models that SGLang serves, as values of `model.task`."""


class SGLangEngine(ServerOnlyEngine):
    """`swift serve --engine sglang`: SGLang's own OpenAI server."""

    title = "SGLang"
    tasks = TASKS
    library = EngineLibrary("sglang", {"sglang": "sglang"})
    swift_serve = lazy_hook("swift_export_sglang.server:serve")


class SGLangExporter(HuggingFaceExporter):
    """Writes what core's exporter `hf` writes: SGLang runs models that it has no code for by transformers."""

    tasks = TASKS
