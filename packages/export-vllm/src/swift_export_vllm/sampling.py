"""How vLLM samples, and whose log-probabilities it returns: a setting of the whole engine, not of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from swift.contracts import Sampling, Score

Kind = Literal["model", "sampled"]
KINDS: Mapping[str, Kind] = {"raw_logprobs": "model", "processed_logprobs": "sampled"}
"""vLLM's `logprobs_mode` → `Sampling.logprobs`. Its other modes return logits."""
DISTRIBUTIONS: Mapping[str, str] = {
    "model": "of the model itself",
    "sampled": "of the sampling distribution",
}
_COLD, _WARM = 0.5, 2.0
_SAME = 1e-4


def sampling_settings(sampling: Sampling, index: int, end_tokens: Sequence[int]) -> dict[str, Any]:
    """Return the settings of a request, for `vllm.SamplingParams` or a server."""
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.top_p > 0 else 1e-9,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed_of(index) if sampling.temperature > 0 else None,
        "stop_token_ids": end_tokens,
        "logprobs": 0,
    }


def kind_of(likeliest: Callable[[float], float]) -> Kind | None:
    """Return which kind an engine returns, by asking for the same token at two temperatures.

    `likeliest(temperature)` returns the log-probability of the likeliest next token. None where it does not tell: every
    token is as likely as the others, or one is certain.
    """
    cold, warm, plain = likeliest(_COLD), likeliest(_WARM), likeliest(1.0)
    if abs(cold - warm) > _SAME:
        return "sampled"
    return None if plain > -_SAME else "model"


def score_of(prompt: Sequence[int], steps: Sequence[Mapping[int, tuple[float, int]]], top: int) -> Score:
    """Return the score of a prompt from vLLM's: for each of its tokens, token → (log-probability, rank).

    vLLM returns the `top` most likely tokens and the prompt's own, which may be one of them.
    """
    rows = list(zip(prompt, steps, strict=True))[1:]
    own = [step[token] for token, step in rows]
    score = Score([logprob for logprob, _ in own], [rank == 1 for _, rank in own])
    if not top:
        return score
    best = [[each for each in step.items() if len(step) <= top or each[0] != token][:top] for token, step in rows]
    ids = np.array([[token for token, _ in row] for row in best], dtype=np.int32)
    logprobs = np.array([[logprob for _, (logprob, _) in row] for row in best], dtype=np.float32)
    return replace(score, top_ids=ids.reshape(len(rows), top), top_logprobs=logprobs.reshape(len(rows), top))
