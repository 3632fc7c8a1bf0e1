"""A page per round: prompts, completions, their rewards, and the values of every token.

One file that opens in any browser without a network. Output of models and rewards is data in it, never markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from swift_rl.rounds.data import Episode, Prompt, RolloutCompletion, Round

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids → the text of each."""


def page_of(made: Round, pieces: Pieces, trained_by: Mapping[int, Sequence[int]]) -> str:
    """Return the page of a round.

    `pieces` returns the text of single tokens. `trained_by` has the steps that learned from a completion, by its index
    in the round.
    """
    title = f"Round {made.number + 1}"
    begun = f"sampled with the weights after step {made.version}" if made.version else "sampled with the first weights"
    learned = sum(each.learned and each.prompt not in made.dropped for each in made.completions)
    data = {
        "facts": {name: _figure(value) for name, value in made.facts.items()},
        "groups": [_group(prompt, made, index, pieces, trained_by) for index, prompt in enumerate(made.prompts)],
    }
    return _asset("audit.html").format(
        title=title,
        subtitle=html.escape(
            f"{len(made.prompts)} prompts, {len(made.completions)} completions {begun}; steps learn from {learned}"
        ),
        style=_asset("audit.css"),
        script=_asset("audit.js"),
        # Within a script element only "<" begins markup.
        data=json.dumps(data, ensure_ascii=False, default=str).replace("<", "\\u003c"),
    )


def _group(
    prompt: Prompt, made: Round, index: int, pieces: Pieces, trained_by: Mapping[int, Sequence[int]]
) -> dict[str, Any]:
    return {
        "number": prompt.number,
        "source": prompt.source,
        "messages": [{"role": str(each.get("role")), "content": each.get("content")} for each in prompt.messages],
        "columns": {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                    for name, value in prompt.columns.items()},
        "dropped": made.dropped.get(index, ""),
        "completions": [
            _completion(each, prompt, pieces, trained_by.get(number, ()))
            for number, each in enumerate(made.completions) if each.prompt == index
        ],
    }  # fmt: skip


def _completion(completion: RolloutCompletion, prompt: Prompt, pieces: Pieces, steps: Sequence[int]) -> dict[str, Any]:
    _, tokens, own = completion.layout(prompt)
    ids = [int(each) for each in tokens]
    written = [True] * len(ids) if own is None else own.tolist()
    return {
        "index": completion.index,
        "text": completion.text,
        "ended": completion.finish_reason,
        "reward": _figure(completion.reward) if any(each is not None for each in completion.rewards.values()) else None,
        "rewards": {
            name: {"value": None if value is None else _figure(value), "remark": completion.remarks.get(name, "")}
            for name, value in completion.rewards.items()
        },
        "advantage": _mean(completion.advantages),
        "why_not": completion.why_not,
        "steps": list(steps),
        "ids": ids,
        "pieces": [str(each) for each in pieces(ids)],
        "values": {name: _placed(values, written) for name, values in token_values(completion).items()},
        **({} if completion.episode is None else _turns(completion.episode, written)),
    }


def _turns(episode: Episode, written: Sequence[bool]) -> dict[str, Any]:
    """Return the fields of an episode besides its tokens."""
    begins = (
        [] if episode.begins_with is None else takewhile(lambda each: each["role"] != "assistant", episode.messages)
    )
    return {
        "turns": episode.turns,
        "turn_rewards": episode.rewards,
        "environment": [not each for each in written],
        "begins": [{"role": str(each.get("role")), "content": each.get("content")} for each in begins],
        "info": json.dumps(episode.info, ensure_ascii=False, default=str) if episode.info else "",
    }


def _placed(values: np.ndarray, written: Sequence[bool]) -> list[float | str | None]:
    """Return the values of the model's tokens at their positions, None for the environment's tokens."""
    known = iter(values)
    return [_figure(next(known)) if mine else None for mine in written]


def token_values(completion: RolloutCompletion) -> dict[str, np.ndarray]:
    """Return the values of each token of a completion, by their name on the page."""
    found: dict[str, np.ndarray | None] = {
        "log-probability": completion.logps,
        "entropy": completion.entropies,
        "advantage": completion.advantages,
        "importance weight": completion.is_weights,
    }
    if completion.old_logps is not None:
        mismatch = completion.old_logps - completion.logps
        found |= {"log-ratio to the engine": mismatch, "ratio to the engine": np.exp(mismatch)}
        if completion.ref_logps is not None:
            found["log-ratio to the reference"] = completion.old_logps - completion.ref_logps
    return {name: values for name, values in found.items() if values is not None}


def _mean(values: np.ndarray | None) -> float | str | None:
    return None if values is None or not len(values) else _figure(float(np.mean(values)))


def _figure(value: float) -> float | str:
    """Return four digits; JSON has no infinities."""
    return float(f"{value:.4g}") if np.isfinite(value) else str(float(value))


def _asset(name: str) -> str:
    return files("swift_rl").joinpath("assets", name).read_text(encoding="utf-8")
