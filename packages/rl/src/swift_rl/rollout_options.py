"""Options of rollouts: the inference engine, sampling, groups of completions, and environments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from swift.config.limits import Name
from swift.config.options import RunsCode, Section


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


class EnvironmentOptions(Section):
    """Environment that the model talks with, turn by turn, and its limits."""

    environment: Annotated[Name | None, RunsCode()] = Field(
        None,
        description="Environment of several turns: a name (swift plugins), FILE.py:CLASS, or what external_plugins "
        "registers in `envs` or `multi_turns`",
    )
    environment_options: dict[str, Any] = Field(default_factory=dict, description="The environment's own options")
    environment_weight: float = Field(1.0, description="Weight of the environment's rewards in the sum")
    max_turns: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Maximum number of completions per episode; default: chosen by the environment"
    )
    completion_length_limit_scope: Literal["total", "per_round"] = Field(
        "total",
        description="Whether max_completion_length limits a whole episode, the environment's tokens included, or each "
        "completion",
    )
    environment_timeout: Annotated[PositiveFloat, Field(le=86400)] = Field(
        30.0, description="Seconds after which one step of an environment is ended; the episode then has no reward"
    )
    episode_timeout: Annotated[PositiveFloat, Field(le=864000)] = Field(
        600.0, description="Seconds that all steps of an episode may take together"
    )
    template_drift: Literal["refuse", "keep"] = Field(
        "refuse",
        description="If the chat template changes earlier completions: end the run (refuse), or keep the sampled "
        "tokens (keep)",
    )
