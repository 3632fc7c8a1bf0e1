"""Base classes of plugins with a server: the engine, and the program that `run_server` starts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from swift.contracts import HOOK_API, EngineLibrary, EngineRequest, InferenceEngine, ServeRequest
from swift.errors import UsageError
from swift.files import user_cache
from swift.hookspecs import hookimpl
from swift_infer.servers.interpreter import Interpreter, ServerLibrary
from swift_infer.servers.log import ServerLog


@dataclass(frozen=True)
class Launch:
    """How a server is started."""

    command: list[str]
    """Words of the command line, which everybody on the machine can read: a key is no part of it."""
    environment: Mapping[str, str]
    https: bool = False
    secret_flags: tuple[str, ...] = ()
    """Further words of the command line, which only the server itself gets to see; the command is then Python's, with
    `-m MODULE`."""


class ServerOnlyEngine:
    """An engine whose library pins another torch than the one that trains: it serves, and clients connect to it."""

    HOOK_API = HOOK_API
    title: ClassVar[str]
    library: ClassVar[EngineLibrary]
    """Of the engine's own name."""

    @hookimpl
    def swift_open_engine(self, request: EngineRequest) -> InferenceEngine:
        """Refuse to load a model into this process."""
        name = self.library.module
        raise UsageError(
            f"{self.title} runs as a server only.",
            hint=f"Type: swift serve {request.model} --engine {name}, then pass --engine http://127.0.0.1:8000",
        )


class ServerProgram(ABC):
    """A third-party server with OpenAI's API, without state."""

    library: ClassVar[ServerLibrary]
    log: ClassVar[ServerLog]

    @abstractmethod
    def checked(self, request: ServeRequest, interpreter: Interpreter) -> ServeRequest:
        """Refuse what cannot be served before anything is loaded; return the request with flags as the server has them.

        Errors for users are raised as `swift.errors.SwiftError`.
        """

    @abstractmethod
    def launch(self, request: ServeRequest, interpreter: Interpreter) -> Launch:
        """Return how to start the server, on the host and the port of the request."""

    def device(self, interpreter: Interpreter) -> str:
        """Return the kind of device that it runs on: 'CPU' or 'GPU'."""
        return "GPU"

    def served_name(self, request: ServeRequest) -> str:
        """Return the name of the trained model in requests: its first adapter, or the model itself."""
        return next(iter(request.adapters), request.name)


def server_environment(request: ServeRequest, mine: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a server that reports to nobody and, unless code is trusted, reads folders alone."""
    offline = {} if request.trust_remote_code else {"HF_HUB_OFFLINE": "1"}  # everything that it reads is in folders
    return {"DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", **offline, **mine}


def cache_folder() -> Path:
    """Return the folder of logs and templates in the user's cache."""
    folder = user_cache() / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
