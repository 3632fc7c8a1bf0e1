"""The engine `lmdeploy`: it serves; a server that runs is asked like every other one."""

from __future__ import annotations

from swift.contracts import HOOK_API, EngineLibrary, EngineRequest, InferenceEngine, ServeRequest
from swift.errors import UsageError
from swift.hookspecs import hookimpl

TASKS = frozenset({"causal_lm"})
"""Tasks of the models that LMDeploy serves, as values of `model.task`."""


class LMDeployEngine:
    """`swift serve --engine lmdeploy`: LMDeploy's own OpenAI server."""

    HOOK_API = HOOK_API
    tasks = TASKS
    library = EngineLibrary("lmdeploy", {"lmdeploy": "lmdeploy"})

    @hookimpl
    def swift_open_engine(self, request: EngineRequest) -> InferenceEngine:
        """Refuse to load a model into this process: LMDeploy pins another torch than the one that trains."""
        raise UsageError(
            "LMDeploy runs as a server only.",
            hint=f"Type: swift serve {request.model} --engine lmdeploy, then pass --engine http://127.0.0.1:8000",
        )

    @hookimpl
    def swift_serve(self, request: ServeRequest) -> int:
        """Start the server, wait until it is ready, and stay until the user stops it."""
        from swift_export_lmdeploy.server import LMDeployProgram
        from swift_infer.servers import run_server

        return run_server(LMDeployProgram(), request)
