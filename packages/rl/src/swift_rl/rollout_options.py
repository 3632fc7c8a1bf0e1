"""Options of rollouts: how answers are drawn, by which engine, and how many steps a round of them serves."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from swift.config.limits import Name
from swift.config.sections import Section


class RolloutOptions(Section):
    """How the model in training answers prompts."""

    num_generations: Annotated[int, Field(ge=1)] = Field(8, description="Answers to each prompt, which form a group")
    max_completion_length: Annotated[int, Field(ge=1)] = Field(512, description="Most tokens of an answer")
    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        1.0, description="Temperature of the draws; the policy that learns is divided by it as well"
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="Draw among the likeliest tokens that have so much of the probability"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="Draw among so many of the likeliest tokens; 0 is all")
    stop_words: tuple[str, ...] = Field((), description="Texts that end an answer")
    steps_per_generation: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer steps that one round of answers serves"
    )
    dynamic_sample: bool = Field(
        False, description="Replace groups whose answers all have the same reward, which teach nothing, by further ones"
    )
    max_resample_times: Annotated[int, Field(ge=0)] = Field(
        3, description="How often a round asks further prompts for dynamic_sample"
    )
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
    rollout_lag: Annotated[int, Field(ge=0, le=1)] = Field(
        0, description="1 writes the answers of the next round while this one is learned from"
    )
    eval_temperature: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        0.0, description="Temperature of the answers to held-out prompts; 0 takes the likeliest token"
    )
    num_generations_eval: Annotated[int, Field(ge=1)] = Field(1, description="Answers to each held-out prompt")
