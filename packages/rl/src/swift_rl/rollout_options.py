"""Options of rollouts: the inference engine, sampling, and how many completions each prompt gets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from swift.config.limits import Name
from swift.config.sections import Section


class GenerationOptions(Section):
    """How the model in training generates completions."""

    max_completion_length: Annotated[int, Field(ge=1)] = Field(
        512, description="Maximum number of tokens of a completion"
    )
    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = Field(1.0, description="Sampling temperature")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="Sample from the likeliest tokens that together have this probability"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="Sample from this many of the likeliest tokens; 0: all")
    stop_words: tuple[str, ...] = Field((), description="Strings that end a completion")
    rollout_engine: Name = Field(
        "transformers",
        description="Inference engine of the rollouts: a plugin's name, or comma-separated addresses of vLLM servers",
    )
    rollout_options: dict[str, Any] = Field(default_factory=dict, description="The engine's own settings")
    rollout_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Completions that the engine generates at a time; default: chosen by the engine"
    )
    rollout_tolerance: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="Stop if log-probabilities of engine and trainer differ by more than this many nats per token; "
        "default: 0.001 for transformers in float32, else 0.05",
    )


class RolloutOptions(GenerationOptions):
    """How the model in training generates groups of completions."""

    num_generations: Annotated[int, Field(ge=1)] = Field(8, description="Completions per prompt, which form a group")
    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        1.0, description="Sampling temperature; also divides the logits of the policy that learns"
    )
    dynamic_sample: bool = Field(
        False, description="Replace groups of completions with equal rewards by the next prompts (DAPO)"
    )
    max_resample_times: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="How often dynamic_sample takes more prompts in a round"
    )
    max_idle_rounds: Annotated[int, Field(ge=0, le=1000)] = Field(
        5, description="End the run after this many rounds in a row that teach nothing; 0: never"
    )
    overlong_filter: bool = Field(
        False, description="Learn nothing from completions that reached max_completion_length"
    )
    rollout_staleness: Annotated[int, Field(ge=0, le=1)] = Field(
        0, description="1: sample the next round while this one is learned from"
    )
    eval_temperature: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        0.0, description="Sampling temperature for held-out prompts; 0: greedy"
    )
    num_generations_eval: Annotated[int, Field(ge=1)] = Field(1, description="Completions per held-out prompt")
