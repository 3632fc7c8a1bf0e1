"""Options of environments, under the names that ms-swift gave them where it has any."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from swift.config.limits import Name
from swift.config.options import RunsCode, Section


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
