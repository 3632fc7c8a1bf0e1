"""`swift serve` with vLLM: checks, memory and command line."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from swift.contracts import ServeRequest
from swift.errors import UsageError
from swift.terminal import print_note
from swift_export_vllm.adapters import check_adapter
from swift_export_vllm.command import flags_for, server_command, server_environment
from swift_export_vllm.interpreter import LIBRARY, on_cpu
from swift_export_vllm.memory import UTILISATION, MemoryShare, check_gpus, gib, need_of, share_of_memory
from swift_export_vllm.supported import check_on_cpu, check_served
from swift_infer.servers import Interpreter, Launch, ServerLog, ServerProgram, given, run_server

LOG = ServerLog(
    title="vLLM",
    stages=(
        ("Starting vLLM server", "opening the port"),
        ("KV cache size", "making the cache"),
        ("Loading weights took", "making the cache"),
        ("Starting to load model", "loading the weights"),
        ("Initializing a V1 LLM engine", "starting the workers"),
        ("Resolved architecture", "starting the engine"),
        ("non-default args", "reading the configuration"),
    ),
    program="api_server.py",
    prefixes=re.compile(r"^(?:\(\w[\w-]* pid=\d+\) )?(?:(?:ERROR|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?"),
    wrappers=("Engine core initialization failed", "WorkerProc initialization failed", "Failed core proc"),
)
_OTHER_MACHINES = ("--config", "--distributed-executor-backend", "--data-parallel-size-local", "--nnodes", "-n")
"""Flags after which other GPUs than this machine's may hold a part, or a file says how many do."""
_WHOLE = re.compile(r"0*[1-9]\d{0,5}", re.ASCII)


class VllmProgram(ServerProgram):
    """vLLM's OpenAI server."""

    library = LIBRARY
    log = LOG

    def checked(self, request: ServeRequest, interpreter: Interpreter) -> ServeRequest:
        """Refuse models, heads and adapters that vLLM would refuse after it has loaded everything else."""
        request = dataclasses.replace(request, passed_on=flags_for(request.passed_on, interpreter))
        check_served(request.model, interpreter)
        check_on_cpu(request.model, interpreter)
        for adapter in request.adapters.values():
            check_adapter(adapter)
        return request

    def launch(self, request: ServeRequest, interpreter: Interpreter) -> Launch:
        """Start it with as much memory as this machine has for it."""
        share = _check_memory(request, interpreter)
        return Launch(
            server_command(request, interpreter, share),
            server_environment(request, interpreter),
            https=given("--ssl-certfile", request.passed_on) is not None,
        )

    def device(self, interpreter: Interpreter) -> str:
        """Return where this build computes."""
        return "CPU" if on_cpu(interpreter) else "GPU"


def serve(request: ServeRequest) -> int:
    """Start the server, wait until it is ready, and stay until the user stops it."""
    return run_server(VllmProgram(), request)


def _check_memory(request: ServeRequest, interpreter: Interpreter) -> MemoryShare | None:
    need = need_of(request.model, request.dtype)
    if not on_cpu(interpreter):
        if (spread := _spread(request.passed_on)) is not None:
            check_gpus(need, request.max_length, *spread)
        return None
    if given("--kv-cache-memory-bytes", request.passed_on) is not None:
        return MemoryShare(cache=0, max_length=request.max_length)  # the user decides
    share = share_of_memory(need, request.max_length)
    if share.max_length != request.max_length:
        print_note(
            f"The maximum length is {share.max_length:,} tokens, not the model's {need.longest:,}, for a cache of "
            f"{gib(share.cache)}. To change it, pass --max-length."
        )
    return share


def _spread(args: Sequence[str]) -> tuple[int, float] | None:
    """Return how many GPUs of this machine share the weights, and the part of each that is taken, if that is known."""
    if given(_OTHER_MACHINES[0], args, *_OTHER_MACHINES[1:]) is not None:
        return None
    parts = _whole(args, "--tensor-parallel-size", "-tp") * _whole(args, "--pipeline-parallel-size", "-pp")
    if given("--enable-expert-parallel", args, "-ep") is not None:
        parts *= _whole(args, "--data-parallel-size", "-dp")
    value = given("--gpu-memory-utilization", args)
    try:
        utilisation = UTILISATION if value is None else float(value)
    except ValueError:
        utilisation = math.nan
    if not 0 < utilisation <= 1:
        raise UsageError(f"Invalid --gpu-memory-utilization {value}: must be above 0 and at most 1.")
    return parts, utilisation


def _whole(args: Sequence[str], flag: str, short: str) -> int:
    value = given(flag, args, short)
    if value is not None and not _WHOLE.fullmatch(value):
        raise UsageError(f"Invalid {flag} {value}: must be a whole number above 0.")
    return int(value or 1)
