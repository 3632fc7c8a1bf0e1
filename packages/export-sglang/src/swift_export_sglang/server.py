"""SGLang's OpenAI server: what is refused beforehand, its flags, and how it is started."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path

from swift.contracts import ServeRequest
from swift.errors import UsageError
from swift_infer.servers import (
    Interpreter,
    KnownFlags,
    Launch,
    ServerLibrary,
    ServerLog,
    ServerProgram,
    check_known_flags,
    check_language_only,
    classes_of,
    dashed,
    flags_in,
    given,
    parsed,
    passed_on,
    run_server,
    server_environment,
)

MODULE = "sglang.launch_server"
LIBRARY = ServerLibrary(
    title="SGLang",
    module="sglang",
    distributions=("sglang",),
    install="sglang",
    remark=", in an environment of its own that --python names: it pins its own torch",
)
LOG = ServerLog(
    title="SGLang",
    stages=(
        ("Uvicorn running on", "warming up"),
        ("Capture cuda graph begin", "recording CUDA graphs"),
        ("Memory pool end", "recording CUDA graphs"),
        ("Load weight end", "making the cache"),
        ("Load weight begin", "loading the weights"),
        ("Init torch distributed begin", "starting the workers"),
        ("server_args=", "reading the configuration"),
    ),
    program="launch_server.py",
    prefixes=re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] "),
)
SEPARATOR = ":"
"""Between a model's name and an adapter's, in requests."""
_SOURCES = ("srt/server_args.py", "srt/arg_groups/**/*.py")
_FIELDS = "srt/arg_groups/fields/*.py"
_HIDDEN = "no_cli=True"
_OURS = {
    "--lora-paths": "--adapters NAME=PATH",
    "--model-path": "the model as the first word",
    "--config": "flags",
    "--host": "--host of swift serve",
    "--port": "--port of swift serve",
    "--api-key": "SWIFT_API_KEY, or --api-key of swift serve,",
    "--use-ray": "SGLang's own command",
    "--smg-grpc-mode": "SGLang's own command",
    "--grpc-mode": "SGLang's own command",
}
"""Flags of SGLang's that would take the server out of our hands, and what to use instead."""


class SGLangProgram(ServerProgram):
    """SGLang's OpenAI server."""

    library = LIBRARY
    log = LOG

    def checked(self, request: ServeRequest, interpreter: Interpreter) -> ServeRequest:
        """Return the request with flags as SGLang spells them; `UsageError` for those that neither has."""
        args = passed_on(request.passed_on, "sglang", _OURS, negated=False)
        check_known_flags(args, known_flags(interpreter.folder), interpreter)
        check_language_only(request.adapters.values(), "SGLang")
        taken = [request.name, *request.adapters]
        if len(request.adapters) and any(SEPARATOR in name for name in taken):
            raise UsageError(
                f"Invalid name for SGLang: {SEPARATOR!r} separates the names of model and adapter.",
                hint="Rename them: --name NAME --adapters NAME=PATH",
            )
        return dataclasses.replace(request, passed_on=args)

    def launch(self, request: ServeRequest, interpreter: Interpreter) -> Launch:
        """Start it on weights in safetensors alone, with a key that nobody else can read."""
        arguments = json.dumps(dict(request.template_arguments)) if request.template_arguments else None
        flags: dict[str, str | None] = {
            "--model-path": str(request.model),
            "--served-model-name": request.name,
            "--host": request.host,
            "--port": str(request.port),
            "--dtype": request.dtype,
            "--load-format": "safetensors",  # nothing is unpickled
            "--context-length": str(request.max_length) if request.max_length else None,
            "--chat-template": str(request.chat_template) if request.chat_template else None,
            "--default-chat-template-kwargs": arguments,
        }
        command = [str(interpreter.path), "-m", MODULE]
        command += [word for flag, value in flags.items() if value is not None for word in (flag, value)]
        command += ["--is-embedding"] if request.task == "embedding" else []
        command += ["--trust-remote-code"] if request.trust_remote_code else []
        command += ["--enable-lora"] if request.adapters or request.runtime_adapters else []
        if request.adapters:
            command += ["--lora-paths", *(f"{name}={path}" for name, path in request.adapters.items())]
        elif request.runtime_adapters:
            command += ["--max-lora-rank", "64", "--lora-target-modules", "all"]
        return Launch(
            [*command, *request.passed_on],  # the last word is the user's
            server_environment(request),
            https=given("--ssl-certfile", request.passed_on) is not None,
            secret_flags=("--api-key", request.api_key) if request.api_key else (),
        )

    def served_name(self, request: ServeRequest) -> str:
        """Return a model's name with its adapter's: the adapter's alone would be answered by the model."""
        adapter = next(iter(request.adapters), None)
        return request.name if adapter is None else f"{request.name}{SEPARATOR}{adapter}"


def serve(request: ServeRequest) -> int:
    """Start the server, wait until it is ready, and stay until the user stops it."""
    return run_server(SGLangProgram(), request)


def known_flags(folder: Path) -> KnownFlags | None:
    """Return what the SGLang in this folder takes; None where its source is laid out otherwise."""
    sources = parsed(path for pattern in _SOURCES for path in folder.glob(pattern))
    flags = {flag for tree in sources for flag in flags_in(tree)}
    flags |= {flag for tree in parsed(folder.glob(_FIELDS)) for flag in _fields(tree)}
    return KnownFlags(frozenset(flags)) if {"--model-path", "--port"} <= flags else None


def _fields(source: ast.Module) -> list[str]:
    """Return the flags that classes declare as fields, but for those that are no flags."""
    return [
        f"--{dashed(line.target.id)}"
        for each in classes_of(source)
        for line in each.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and _HIDDEN not in ast.unparse(line)
    ]
