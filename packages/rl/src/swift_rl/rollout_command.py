"""`swift rollout MODEL`: a vLLM server for the rollouts of a run, which accepts new weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from swift.errors import UsageError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOGPROBS = ("--logprobs-mode", "--vllm-logprobs-mode")
_EXTENSIONS = ("--worker-extension-cls", "--vllm-worker-extension-cls")
_HELP = """swift rollout MODEL [flags]

Serve a model for the rollouts of a run: as `swift serve` does, with vLLM, and with the settings that rollouts need.

  VLLM_SERVER_DEV_MODE=1                 in its environment: requests may replace the weights
  --logprobs-mode processed_logprobs     log-probabilities are those of the sampling distribution
  --worker-extension-cls ...             samples equal those of the engine in the run's processes, and missing weights
                                         are named (not with --python, whose environment may lack swift-export-vllm)

Pass its address to a run:

  swift rollout qwen3-0.6b --port 8000
  swift rlhf --rlhf_type grpo --model qwen3-0.6b --rollout_engine http://127.0.0.1:8000 ...

With --runtime-adapters, a run that trains adapters sends only these, otherwise whole weights.

Anyone who reaches the server can change its weights, so it listens on this machine only (--host must be a loopback
address).
All other flags are those of swift serve, and vLLM's: swift serve --help
"""


class RolloutCommand:
    """Implements `swift.contracts.Command`."""

    group = "Train"
    summary = "Serve a model for rollouts: vLLM, on this machine, with weights that a run replaces"
    options_model = None

    def run(self, argv: Sequence[str]) -> int:
        """Replace this process by `swift serve` with the settings for rollouts."""
        if not argv or {"-h", "--help"} & set(argv):
            sys.stdout.write(_HELP)
            return 0 if argv else 2
        arguments, environment = server(argv, os.environ)
        sys.stdout.flush()
        return os.execve(sys.executable, [sys.executable, *arguments], environment)


def server(argv: Sequence[str], mine: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of Python and the environment of the server that these arguments request."""
    host = _value("--host", argv)
    if host is not None and host not in _LOOPBACK:
        raise UsageError(
            f"--host {host} is not a loopback address. Anyone who reaches the "
            "server can replace its weights and let it read files.",
            hint="Leave --host out, and use a tunnel: ssh -L 8000:127.0.0.1:8000 MACHINE",
        )
    ours = [] if _has(argv, *_LOGPROBS) else ["--logprobs-mode", "processed_logprobs"]
    if not _has(argv, "--python", *_EXTENSIONS):
        ours += ["--worker-extension-cls", "swift_export_vllm.worker.RolloutWorker"]
    return ["-m", "swift", "serve", *argv, *ours], {**mine, "VLLM_SERVER_DEV_MODE": "1"}


def _has(argv: Sequence[str], *flags: str) -> bool:
    return any(_value(flag, argv) is not None for flag in flags)


def _value(flag: str, argv: Sequence[str]) -> str | None:
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        name, has_value, value = argument.partition("=")
        if name.replace("_", "-") == flag:
            return value if has_value else following
    return None
