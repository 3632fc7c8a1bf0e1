"""`swift serve` with vLLM: check, start, wait until it answers, say how to ask it, and stay until it is to stop."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
from pathlib import Path

import psutil

from swift.contracts import ServeRequest
from swift.errors import UsageError
from swift_export_vllm.adapters import check_adapter
from swift_export_vllm.command import check_reach, flags_for, given, server_command, server_environment
from swift_export_vllm.examples import has_template, summary, url_of
from swift_export_vllm.interpreter import Interpreter, find_interpreter
from swift_export_vllm.log import failure
from swift_export_vllm.memory import UTILISATION, MemoryShare, check_gpus, gib, need_of, share_of_memory
from swift_export_vllm.server import Ended, Server, Terminated
from swift_export_vllm.supported import check_heads, check_served
from swift_export_vllm.tasks import GENERATES


def serve(request: ServeRequest) -> int:
    """Serve until the user stops it; returns 0 where that was after it was ready."""
    interpreter = find_interpreter(request.python)
    request = dataclasses.replace(request, passed_on=flags_for(request.passed_on, interpreter))
    check_reach(request)
    check_served(request.model, interpreter)
    check_heads(request.model, interpreter)
    for adapter in request.adapters.values():
        check_adapter(adapter)
    share = _check_memory(request, interpreter)
    request = _with_port(request)
    scheme = "https" if given("--ssl-certfile", request.passed_on) else "http"
    url = url_of(request, scheme)
    log = _log_file(request.port)
    command = server_command(request, interpreter, share)
    _say(f"{interpreter} on the {'CPU' if interpreter.on_cpu else 'GPU'}, log in {log}")
    if request.task == GENERATES and not has_template(request):
        _say("The model has no chat template: requests for chats will be refused, completions answered.")
    try:
        with Server(command, server_environment(request, interpreter), log, verbose=request.verbose) as server:
            return _serve_until_stopped(server, request, url, log, interpreter)
    except Terminated:  # before the server was ready
        return 128 + signal.SIGTERM


def _serve_until_stopped(server: Server, request: ServeRequest, url: str, log: Path, interpreter: Interpreter) -> int:
    try:
        server.wait_until_ready(url)
    except Ended as ended:
        raise failure(log, ended.code, str(interpreter), request.model) from None
    sys.stdout.write("\n".join(summary(request, url, log)) + "\n")
    sys.stdout.flush()
    try:
        return server.wait()
    except Ended as ended:
        raise failure(log, ended.code, str(interpreter), request.model, ready=True) from None


def _check_memory(request: ServeRequest, interpreter: Interpreter) -> MemoryShare | None:
    need = need_of(request.model, request.dtype)
    if not interpreter.on_cpu:
        parts = int(given("--tensor-parallel-size", request.passed_on) or 1)
        parts *= int(given("--pipeline-parallel-size", request.passed_on) or 1)
        utilisation = float(given("--gpu-memory-utilization", request.passed_on) or UTILISATION)
        check_gpus(need, request.max_length, parts, utilisation)
        return None
    if given("--kv-cache-memory-bytes", request.passed_on) is not None:
        return MemoryShare(cache=0, max_length=request.max_length)  # the user decides
    share = share_of_memory(need, request.max_length)
    if share.max_length != request.max_length:
        _say(
            f"Prompt and answer may have {share.max_length:,} tokens together, of the model's {need.longest:,}: the "
            f"cache for them takes {gib(share.cache)}. --max-length sets another number."
        )
    return share


def _with_port(request: ServeRequest) -> ServeRequest:
    """Return the request with a port that is free now; `UsageError` where the wanted one is not."""
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((request.host, request.port))
        except socket.gaierror:
            raise UsageError(f"There is no address {request.host}.", hint="For example: --host 0.0.0.0") from None
        except PermissionError:
            raise UsageError(f"Port {request.port} is not for everybody.", hint="Choose one above 1023.") from None
        except OSError as error:
            raise UsageError(
                f"{request.host}:{request.port} cannot be listened on: {error.strerror}.{_holder(request.port)}",
                hint="Choose another: --port 8001, or --port 0 for any that is free.",
            ) from None
        return dataclasses.replace(request, port=probe.getsockname()[1])


def _holder(port: int) -> str:
    """Return which process has a port, where this user may know."""
    try:
        held = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
        pid = next((each.pid for each in held if getattr(each.laddr, "port", None) == port), None)
        return f" Process {pid} has it: {' '.join(psutil.Process(pid).cmdline())[:100]}" if pid else ""
    except psutil.Error:
        return ""


def _log_file(port: int) -> Path:
    """Return one for each port, in the user's cache; written again each time, and for nobody else to read."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "swift" / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"port-{port}.log"
    log.unlink(missing_ok=True)
    log.touch(mode=0o600)
    return log


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
