"""Asking a trained model: in batches, in a conversation, for a score, and for rollouts while it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine
    from swift.infer.conversations import ConversationScorer
    from swift.infer.openai_server import OpenAiServer, at_once
    from swift.infer.stop import StopStrings

__all__ = ["ConversationScorer", "OpenAiServer", "StopStrings", "at_once", "open_engine", "open_scorer"]


def open_engine(
    engine: str,
    model: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    options: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> InferenceEngine:
    """Open a run, a checkpoint, an adapter, a folder or a hub id with the inference engine of that name.

    Addresses (`http://127.0.0.1:8000`, several with commas between) mean servers that serve the model.

    Tokens in, tokens out: see `swift.contracts.InferenceEngine`. `options` are settings of the engine's own.
    `trust_remote_code` lets Python code run that comes with the model.
    """
    from swift.infer.options import ModelOptions, is_address
    from swift.infer.speaker import find_model, open_local
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
    return open_local(find_model(asked, say=say_nothing), asked, batch_size=batch_size, say=say_nothing).engine


def open_scorer(
    model: str | Path, *, dtype: str = "auto", device: str | None = None, batch_size: int | None = None
) -> ConversationScorer:
    """Open a reward model, which gives a conversation one score: a run, a checkpoint, a folder or a hub id."""
    from swift.infer.conversations import ConversationScorer
    from swift.infer.options import ModelOptions

    return ConversationScorer(ModelOptions(model=str(model), dtype=dtype, device=device), batch_size=batch_size)


def __getattr__(name: str) -> Any:
    if name == "ConversationScorer":
        from swift.infer.conversations import ConversationScorer

        return ConversationScorer
    if name == "StopStrings":
        from swift.infer.stop import StopStrings

        return StopStrings
    if name not in ("OpenAiServer", "at_once"):
        raise AttributeError(f"module 'swift.infer' has no attribute {name!r}")
    # Only when it is asked for: HTTP and TLS take long to import, and most verbs need neither.
    from swift.infer import openai_server

    return getattr(openai_server, name)
