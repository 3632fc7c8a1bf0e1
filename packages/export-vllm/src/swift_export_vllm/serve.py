"""`swift serve` with vLLM: what it refuses beforehand, how much memory it may use, and how it is started."""

from __future__ import annotations

import dataclasses
import sys

from swift.contracts import ServeRequest
from swift.servers import Interpreter, Launch, given
from swift_export_vllm.adapters import check_adapter
from swift_export_vllm.command import flags_for, server_command, server_environment
from swift_export_vllm.interpreter import LIBRARY, on_cpu
from swift_export_vllm.log import LOG
from swift_export_vllm.memory import UTILISATION, MemoryShare, check_gpus, gib, need_of, share_of_memory
from swift_export_vllm.supported import check_on_cpu, check_served


class VllmProgram:
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

    def place(self, interpreter: Interpreter) -> str:
        """Return where this build computes."""
        return "CPU" if on_cpu(interpreter) else "GPU"

    def asked_name(self, request: ServeRequest) -> str:
        """Return an adapter's own name: to vLLM it is a model."""
        return next(iter(request.adapters), request.name)


def _check_memory(request: ServeRequest, interpreter: Interpreter) -> MemoryShare | None:
    need = need_of(request.model, request.dtype)
    if not on_cpu(interpreter):
        parts = int(given("--tensor-parallel-size", request.passed_on) or 1)
        parts *= int(given("--pipeline-parallel-size", request.passed_on) or 1)
        utilisation = float(given("--gpu-memory-utilization", request.passed_on) or UTILISATION)
        check_gpus(need, request.max_length, parts, utilisation)
        return None
    if given("--kv-cache-memory-bytes", request.passed_on) is not None:
        return MemoryShare(cache=0, max_length=request.max_length)  # the user decides
    share = share_of_memory(need, request.max_length)
    if share.max_length != request.max_length:
        sys.stderr.write(
            f"Prompt and answer may have {share.max_length:,} tokens together, of the model's {need.longest:,}: the "
            f"cache for them takes {gib(share.cache)}. --max-length sets another number.\n"
        )
        sys.stderr.flush()
    return share
