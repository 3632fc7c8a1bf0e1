"""Options of rewards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from swift.config.limits import FilePath, Fraction, Name, Threads, Tokens
from swift.config.options import RunsCode, Section
from swift.errors import ConfigError


def is_address(model: str) -> bool:
    """Return whether a reward model is named by the address of its server."""
    return model.startswith(("http://", "https://"))


class CosineFields(Section):
    """The bounds of `cosine`."""

    cosine_min_len_value_wrong: float = Field(-0.5, description="Reward `cosine` of the shortest wrong completion")
    cosine_max_len_value_wrong: float = Field(0.0, description="Reward `cosine` of the longest wrong completion")
    cosine_min_len_value_correct: float = Field(1.0, description="Reward `cosine` of the shortest right completion")
    cosine_max_len_value_correct: float = Field(0.5, description="Reward `cosine` of the longest right completion")
    cosine_max_len: Tokens | None = Field(
        None, description="Tokens of the longest completion for `cosine`; default: max_completion_length"
    )


class RepetitionFields(Section):
    """The settings of `repetition`."""

    repetition_n_grams: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Words in a row whose repetition counts, for the reward `repetition`"
    )
    repetition_max_penalty: Annotated[float, Field(le=0.0)] = Field(
        -1.0, description="Reward `repetition` of a completion that consists of repetitions"
    )


class OverlongFields(Section):
    """The lengths of `soft_overlong`."""

    soft_max_length: Tokens | None = Field(
        None, description="Tokens from which `soft_overlong` is -1; max_completion_length where it is left out"
    )
    soft_cache_length: Tokens | None = Field(
        None, description="Tokens before soft_max_length over which `soft_overlong` falls from 0 to -1"
    )


class RewardOptions(CosineFields, RepetitionFields, OverlongFields):
    """The rewards of completions, and their limits."""

    reward_funcs: Annotated[tuple[Name, ...], RunsCode()] = Field(
        (), description="Rewards: names (swift plugins), FILE.py:FUNCTION, or what external_plugins registers"
    )
    reward_weights: tuple[float, ...] = Field(
        (), description="Weight of each reward, in the order of reward_funcs and then reward_model; 1 each without them"
    )
    reward_model: tuple[Name, ...] = Field(
        (),
        description="Models that score completions: runs, checkpoints, exports, or http:// addresses of servers",
    )
    step_reward: Literal["min", "prod", "last", "mean"] | None = Field(
        None,
        description="Use process reward models (rlhf_type prm) as reward_model: the reward of a completion is the "
        "minimum, product, last or mean of the scores of its steps",
    )
    step_separator: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="Separator of the steps of a completion; default: that of the model's run, or a line break"
    )
    external_plugins: Annotated[tuple[FilePath, ...], RunsCode()] = Field(
        (), description="Python files, run as they are, that register rewards in `orms` as ms-swift's plugins do"
    )
    reward_options: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description='Options of single rewards: {"regex": {"pattern": "yes|no"}}'
    )
    reward_timeout: Annotated[PositiveFloat, Field(le=86400)] = Field(
        30.0, description="Seconds after which a reward function is stopped; its completion then has no reward"
    )
    reward_workers: Threads | None = Field(
        None, description="Processes that compute rewards; without it as many as there are cores, up to 8"
    )
    reward_memory: Annotated[float, Field(ge=0.0, le=1024)] = Field(
        8.0, description="GiB of address space for each of these processes; 0 sets no limit"
    )
    reward_retries: Annotated[int, Field(ge=0, le=100)] = Field(
        1, description="How often a call that failed, hung or crashed is made again"
    )
    reward_on_error: Literal["drop", "zero", "stop"] = Field(
        "drop",
        description="If a reward fails: leave the completion out (drop), use reward 0 (zero), or end the run (stop)",
    )
    reward_max_failed: Fraction = Field(
        0.05,
        description="Fraction of a round's completions for which a reward may fail; the run tolerates at least one",
    )

    def most_failed(self, count: int) -> int:
        """Return for how many of so many completions a reward may fail."""
        return 0 if self.reward_on_error == "stop" else max(int(self.reward_max_failed * count), min(1, count - 1))

    @model_validator(mode="after")
    def _steps_have_a_model(self) -> RewardOptions:
        if self.step_separator is not None and self.step_reward is None:
            raise ValueError("step_separator needs step_reward: choose step_reward min, or leave it out")
        if self.step_reward is not None and not self.reward_model:
            raise ValueError("step_reward needs reward_model: choose one, or leave it out")
        served = next((each for each in self.reward_model if is_address(each)), None)
        if self.step_reward is not None and served is not None:
            raise ValueError(
                f"step_reward needs scores of steps, but the server {served} scores whole completions: choose the "
                "model's folder as reward_model"
            )
        return self

    @model_validator(mode="after")
    def _one_weight_each(self) -> RewardOptions:
        count = len(self.reward_funcs) + len(self.reward_model)
        if self.reward_weights and len(self.reward_weights) != count:
            raise ConfigError(
                f"reward_weights has {len(self.reward_weights)} values for {count} rewards "
                f"({', '.join((*self.reward_funcs, *self.reward_model)) or 'none'}).",
                hint="Pass one weight for each of reward_funcs, then one for each of reward_model.",
            )
        return self
