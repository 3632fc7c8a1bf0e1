"""vLLM's own server, as anyone starts it, with all its processes gone in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imported import interpreter

from swift.errors import ModelError
from swift_infer import OpenAiServer
from swift_testing.crew import free_port

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # The few lines that vLLM compiles even when it is told not to take longer to compile than all questions here.
    "TORCH_COMPILE_DISABLE": "1",
}
_PATIENCE = 300.0


@contextmanager
def vllm_server(model: Path, log: Path, *, name: str) -> Iterator[str]:
    """Its address, once it answers. It takes new weights."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(interpreter()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "256", "--kv-cache-memory-bytes", "32M", "--enforce-eager"]
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            env={
                **os.environ,
                **ENVIRONMENT,
                "VLLM_SERVER_DEV_MODE": "1",
                # The engine works by itself, without a worker that imports vLLM once more.
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(server, address, log)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            OpenAiServer(address).models()
            return
        except ModelError:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)
