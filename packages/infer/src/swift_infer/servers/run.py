"""Serving: check, start, wait until the server is ready, print examples, and wait until it stops."""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import sys
from pathlib import Path

import psutil

from swift.contracts import ServeRequest
from swift.errors import UsageError
from swift_infer.servers import secret
from swift_infer.servers.examples import GENERATES, has_template, summary, url_of
from swift_infer.servers.interpreter import find_interpreter
from swift_infer.servers.process import Ended, Server, Terminated
from swift_infer.servers.program import Launch, ServerProgram, cache_folder

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run_server(program: ServerProgram, request: ServeRequest) -> int:
    """Serve until the user stops it; returns 0 where that was after it was ready."""
    interpreter = find_interpreter(program.library, request.python)
    _check_reach(request)
    request = _with_port(program.checked(request, interpreter))
    log = _log_file(request.port)
    launch = program.launch(request, interpreter)
    url = url_of(request, "https" if launch.https else "http")
    command, environment = _typed(launch)
    _say(f"{interpreter} on the {program.device(interpreter)}, log in {log}")
    if request.task == GENERATES and not has_template(request):
        _say("The model has no chat template: the server rejects chat requests and serves /v1/completions only.")
    failure = program.log.failure
    try:
        with Server(command, environment, log, program.log.stage_of, verbose=request.verbose) as server:
            try:
                server.wait_until_ready(url)
            except Ended as ended:
                raise failure(log, ended.code, str(interpreter), request.model) from None
            sys.stdout.write("\n".join(summary(request, program.served_name(request), url, log)) + "\n")
            sys.stdout.flush()
            try:
                return server.wait()
            except Ended as ended:
                raise failure(log, ended.code, str(interpreter), request.model, ready=True) from None
    except Terminated:  # before the server was ready
        return 128 + signal.SIGTERM


def _check_reach(request: ServeRequest) -> None:
    """Refuse adapters at run time on a network address without a key: such requests read files of this machine."""
    if request.runtime_adapters and request.host not in LOOPBACK and request.api_key is None:
        raise UsageError(
            f"--runtime-adapters on {request.host} without an API key lets any client load files of this machine.",
            hint="Set SWIFT_API_KEY, or remove --host.",
        )


def _typed(launch: Launch) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment, which holds what is not for everybody's eyes."""
    if not launch.secret_flags:
        return launch.command, dict(launch.environment)
    python, dash_m, *rest = launch.command
    assert dash_m == "-m"
    secrets = {secret.VARIABLE: json.dumps(list(launch.secret_flags))}
    return [python, secret.__file__, *rest], {**launch.environment, **secrets}


def _with_port(request: ServeRequest) -> ServeRequest:
    """Return the request with a port that is free now; `UsageError` where the wanted one is not."""
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((request.host, request.port))
        except socket.gaierror:
            raise UsageError(f"Invalid --host {request.host}.", hint="For example: --host 0.0.0.0") from None
        except PermissionError:
            raise UsageError(f"Port {request.port} needs root privileges.", hint="Choose a port above 1023.") from None
        except OSError as error:
            raise UsageError(
                f"{request.host}:{request.port} is not available: {error.strerror}.{_holder(request.port)}",
                hint="Choose another port: --port 8001, or --port 0 for a free one.",
            ) from None
        return dataclasses.replace(request, port=probe.getsockname()[1])


def _holder(port: int) -> str:
    """Return which process uses a port, if this user may know."""
    try:
        held = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
        pid = next((each.pid for each in held if getattr(each.laddr, "port", None) == port), None)
        return f" Process {pid} uses it: {' '.join(psutil.Process(pid).cmdline())[:100]}" if pid else ""
    except psutil.Error:
        return ""


def _log_file(port: int) -> Path:
    """Return the log file of a port, in the user's cache; new each time, and readable by the user alone."""
    log = cache_folder() / f"port-{port}.log"
    log.unlink(missing_ok=True)
    log.touch(mode=0o600)
    return log


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
