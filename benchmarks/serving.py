"""Compare `swift serve` with vLLM's own server: time to the first token, and requests per second.

Both serve the same folder, started alternately with the same settings and queried by the same client, with the
questions of the short chats, several at a time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.commands import SWIFT, environment
from benchmarks.facts import Figure, read_lines
from benchmarks.inputs import CHATS, MODEL, WORK, ensure

SETTINGS = ("--dtype", "float32", "--max-model-len", "1024", "--kv-cache-memory-bytes", "256M", "--enforce-eager")
AT_ONCE = 8
TOKENS = 32
_GLANCE = 0.02
_PATIENCE = 600.0


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    rounds, requests = (1, 40) if quick else (3, 200)
    course(_plain, requests=8)  # leaves compiled modules behind
    variants = {"swift": partial(course, _swift, requests), "vllm": partial(course, _plain, requests)}
    taken = Rounds(variants, rounds)
    to_first_token, rate = (taken.ratio("swift", "vllm", what) for what in ("first_token", "rate"))
    figures = [
        Figure("time from the command to the first token over plain vLLM's", to_first_token, at_most=1.1),
        Figure("time from the command to the first token", taken.median("swift", "first_token"), unit="s"),
        Figure("requests a second over plain vLLM's", rate, at_least=0.95),
        Figure("requests a second", taken.median("swift", "rate"), unit="/s"),
    ]
    notes = [f"{AT_ONCE} requests at a time, {TOKENS} tokens each; vLLM's settings are {' '.join(SETTINGS)}."]
    return figures, {"rounds": taken.taken, "notes": notes}


def _swift(port: int) -> list[str]:
    return [SWIFT, "serve", str(MODEL), "--name", "model", "--port", str(port), *SETTINGS]


def _plain(port: int) -> list[str]:
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)]
    return [*server, "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port), *SETTINGS]


def course(command: Any, requests: int) -> dict[str, float]:
    """Seconds to the first token, and requests a second afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    questions = _questions(requests)
    begin = time.perf_counter()
    with _running(command(port)) as process:
        while not _completed(url, questions[0], tokens=1):
            if process.poll() is not None or time.perf_counter() - begin > _PATIENCE:
                sys.exit(f"{' '.join(command(port))}\ndid not come up: see {WORK / 'server.txt'}")
            time.sleep(_GLANCE)
        first_token = time.perf_counter() - begin
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda question: _completed(url, question), questions[:AT_ONCE]))
            begin = time.perf_counter()
            completed = sum(pool.map(lambda question: _completed(url, question), questions))
            seconds = time.perf_counter() - begin
    if completed != requests:
        sys.exit(f"{requests - completed} of {requests} requests failed: see {WORK / 'server.txt'}")
    return {"first_token": first_token, "rate": requests / seconds}


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = {"VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with (WORK / "server.txt").open("w") as output:
        process = subprocess.Popen(
            command, env=environment(**quiet), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, signal.SIGTERM)  # a script in the background ignores SIGINT
        process.wait(60)


def _questions(count: int) -> list[list[dict[str, str]]]:
    return [line["messages"][:1] for line in read_lines(CHATS)[:count]]


def _completed(url: str, messages: list[dict[str, str]], tokens: int = TOKENS) -> bool:
    """Return whether it was answered; of the same length whatever the model would like to say."""
    body = {"model": "model", "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return bool(json.load(response)["usage"]["completion_tokens"] == tokens)
    except (urllib.error.URLError, ConnectionError):
        return False
