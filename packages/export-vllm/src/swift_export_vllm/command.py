"""The command line and the environment of vLLM's OpenAI server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.contracts import ServeRequest
from swift.errors import ModelError, UsageError, did_you_mean
from swift.untrusted import read_json_object
from swift_export_vllm.adapters import AT_ONCE, room_for
from swift_export_vllm.interpreter import SERVER, on_cpu
from swift_export_vllm.known_flags import known_flags
from swift_export_vllm.memory import MemoryShare
from swift_export_vllm.plugin import GENERATES
from swift_infer.servers import Interpreter, KnownFlags, check_known_flags, passed_on
from swift_infer.servers import server_environment as quiet_environment

RUNTIME = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_OURS = {
    "--lora-modules": "--adapters NAME=PATH",
    "--host": "--host of swift serve",
    "--port": "--port of swift serve",
    "--api-key": "SWIFT_API_KEY, or --api-key of swift serve,",
    "--uds": "--host and --port",
    "--headless": "vLLM's own command",
    "--api-server-count": "vLLM's own command",
}
"""Flags of vLLM's that would take the server out of our hands, and what to type instead."""


def flags_for(arguments: tuple[str, ...], interpreter: Interpreter) -> tuple[str, ...]:
    """Return flags for vLLM as it spells them; `UsageError` for those that it does not have, or that are swift's.

    `--vllm_NAME` means `--NAME`, as in other programs, and a switch may be followed by true or false.
    """
    args = passed_on(arguments, "vllm", _OURS)
    check_known_flags(args, _known(interpreter), interpreter)
    return args


def _known(interpreter: Interpreter) -> KnownFlags | None:
    """Return the flags and settings of vLLM, unless plugins of it may bring others."""
    return None if interpreter.plugins else known_flags(interpreter.folder)


def check_options(options: Mapping[str, Any], interpreter: Interpreter) -> None:
    """Raise `UsageError` for settings that `vllm.LLM` does not take."""
    known = _known(interpreter)
    if known is not None and (unknown := [name for name in options if name not in known.options]):
        raise UsageError(
            f"{interpreter} has no setting {unknown[0]!r}.{did_you_mean(unknown[0], sorted(known.options))}",
            hint="Settings of the engine are given as --engine_options.NAME VALUE, or as --vllm_NAME VALUE.",
        )


def server_command(request: ServeRequest, interpreter: Interpreter, share: MemoryShare | None) -> list[str]:
    """Return the command line of the server. `share` is the part of the CPU's memory it may use."""
    template_arguments = json.dumps(dict(request.template_arguments)) if request.template_arguments else None
    flags: dict[str, str | None] = {
        "--model": str(request.model),
        "--served-model-name": request.name,
        "--host": request.host,
        "--port": str(request.port),
        "--dtype": request.dtype,
        "--load-format": "safetensors",  # nothing is unpickled
        "--max-model-len": str(request.max_length) if request.max_length else None,
        "--chat-template": str(request.chat_template) if request.chat_template else None,
        "--default-chat-template-kwargs": template_arguments,
    }
    if request.task != GENERATES:
        flags["--runner"] = "pooling"
    if request.decision_tokens is not None:
        flags["--hf-overrides"] = json.dumps(_as_reranker(request.model, request.decision_tokens))
    switches = ["--trust-remote-code"] if request.trust_remote_code else []
    if share is not None:
        # Compiling would need a C++ compiler and minutes, and vLLM's own idea is to take nearly all of the memory.
        flags["--kv-cache-memory-bytes"] = str(share.cache) if share.cache else None
        flags["--max-model-len"] = str(share.max_length) if share.max_length else flags["--max-model-len"]
        switches.append("--enforce-eager")
    if request.adapters or request.runtime_adapters:
        more = request.runtime_adapters
        flags["--max-lora-rank"] = str(room_for(request.adapters.values(), more=more))
        flags["--max-loras"] = str(min(AT_ONCE, len(request.adapters) + more))
        switches.append("--enable-lora")
    if request.runtime_adapters and request.api_key is None:
        # A page in the user's browser could otherwise ask this server to load files.
        flags["--allowed-origins"] = "[]"
    command = [str(interpreter.path), "-m", SERVER]
    command += [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    command += switches
    if request.adapters:
        modules = [json.dumps({"name": name, "path": str(path)}) for name, path in request.adapters.items()]
        command += ["--lora-modules", *modules]
    return [*command, *request.passed_on]  # the last word is the user's


def _as_reranker(model: Path, tokens: tuple[str, str]) -> dict[str, Any]:
    """Return what vLLM reads over config.json to make a head of one label of two rows of the unembedding."""
    named = read_json_object(model / "config.json", ModelError).get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    if not architecture.endswith("ForCausalLM"):
        raise ModelError(
            f"{model} is a {architecture or 'model without a class'}, and vLLM makes rerankers of ...ForCausalLM.",
            hint="Type --task_type causal_lm to serve it as a language model.",
        )
    return {
        "architectures": [architecture.removesuffix("ForCausalLM") + "ForSequenceClassification"],
        "classifier_from_token": list(reversed(tokens)),  # no, yes
        "method": "from_2_way_softmax",
        "is_original_qwen3_reranker": True,  # vLLM reads it for Qwen3 alone, whose method it then sets itself
        "num_labels": 1,
    }


def server_environment(request: ServeRequest, interpreter: Interpreter) -> dict[str, str]:
    """Return the server's environment, which holds the key: everybody on the machine can read a command line."""
    mine = {name: value for name, value in os.environ.items() if name not in ("VLLM_API_KEY", RUNTIME)}
    environment = quiet_environment(request, mine)
    if request.api_key is not None:
        environment["VLLM_API_KEY"] = request.api_key
    if request.runtime_adapters:
        environment[RUNTIME] = "1"
    if on_cpu(interpreter):
        # The first request for log-probabilities would otherwise wait for a C++ compiler, or die for want of one.
        environment.setdefault("TORCH_COMPILE_DISABLE", "1")
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    return environment
