"""Whose log-probabilities vLLM returns. It is a setting of the whole engine, not of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Kind = Literal["model", "drawn"]
KINDS: Mapping[str, Kind] = {"raw_logprobs": "model", "processed_logprobs": "drawn"}
"""vLLM's `logprobs_mode` → `Sampling.logprobs`. Its other modes return logits."""
SAID: Mapping[str, str] = {
    "model": "of the model as it is",
    "drawn": "of the distribution that is drawn from",
}
_COLD, _WARM = 0.5, 2.0
_SAME = 1e-4


def kind_of(likeliest: Callable[[float], float]) -> Kind | None:
    """Return which kind an engine returns, by asking for the same token at two temperatures.

    `likeliest(temperature)` returns the log-probability of the likeliest next token. None where it does not tell: every
    token is as likely as the others, or one is certain.
    """
    cold, warm, plain = likeliest(_COLD), likeliest(_WARM), likeliest(1.0)
    if abs(cold - warm) > _SAME:
        return "drawn"
    return None if plain > -_SAME else "model"
