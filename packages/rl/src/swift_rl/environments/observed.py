"""Checks of observations in the environment's process, and their conversion to JSON for the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from swift.contracts import Observation
from swift_rl.rewards.verdicts import finite


def plain(seen: object) -> dict[str, Any]:
    """Return an observation in JSON; raise if the model cannot read it or learn from it."""
    if not isinstance(seen, Observation):
        raise TypeError(f"step returned {type(seen).__name__}. Expected: swift.contracts.Observation")
    values = {each.name: getattr(seen, each.name) for each in fields(Observation)}
    text, keep, info = values["text"] or "", values["keep"], values["info"]
    if not isinstance(text, str):
        raise TypeError(f"step returned an Observation with text={text!r:.100}. Expected: a string")
    if keep is not None and (not isinstance(keep, int) or keep < 0):
        raise ValueError(
            f"step returned an Observation with keep={keep!r}. Expected: a whole number of characters, from 0"
        )
    if isinstance(values["done"], str):
        raise TypeError(f"step returned an Observation with done={values['done']!r:.100}. Expected: True or False")
    if not isinstance(info, Mapping) or not all(isinstance(name, str) for name in info):
        raise TypeError(f"step returned an Observation with info={info!r:.100}. Expected: a mapping with string keys")
    messages = plain_messages(values["messages"], "step")
    return {
        **values,
        "messages": messages,
        "text": _json(text, "step", "text"),
        "info": _json(dict(info), "step", "info", default=str),
        "reward": _reward(values["reward"]),
        "done": bool(values["done"]) or not (messages or text),
    }


def plain_messages(came: object, function: str) -> list[dict[str, Any]]:
    """Return messages of an environment, in JSON."""
    if isinstance(came, str | bytes) or not isinstance(came, Sequence):
        raise TypeError(f"{function} returned {type(came).__name__} as messages. Expected: a list of mappings")
    if not all(isinstance(each, Mapping) for each in came):
        raise TypeError(f"{function} returned messages that are not mappings. Expected: a list of mappings")
    messages: list[dict[str, Any]] = _json([dict(each) for each in came], function, "messages")
    return messages


def _json(value: Any, function: str, name: str, **how: Any) -> Any:
    """Return a value as the run reads it from JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, **how)
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{function} returned {name} with an unpaired surrogate") from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise TypeError(f"{function} returned {name} that cannot be written as JSON: {problem}") from None
    return json.loads(text)


def _reward(came: Any) -> float | None:
    reward = finite(came)
    if reward is None and came is not None:
        raise ValueError(f"step returned the reward {came!r:.100}. Expected: a finite number or None")
    return reward
