"""Options of how the model in training answers prompts: by which engine, and how tokens are drawn."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from swift.config.limits import Name
from swift.config.sections import Section


class DrawOptions(Section):
    """How the model in training answers prompts."""

    max_completion_length: Annotated[int, Field(ge=1)] = Field(512, description="Most tokens of an answer")
    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = Field(1.0, description="Temperature of the draws")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="Draw among the likeliest tokens that have so much of the probability"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="Draw among so many of the likeliest tokens; 0 is all")
    stop_words: tuple[str, ...] = Field((), description="Texts that end an answer")
    rollout_engine: Name = Field(
        "transformers",
        description="Inference engine that answers: a plugin's name, or addresses of vLLM servers with commas between",
    )
    rollout_options: dict[str, Any] = Field(default_factory=dict, description="The engine's own settings")
    rollout_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Answers that the engine writes at a time; nothing leaves it to the engine"
    )
    rollout_tolerance: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="Stop where engine and trainer differ by more than so many nats per token of known texts; default: "
        "0.001 for transformers in float32, else 0.05",
    )
