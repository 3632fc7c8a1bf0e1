"""vLLM's log: how far it has come, and what went wrong, in a sentence."""

from __future__ import annotations

import re

from swift.servers import ServerLog

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
