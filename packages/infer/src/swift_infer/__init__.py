"""Inference with trained models: batches, conversations, scores, and rollouts during training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, ModelSource
    from swift_infer.batch import response_strings as response_strings
    from swift_infer.chat_engine import open_chat_engine as open_chat_engine
    from swift_infer.commands.common import check_model as check_model
    from swift_infer.commands.common import check_result as check_result
    from swift_infer.commands.common import quiet_libraries as quiet_libraries
    from swift_infer.commands.common import write_responses_to as write_responses_to
    from swift_infer.http_client import BROKEN as BROKEN
    from swift_infer.http_client import RequestRefused as RequestRefused
    from swift_infer.http_client import opener_without_redirects as opener_without_redirects
    from swift_infer.http_client import read_response as read_response
    from swift_infer.image_messages import question_with as question_with
    from swift_infer.json_fields import json_field as json_field
    from swift_infer.json_fields import json_numbers as json_numbers
    from swift_infer.openai_server import OpenAiServer as OpenAiServer
    from swift_infer.openai_server import at_once as at_once
    from swift_infer.options import ENGINE_OPTIONS as ENGINE_OPTIONS
    from swift_infer.options import InferenceOptions as InferenceOptions
    from swift_infer.options import ModelOptions as ModelOptions
    from swift_infer.options import SamplingOptions as SamplingOptions
    from swift_infer.questions import Question as Question
    from swift_infer.questions import read_questions as read_questions
    from swift_infer.response import ChatEngine as ChatEngine
    from swift_infer.response import Response as Response
    from swift_infer.resume_file import ResumeFile as ResumeFile
    from swift_infer.resume_file import read_lines as read_lines
    from swift_infer.reward_models import ConversationScorer as ConversationScorer
    from swift_infer.reward_models import StepScorer as StepScorer
    from swift_infer.sampling import sample_tokens as sample_tokens
    from swift_infer.stop_strings import StopStrings as StopStrings

__version__ = "0.1.0"


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
    from swift.plugins import ENGINE
    from swift.terminal import say_nothing
    from swift_infer.chat_engine import find_model, open_local
    from swift_infer.options import ModelOptions, is_address

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
    from swift.terminal import say_nothing
    from swift_infer.chat_engine import find_model
    from swift_infer.options import ModelOptions

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
    from swift_infer.options import ModelOptions
    from swift_infer.reward_models import ConversationScorer

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
    from swift_infer.options import ModelOptions
    from swift_infer.reward_models import StepScorer

    return StepScorer(ModelOptions(model=str(model), dtype=dtype, device=device), separator, batch_size=batch_size)


__getattr__ = lazy_names(__name__)
"""HTTP, TLS and torch take long to import."""
