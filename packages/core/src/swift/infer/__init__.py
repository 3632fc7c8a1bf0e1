"""Inference with trained models: batches, conversations, scores, and rollouts during training."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, ModelSource
    from swift.infer.chat_engine import open_chat_engine
    from swift.infer.commands import check_model, check_result, quiet_libraries, write_responses_to
    from swift.infer.http_client import BROKEN, RequestRefused, opener_without_redirects, read_response
    from swift.infer.image_messages import question_with
    from swift.infer.json_fields import json_field, json_numbers
    from swift.infer.openai_server import OpenAiServer, at_once
    from swift.infer.questions import Question, read_questions
    from swift.infer.response import Response
    from swift.infer.resume_file import ResumeFile, read_lines
    from swift.infer.reward_models import ConversationScorer, StepScorer
    from swift.infer.sampling import sample_tokens
    from swift.infer.stop_strings import StopStrings

__all__ = [
    "BROKEN",
    "ConversationScorer",
    "OpenAiServer",
    "Question",
    "RequestRefused",
    "Response",
    "ResumeFile",
    "StepScorer",
    "StopStrings",
    "at_once",
    "check_model",
    "check_result",
    "find_source",
    "json_field",
    "json_numbers",
    "open_chat_engine",
    "open_engine",
    "open_scorer",
    "open_step_scorer",
    "opener_without_redirects",
    "question_with",
    "quiet_libraries",
    "read_lines",
    "read_questions",
    "read_response",
    "sample_tokens",
    "write_responses_to",
]


def open_engine(
    engine: str,
    model: str | Path,
    *,
    adapter: str | Path | None = None,
    trained_adapter: Mapping[str, Any] | None = None,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    options: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    say: Callable[[str], None] | None = None,
) -> InferenceEngine:
    """Open a run, a checkpoint, an adapter, a folder or a hub id with the inference engine of that name.

    `engine` may also be addresses of servers with that model: `http://127.0.0.1:8000`, separated by commas.

    Tokens in, tokens out: see `swift.contracts.InferenceEngine`. `options` are the engine's own.
    `trust_remote_code` allows Python code from the model's repository. `trained_adapter` is the PEFT configuration of
    adapters that a run is going to send (`ScheduleContext.adapter`); `say` receives what the engine reports.
    """
    from swift.infer.chat_engine import find_model, open_local
    from swift.infer.options import ModelOptions, is_address
    from swift.plugins.known import ENGINE
    from swift.terminal import say_nothing

    if is_address(engine):
        options = {**(options or {}), "servers": [address.strip() for address in engine.split(",")]}
        engine = ENGINE
    requested = ModelOptions(
        model=str(model),
        engine=engine,
        adapters=None if adapter is None else Path(adapter),
        dtype=dtype,
        device=device,
        max_length=max_length,
        engine_options=dict(options or {}),
        trust_remote_code=trust_remote_code,
    )
    found = find_model(requested, say=say_nothing)
    opened = open_local(
        found, requested, batch_size=batch_size, say=say or say_nothing, trained_adapter=trained_adapter
    )
    return opened.engine


def find_source(
    model: str | Path, *, adapter: str | Path | None = None, trust_remote_code: bool = False
) -> ModelSource:
    """Return the configuration and tokenizer of a run, a checkpoint, an adapter, a folder or a hub id.

    They are those that `open_engine` opens under this name; no weights are loaded.
    """
    from swift.infer.chat_engine import find_model
    from swift.infer.options import ModelOptions
    from swift.terminal import say_nothing

    requested = ModelOptions(
        model=str(model),
        adapters=None if adapter is None else Path(adapter),
        trust_remote_code=trust_remote_code,
    )
    return find_model(requested, say=say_nothing).source


def open_scorer(
    model: str | Path, *, dtype: str = "auto", device: str | None = None, batch_size: int | None = None
) -> ConversationScorer:
    """Open a reward model, which returns one score per conversation: a run, a checkpoint, a folder or a hub id."""
    from swift.infer.options import ModelOptions
    from swift.infer.reward_models import ConversationScorer

    return ConversationScorer(ModelOptions(model=str(model), dtype=dtype, device=device), batch_size=batch_size)


def open_step_scorer(
    model: str | Path,
    separator: str | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
) -> StepScorer:
    """Open a process reward model, which scores each step of a completion: a run, a checkpoint, a folder or a hub id.

    `separator` ends each step; None uses that of the run, or else a line break.
    """
    from swift.infer.options import ModelOptions
    from swift.infer.reward_models import StepScorer

    return StepScorer(ModelOptions(model=str(model), dtype=dtype, device=device), separator, batch_size=batch_size)


_MODULES = {
    "chat_engine": ("open_chat_engine",),
    "commands": ("check_model", "check_result", "quiet_libraries", "write_responses_to"),
    "http_client": ("BROKEN", "RequestRefused", "opener_without_redirects", "read_response"),
    "image_messages": ("question_with",),
    "json_fields": ("json_field", "json_numbers"),
    "openai_server": ("OpenAiServer", "at_once"),
    "questions": ("Question", "read_questions"),
    "response": ("Response",),
    "resume_file": ("ResumeFile", "read_lines"),
    "reward_models": ("ConversationScorer", "StepScorer"),
    "sampling": ("sample_tokens",),
    "stop_strings": ("StopStrings",),
}
"""Module → its names here, imported on first access: HTTP, TLS and torch take long."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"swift.infer.{module}"), name)
    raise AttributeError(f"module 'swift.infer' has no attribute {name!r}")
