"""Options of rounds: how many answers each prompt gets, and which of them are learned from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from swift_rl.draw_options import DrawOptions


class RolloutOptions(DrawOptions):
    """How the model in training answers prompts in groups."""

    num_generations: Annotated[int, Field(ge=1)] = Field(8, description="Answers to each prompt, which form a group")
    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        1.0, description="Temperature of the draws; the policy that learns is divided by it as well"
    )
    dynamic_sample: bool = Field(
        False, description="Replace groups whose answers all have the same reward by the next prompts (DAPO)"
    )
    max_resample_times: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="How often a round asks for more prompts under dynamic_sample"
    )
    max_idle_rounds: Annotated[int, Field(ge=0, le=1000)] = Field(
        5, description="End the run after so many rounds in a row that teach nothing; 0 never ends it"
    )
    overlong_filter: bool = Field(False, description="Learn nothing from answers that reached max_completion_length")
    rollout_lag: Annotated[int, Field(ge=0, le=1)] = Field(
        0, description="1 writes the answers of the next round while this one is learned from"
    )
    eval_temperature: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        0.0, description="Temperature of the answers to held-out prompts; 0 takes the likeliest token"
    )
    num_generations_eval: Annotated[int, Field(ge=1)] = Field(1, description="Answers to each held-out prompt")
