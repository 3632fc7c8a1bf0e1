"""Third-party flags of GRPO that depend on each other: the rollout engine, and the steps of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swift.config import Assignment, Draft, as_switch, literal, quoted, whole_number
from swift.errors import ConfigError
from swift.untrusted import parse_json

_VLLM, _VLLM_TITLE, _TRANSFORMERS = "vllm", "vLLM", "transformers"
OBJECTIVES = ("gkd", "grpo", "ppo")
"""Objectives that sample completions during training."""
_ENVIRONMENT = "objective.environment"
_ROLLOUT_ENGINE, _STEPS = "objective.rollout_engine", "objective.steps_per_generation"
_ENGINE_SETTING = "engine."
_ANY_ADDRESS = ("0.0.0.0", "::")
"""Addresses that a server may listen on, and no client can connect to."""
_PORT = 8000


def settle_online(draft: Draft) -> None:
    """Replace requests about rollouts by keys."""
    _max_prompt_length(draft)
    _environment(draft)
    _engine(draft)
    _engine_settings(draft)
    _steps(draft)


def _max_prompt_length(draft: Draft) -> None:
    """Read the limit of prompts as `data.max_length` for objectives that read prompts."""
    if draft.value("objective.name") not in OBJECTIVES or (limit := draft.take("max_prompt_length")) is None:
        return
    if str(limit.value).lower() not in ("none", "null"):
        draft.set("data.max_length", limit.value, limit.source)
        draft.default("data.truncation", "left", limit.source)


def _environment(draft: Draft) -> None:
    """Check that an environment is named where one is requested."""
    scheduler = draft.take("gym_scheduler")
    if scheduler is not None and draft.get(_ENVIRONMENT) is not None:
        draft.note(f"{scheduler.source} is not needed: {draft.source(_ENVIRONMENT)} selects the environment.")
    elif scheduler is not None:
        draft.set(_ENVIRONMENT, scheduler.value, scheduler.source)
    use = draft.take("use_gym_env")
    if use is None:
        return
    named = draft.get(_ENVIRONMENT)
    if as_switch(use.value, use.source):
        if named is None or named.value is None:
            raise ConfigError(
                f"{use.source} needs an environment.", hint="Type --gym_env NAME; a row's env_config may name another."
            )
    elif named is not None:
        draft.drop(_ENVIRONMENT)
        draft.note(f"{named.source} has no effect: {use.source} is false.")


def _engine(draft: Draft) -> None:
    """Select the inference engine: vLLM in this process, servers by address, or transformers."""
    use, mode = draft.take("use_vllm"), draft.take("vllm_mode")
    servers = draft.take_all("vllm_server_")
    if use is None and mode is None and not servers:
        return
    if use is not None and not as_switch(use.value, use.source):
        draft.default(_ROLLOUT_ENGINE, _TRANSFORMERS, use.source)
        others = [each.source for each in (mode, *servers.values()) if each is not None]
        if others:
            draft.note(f"{_named(others)} no effect: {use.source} is false.")
        return
    request = next(each for each in (use, mode, *servers.values()) if each is not None)
    name = None if mode is None else str(mode.value).lower()
    if name not in (None, "none", "colocate", "server"):
        assert mode is not None
        raise ConfigError(f"{mode.source} must be colocate or server, not {quoted(mode.value)}.")
    on_servers = name == "server" or (name in (None, "none") and bool(servers.keys() - {"port"}))
    engine = ",".join(_addresses(servers)) if on_servers else _VLLM
    if servers and not on_servers:
        typed = _named(each.source for each in servers.values())
        draft.note(f"{typed} no effect: --vllm_mode colocate runs {_VLLM_TITLE} in the process that trains.")
    draft.set(_ROLLOUT_ENGINE, engine, request.source)


def _addresses(servers: Mapping[str, Assignment]) -> list[str]:
    """Return the address of each server: its base URL, or its host and port."""
    if "base_url" in servers:
        return [str(each).rstrip("/") for each in _listed(servers["base_url"])]
    hosts = _listed(servers["host"]) if "host" in servers else ["127.0.0.1"]
    ports = _listed(servers["port"]) if "port" in servers else [_PORT]
    if len(ports) == 1:
        ports = ports * len(hosts)
    if len(ports) != len(hosts):
        raise ConfigError(
            f"{servers['port'].source} has {len(ports)} values for {len(hosts)} servers.", hint="Pass one for each."
        )
    reached = ["127.0.0.1" if str(host) in _ANY_ADDRESS else str(host) for host in hosts]
    return [f"http://{host}:{port}" for host, port in zip(reached, ports, strict=True)]


def _listed(assignment: Assignment) -> list[Any]:
    value = assignment.value
    return list(value) if isinstance(value, list | tuple) else [value]


def _engine_settings(draft: Draft) -> None:
    """Pass settings of vLLM to the engine where it is vLLM in this process; otherwise note that they have no effect."""
    requests = draft.take_all(_ENGINE_SETTING)
    whole = draft.take("engine_kwargs")
    if whole is not None and whole.value not in (None, "", "none"):
        content = parse_json(whole.value, whole.source, ConfigError) if isinstance(whole.value, str) else whole.value
        if not isinstance(content, Mapping):
            raise ConfigError(f"{whole.source} must be a JSON object, not {quoted(whole.value)}.")
        requests |= {str(name): Assignment(value, whole.source) for name, value in content.items()}
    engine = draft.get(_ROLLOUT_ENGINE)
    if engine is not None and str(engine.value) == _VLLM:
        for name, each in requests.items():
            draft.set(f"objective.rollout_options.{name}", literal(each.value), each.source)
    elif requests:
        typed = _named(each.source for each in requests.values())
        draft.note(f"{typed} no effect: {_VLLM_TITLE} does not run in this process (--use_vllm true).")


def _steps(draft: Draft) -> None:
    """Convert the length of a round to optimizer steps; TRL and ms-swift count micro-batches, or completions."""
    micro, completions = draft.take("steps_per_generation"), draft.take("generation_batch_size")
    if micro is not None and completions is not None:
        raise ConfigError(
            f"{micro.source} and {completions.source} both set the length of a round.", hint="Keep one of them."
        )
    request = micro or completions
    if request is None or str(request.value).lower() in ("none", "null"):
        return
    count = whole_number(request)
    if micro is not None:
        part, unit = _accumulation(draft), "micro-batches"
    else:
        part, unit = _rows(draft, request), "completions"
    if count % part:
        raise ConfigError(
            f"{request.source} {count} is not a multiple of the {part} {unit} of an optimizer step.",
            hint=f"Type a multiple of {part}, or --{_STEPS} N for N optimizer steps.",
        )
    draft.set(_STEPS, count // part, request.source)
    if part > 1:
        steps = "one optimizer step" if count == part else f"{count // part} optimizer steps"
        draft.note(f"{request.source} counts {unit}, {part} per step: a round lasts {steps} ({_STEPS}).")


def _accumulation(draft: Draft) -> int:
    """Return the micro-batches of an optimizer step.

    With a global batch and no accumulation the flag is Megatron-SWIFT's, which counts optimizer steps.
    """
    accumulation = draft.get("train.accumulation")
    return 1 if accumulation is None else whole_number(accumulation)


def _rows(draft: Draft, request: Assignment) -> int:
    """Return the completions of an optimizer step."""
    rows = draft.get("train.global_batch")
    if rows is None:
        raise ConfigError(
            f"{request.source} needs train.global_batch, the completions of an optimizer step over all processes.",
            hint=f"Type --global_batch_size N, or --{_STEPS} N for a round of N optimizer steps.",
        )
    return whole_number(rows)


def _named(sources: Iterable[str]) -> str:
    """Return a subject and verb for these sources: '--vllm_mode and --vllm_server_host have'."""
    different = list(dict.fromkeys(sources))
    return f"{' and '.join(different)} {'has' if len(different) == 1 else 'have'}"
