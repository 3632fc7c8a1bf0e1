"""Asking a trained model: in batches, in a conversation, for a score, and for rollouts while it is trained."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, ModelSource
    from swift.infer.answer_fields import found, numbers
    from swift.infer.asking import answer_into, check_model, check_result, quiet_libraries
    from swift.infer.chat_engine import open_chat_engine
    from swift.infer.conversations import ConversationScorer
    from swift.infer.image_messages import question_with
    from swift.infer.openai_server import OpenAiServer, at_once
    from swift.infer.questions import Question, read_questions
    from swift.infer.resume_file import Journal, read_lines
    from swift.infer.sampling import sample_tokens
    from swift.infer.steps import StepScorer
    from swift.infer.stop import StopStrings
    from swift.infer.whole_answers import BROKEN, AnswerRefused, stay_here, whole_answer

__all__ = [
    "BROKEN",
    "AnswerRefused",
    "ConversationScorer",
    "Journal",
    "OpenAiServer",
    "Question",
    "StepScorer",
    "StopStrings",
    "answer_into",
    "at_once",
    "check_model",
    "check_result",
    "find_source",
    "found",
    "numbers",
    "open_chat_engine",
    "open_engine",
    "open_scorer",
    "open_step_scorer",
    "question_with",
    "quiet_libraries",
    "read_lines",
    "read_questions",
    "sample_tokens",
    "stay_here",
    "whole_answer",
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

    Addresses (`http://127.0.0.1:8000`, several with commas between) mean servers that serve the model.

    Tokens in, tokens out: see `swift.contracts.InferenceEngine`. `options` are settings of the engine's own.
    `trust_remote_code` lets Python code run that comes with the model. `trained_adapter` is the PEFT configuration of
    adapters that a run is going to send (`ScheduleContext.adapter`); `say` receives what the engine reports.
    """
    from swift.infer.chat_engine import find_model, open_local
    from swift.infer.options import ModelOptions, is_address
    from swift.plugins.known import ENGINE
    from swift.terminal import say_nothing

    if is_address(engine):
        options = {**(options or {}), "servers": [address.strip() for address in engine.split(",")]}
        engine = ENGINE
    asked = ModelOptions(
        model=str(model),
        engine=engine,
        adapters=None if adapter is None else Path(adapter),
        dtype=dtype,
        device=device,
        max_length=max_length,
        engine_options=dict(options or {}),
        trust_remote_code=trust_remote_code,
    )
    found = find_model(asked, say=say_nothing)
    opened = open_local(found, asked, batch_size=batch_size, say=say or say_nothing, trained_adapter=trained_adapter)
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

    asked = ModelOptions(
        model=str(model),
        adapters=None if adapter is None else Path(adapter),
        trust_remote_code=trust_remote_code,
    )
    return find_model(asked, say=say_nothing).source


def open_scorer(
    model: str | Path, *, dtype: str = "auto", device: str | None = None, batch_size: int | None = None
) -> ConversationScorer:
    """Open a reward model, which gives a conversation one score: a run, a checkpoint, a folder or a hub id."""
    from swift.infer.conversations import ConversationScorer
    from swift.infer.options import ModelOptions

    return ConversationScorer(ModelOptions(model=str(model), dtype=dtype, device=device), batch_size=batch_size)


def open_step_scorer(
    model: str | Path,
    separator: str | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
) -> StepScorer:
    """Open a process reward model, which scores each step of an answer: a run, a checkpoint, a folder or a hub id.

    `separator` stands behind each step; None takes that of the run, or else a line break.
    """
    from swift.infer.options import ModelOptions
    from swift.infer.steps import StepScorer

    return StepScorer(ModelOptions(model=str(model), dtype=dtype, device=device), separator, batch_size=batch_size)


_LATER = {
    "ConversationScorer": "conversations",
    "Journal": "resume_file",
    "Question": "questions",
    "StepScorer": "steps",
    "StopStrings": "stop",
    "answer_into": "asking",
    "check_model": "asking",
    "check_result": "asking",
    "sample_tokens": "sampling",
    "quiet_libraries": "asking",
    "open_chat_engine": "speaker",
    "question_with": "image_messages",
    "read_lines": "resume_file",
    "read_questions": "questions",
    "OpenAiServer": "openai_server",
    "at_once": "openai_server",
    "found": "answer_fields",
    "numbers": "answer_fields",
    "BROKEN": "whole_answers",
    "AnswerRefused": "whole_answers",
    "stay_here": "whole_answers",
    "whole_answer": "whole_answers",
}
"""Name → the module that has it, imported only when it is asked for: HTTP, TLS and torch take long."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'swift.infer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"swift.infer.{_LATER[name]}"), name)
