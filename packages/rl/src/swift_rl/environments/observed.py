"""Observations of environments, checked where they were made, and as plain JSON: the run is in another process."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from swift.contracts import Observation


def plain(seen: object) -> dict[str, Any]:
    """Return an observation in JSON; raise where it cannot be shown to the model, or be learned from."""
    if not isinstance(seen, Observation):
        raise TypeError(f"step returned {type(seen).__name__}, which is no swift.contracts.Observation")
    told = {each.name: getattr(seen, each.name) for each in fields(Observation)}
    text, keep, info = told["text"] or "", told["keep"], told["info"]
    if not isinstance(text, str):
        raise TypeError("step returned an Observation whose text is none")
    if keep is not None and (not isinstance(keep, int) or keep < 0):
        raise ValueError(
            f"step returned an Observation with keep={keep!r}. Expected: a whole number of characters, from 0"
        )
    if isinstance(told["done"], str):
        raise TypeError(f"step returned an Observation whose done is {told['done']!r}, and not true or false")
    if not isinstance(info, Mapping) or not all(isinstance(name, str) for name in info):
        raise TypeError("step returned an Observation whose info is no mapping of texts to values")
    messages = plain_messages(told["messages"], "step")
    return {
        **told,
        "messages": messages,
        "text": _json(text, "step", "text"),
        "info": _json(dict(info), "step", "info", default=str),
        "reward": _reward(told["reward"]),
        "done": bool(told["done"]) or not (messages or text),
    }


def plain_messages(came: object, function: str) -> list[dict[str, Any]]:
    """Return messages that an environment says, in JSON."""
    if isinstance(came, str | bytes) or not isinstance(came, Sequence):
        raise TypeError(f"{function} returned messages that are no list of them, but of the type {type(came).__name__}")
    if not all(isinstance(each, Mapping) for each in came):
        raise TypeError(f"{function} returned a list whose messages are no mappings")
    messages: list[dict[str, Any]] = _json([dict(each) for each in came], function, "messages")
    return messages


def _json(value: Any, function: str, name: str, **how: Any) -> Any:
    """Return a value as the run will read it."""
    try:
        text = json.dumps(value, ensure_ascii=False, **how)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{function} returned {name} with half of a surrogate pair") from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise TypeError(f"{function} returned {name} that JSON cannot say: {problem}") from None
    return json.loads(text)


def _reward(came: Any) -> float | None:
    if came is None:
        return None
    try:
        reward = math.nan if isinstance(came, str | bytes) else float(came)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not math.isfinite(reward):
        raise ValueError(f"step returned the reward {came!r:.100}, which is no finite number")
    return reward
