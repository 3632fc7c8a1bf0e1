"""The engine `vllm`: a thin face of the modules next to it, which are imported when they are needed."""

from __future__ import annotations

from swift.contracts import HOOK_API, EngineLibrary, EngineRequest, InferenceEngine, ServeRequest
from swift.hookspecs import hookimpl
from swift_export_vllm.interpreter import DISTRIBUTIONS
from swift_export_vllm.tasks import SERVED


class VllmEngine:
    """`--engine vllm`: continuous batching, paged attention, adapters next to their base model, an OpenAI server."""

    HOOK_API = HOOK_API
    tasks = SERVED
    library = EngineLibrary("vllm", {name: f"swift-core[{name}]" for name in DISTRIBUTIONS})

    @hookimpl
    def swift_open_engine(self, request: EngineRequest) -> InferenceEngine:
        """Load the model into vLLM, in this process; with the setting `servers`, connect to those that serve it."""
        if "servers" in request.options:
            from swift_export_vllm.rollout import open_servers

            return open_servers(request)
        from swift_export_vllm.engine import open_engine

        return open_engine(request)

    @hookimpl
    def swift_serve(self, request: ServeRequest) -> int:
        """Start the server, wait until it is ready, and stay until the user stops it."""
        from swift_export_vllm.serve import VllmProgram
        from swift_infer.servers import run_server

        return run_server(VllmProgram(), request)
