"""LMDeploy's OpenAI server: what is refused beforehand, its flags, and how it is started."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from swift.contracts import ServeRequest
from swift.errors import ModelError, UsageError
from swift.untrusted import read_json_object
from swift_export_lmdeploy.supported import check_adapted, check_architecture
from swift_infer.servers import (
    Interpreter,
    KnownFlags,
    Launch,
    ServerLibrary,
    ServerLog,
    ServerProgram,
    check_known_flags,
    check_language_only,
    flags_in,
    given,
    parsed,
    passed_on,
    run_server,
    server_environment,
)

MODULE = "lmdeploy"
LIBRARY = ServerLibrary(
    title="LMDeploy",
    module="lmdeploy",
    distributions=("lmdeploy",),
    install="lmdeploy",
    remark=", in an environment of its own that --python names: it pins its own torch",
)
LOG = ServerLog(
    title="LMDeploy",
    stages=(
        ("Uvicorn running on", "opening the port"),
        ("warmup", "warming up"),
        ("Loading weights", "loading the weights"),
        ("Convert to turbomind format", "loading the weights"),
        ("input backend=", "reading the configuration"),
    ),
    program="lmdeploy serve api_server",
    prefixes=re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - lmdeploy - "),
)
DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "auto": "auto"}
_SOURCES = ("cli/serve.py", "cli/utils.py")
_OURS = {
    "--adapters": "--adapters NAME=PATH of swift serve",
    "--model-name": "--name",
    "--server-name": "--host",
    "--server-port": "--port",
    "--api-keys": "SWIFT_API_KEY, or --api-key of swift serve,",
    "--proxy-url": "LMDeploy's own command",
}
"""Flags of LMDeploy's that would take the server out of our hands, and what to use instead."""


class LMDeployProgram(ServerProgram):
    """LMDeploy's OpenAI server."""

    library = LIBRARY
    log = LOG

    def checked(self, request: ServeRequest, interpreter: Interpreter) -> ServeRequest:
        """Return the request with flags as LMDeploy spells them; refuse what it would not do as asked."""
        args = passed_on(request.passed_on, "lmdeploy", _OURS, negated=False)
        check_known_flags(args, known_flags(interpreter.folder), interpreter)
        _check_wishes(request)
        config: Any = read_json_object(request.model / "config.json", ModelError)
        name = str((config.get("architectures") or ["model of no architecture"])[0])
        if not config.get("auto_map"):
            check_architecture(name, interpreter)
        if request.adapters:
            check_adapted(name, interpreter)
            check_language_only(request.adapters.values(), "LMDeploy")
            if given("--backend", args) == "turbomind":
                raise UsageError(
                    "LMDeploy's TurboMind backend does not support adapters.",
                    hint="Remove --backend: LMDeploy's PyTorch backend serves adapters.",
                )
        return dataclasses.replace(request, passed_on=args)

    def launch(self, request: ServeRequest, interpreter: Interpreter) -> Launch:
        """Start it on loopback unless told otherwise, with a key that nobody else can read."""
        flags: dict[str, str | None] = {
            "--model-name": request.name,
            "--server-name": request.host,
            "--server-port": str(request.port),
            "--dtype": DTYPES[request.dtype],
            "--session-len": str(request.max_length) if request.max_length else None,
            "--backend": "pytorch" if request.adapters else None,
        }
        command = [str(interpreter.path), "-m", MODULE, "serve", "api_server", str(request.model)]
        command += [word for flag, value in flags.items() if value is not None for word in (flag, value)]
        command += ["--trust-remote-code"] if request.trust_remote_code else []
        if request.adapters:
            command += ["--adapters", *(f"{name}={path}" for name, path in request.adapters.items())]
        return Launch(
            [*command, *request.passed_on],  # the last word is the user's
            server_environment(request),
            https=given("--ssl", request.passed_on) is not None,
            secret_flags=("--api-keys", request.api_key) if request.api_key else (),
        )


def serve(request: ServeRequest) -> int:
    """Start the server, wait until it is ready, and stay until the user stops it."""
    return run_server(LMDeployProgram(), request)


def known_flags(folder: Path) -> KnownFlags | None:
    """Return what the LMDeploy in this folder takes; None where its source is laid out otherwise."""
    flags = {flag for tree in parsed(folder / path for path in _SOURCES) for flag in flags_in(tree)}
    return KnownFlags(frozenset(flags)) if {"--server-port", "--session-len"} <= flags else None


def _check_wishes(request: ServeRequest) -> None:
    """Refuse what LMDeploy has no flag for."""
    merged = "Type --engine vllm, which does."
    if request.runtime_adapters:
        raise UsageError("LMDeploy cannot load adapters at run time.", hint=merged)
    if request.template_arguments:
        raise UsageError("LMDeploy does not support --enable_thinking as a default of the server.", hint=merged)
    if request.chat_template is not None:
        raise UsageError(
            f"LMDeploy reads the chat template from the model's folder, not from {request.chat_template}.",
            hint="Write it into the model: swift export RUN --to hf --out FOLDER, and serve that.",
        )
    if request.dtype not in DTYPES:
        raise UsageError(
            f"LMDeploy does not support --dtype {request.dtype}.", hint="Pass --dtype bfloat16 or float16."
        )
    if not any(request.model.glob("*.safetensors")):
        raise ModelError(
            f"{request.model} has no safetensors weights, and LMDeploy would load pickled ones.",
            hint="Convert them: swift export MODEL --to hf --out FOLDER",
        )
