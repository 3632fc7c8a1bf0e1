"""The contract of rewards: functions that score the answers of a model that learns online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class RewardItem:
    """One answer to one prompt, as a reward sees it. Everything in it can be written as JSON.

    - `messages`: The conversation up to the answer: 'role' and 'content' of each message.
    - `completion`: The answer, without the token that ended it.
    - `completion_ids`: The tokens of the answer, as they were drawn.
    - `finish_reason`: 'stop', or 'length' where the answer was still going on at the most tokens allowed.
    - `columns`: The other columns of the row: `solution` and whatever else the data set brings.
    - `source`: Where the row stands, for messages.
    """

    messages: Sequence[Mapping[str, Any]]
    completion: str
    completion_ids: Sequence[int] = ()
    finish_reason: str = "stop"
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


class Reward(Protocol):
    """Scores completions. The entry point in `swift.rewards` names a class with these members, or a function.

    A class is made as `cls(options)` with its `options_model`, or as `cls()` without one. That happens before any
    weights are loaded: it refuses wrong options there (`swift.errors.ConfigError`) and leaves what takes long to the
    first call of `score`. A field of `options_model` that the run has as well (`max_completion_length`) has the run's
    value; the others are set by `--reward_options '{"NAME": {"field": 1}}'`.

    A function has the signature `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, and may
    leave out what it does not need.

    Attributes may be left out; their values are then those below.

    - `options_model`: A `swift.Section`.
    - `wants`: The columns that every row must have. Without one of them no run starts.
    - `isolation`: In a process of its own a call may hang, crash or use up memory without harm. 'inline' is for what
      cannot run there, or needs the process: a model on the GPU.
    - `batched`: Whether it is called with all completions of a round at once, and otherwise with one.
    """

    options_model: type[BaseModel] | None = None
    wants: tuple[str, ...] = ()
    isolation: Literal["process", "inline"] = "process"
    batched: bool = False

    def score(self, items: Sequence[RewardItem]) -> Sequence[float | Exception | None]:
        """Return a finite number for each item, or None for one that the reward does not apply to.

        An exception instead of a number says why this one item could not be scored.
        """
