"""The contract of environments: what a model that learns online talks with, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class EpisodeStart:
    """Beginning of an episode. Everything in it can be written as JSON.

    - `messages`: The row's conversation up to where the model speaks.
    - `columns`: The other columns of the row.
    - `seed`: Decides everything random in the episode. The same for all answers to a prompt in a round, which are
      compared.
    - `source`: Where the row stands, for messages.
    """

    messages: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    source: str = ""


@dataclass(frozen=True)
class Turn:
    """One answer of the model, as an environment sees it.

    - `text`: Without the token that ended it.
    - `number`: Which turn of the episode it is, from 1.
    - `token_ids`: As they were drawn.
    - `finish_reason`: 'stop', or 'length' where the answer was cut off: the episode ends with this turn, whatever
      `step` returns.
    - `tool_calls`: Calls of tools in the text: `name` and `arguments` of each, as the tokenizer reads them where it
      can, and otherwise those in `<tool_call>` tags and in ReAct's notation.
    """

    text: str
    number: int
    token_ids: Sequence[int] = ()
    finish_reason: str = "stop"
    tool_calls: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Observation:
    """Reply of an environment to an answer.

    - `messages`: What the model is told before it speaks again: 'role' ('user', 'tool') and 'content' of each.
    - `reward`: Of this turn; the reward of the episode is the sum. None for a turn without one.
    - `done`: Whether the episode is over; without messages and text it is.
    - `info`: Anything for rewards and for the page of a round; JSON values. Later turns replace values of earlier ones.
    - `text`: Text that the answer itself goes on with, instead of messages: the model then continues its own turn. The
      token that ended the answer is taken back.
    - `keep`: With `text`: how many letters of the answer stay before it; None for all.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    keep: int | None = None


class Environment(Protocol):
    """One episode. The entry point in `swift.environments` names a class with these members.

    It is made as `cls(options)` with its `options_model`, or as `cls()` without one, once for each episode, in a
    process that may be ended at any time, and once before any weights are loaded, to check its options.

    An episode is a function of its `EpisodeStart` and of the answers: where a process was ended, the episodes in it are
    begun again in another one and given the same answers, and must then observe the same.

    Methods may be coroutines. Attributes may be left out; their values are then those below.

    - `options_model`: A `swift.Section`.
    - `wants`: The columns that every row must have.
    """

    options_model: type[BaseModel] | None = None
    wants: tuple[str, ...] = ()

    def reset(self, start: EpisodeStart) -> Sequence[Mapping[str, Any]] | None:
        """Return the conversation that the episode begins with, or None for the row's own."""

    def step(self, turn: Turn) -> Observation:
        """Return what follows an answer. An exception ends the episode, which then has no reward."""

    def close(self) -> None:
        """Let go of what the episode holds, in 30 seconds at most. May be left out."""
