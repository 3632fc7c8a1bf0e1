"""A page per round: prompts, answers, what each reward said of them, and what became of every token.

One file that opens in any browser without a network. What models and rewards wrote is data in it, never markup.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.files import replace_file

if TYPE_CHECKING:
    from swift_rl.rounds.data import DrawnAnswer, Episode, Prompt, Round

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids → the text of each."""


def page_of(made: Round, *, pieces: Pieces | None = None, trained_by: Mapping[int, Sequence[int]] | None = None) -> str:
    """Return the page of a round.

    `pieces` gives the text of single tokens; without it they are shown as numbers. `trained_by` says which steps
    learned from an answer, by its index in the round.
    """
    title = f"Round {made.number + 1}"
    begun = (
        f"written by the weights after step {made.version}" if made.version else "written by the weights at the start"
    )
    learned = sum(each.learned and each.prompt not in made.dropped for each in made.answers)
    data = {
        "facts": {name: _figure(value) for name, value in made.facts.items()},
        "groups": [_group(prompt, made, index, pieces, trained_by or {}) for index, prompt in enumerate(made.prompts)],
    }
    return _asset("audit.html").format(
        title=title,
        subtitle=html.escape(
            f"{len(made.prompts)} prompts, {len(made.answers)} answers {begun}; {learned} are learned from"
        ),
        style=_asset("audit.css"),
        script=_asset("audit.js"),
        # Within a script element nothing is markup but what begins with "<".
        data=json.dumps(data, ensure_ascii=False, default=str).replace("<", "\\u003c"),
    )


def write_page(
    path: Path, made: Round, *, pieces: Pieces | None = None, trained_by: Mapping[int, Sequence[int]] | None = None
) -> Path:
    """Write the page of a round whole, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, page_of(made, pieces=pieces, trained_by=trained_by))
    return path


def read_page(path: Path) -> Any:
    """Return the data of a page."""
    text = path.read_text(encoding="utf-8")
    start = text.index('id="round-data">') + len('id="round-data">')
    return json.loads(text[start : text.index("</script>", start)])


def _group(
    prompt: Prompt, made: Round, index: int, pieces: Pieces | None, trained_by: Mapping[int, Sequence[int]]
) -> dict[str, Any]:
    return {
        "number": prompt.number,
        "place": prompt.place,
        "messages": [{"role": str(each.get("role")), "content": each.get("content")} for each in prompt.messages],
        "columns": {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                    for name, value in prompt.columns.items()},
        "dropped": made.dropped.get(index, ""),
        "answers": [
            _answer(each, prompt, pieces, trained_by.get(number, ()))
            for number, each in enumerate(made.answers) if each.prompt == index
        ],
    }  # fmt: skip


def _answer(answer: DrawnAnswer, prompt: Prompt, pieces: Pieces | None, steps: Sequence[int]) -> dict[str, Any]:
    _, tokens, own = answer.layout(prompt)
    ids = [int(each) for each in tokens]
    written = [True] * len(ids) if own is None else own.tolist()
    return {
        "place": answer.place,
        "text": answer.text,
        "ended": answer.finish_reason,
        "reward": _figure(answer.reward) if any(each is not None for each in answer.rewards.values()) else None,
        "rewards": {
            name: {"value": None if value is None else _figure(value), "remark": answer.remarks.get(name, "")}
            for name, value in answer.rewards.items()
        },
        "advantage": _mean(answer.advantages),
        "why_not": answer.why_not,
        "steps": list(steps),
        "ids": ids,
        "pieces": [str(each) for each in (ids if pieces is None else pieces(ids))],
        "values": {name: _placed(values, written) for name, values in token_values(answer).items()},
        **({} if answer.episode is None else _turns(answer.episode, written)),
    }


def _turns(episode: Episode, written: Sequence[bool]) -> dict[str, Any]:
    """Return what the page shows of an episode besides its tokens."""
    begins = (
        [] if episode.begins_with is None else takewhile(lambda each: each["role"] != "assistant", episode.messages)
    )
    return {
        "turns": episode.turns,
        "turn_rewards": episode.rewards,
        "told": [not each for each in written],
        "begins": [{"role": str(each.get("role")), "content": each.get("content")} for each in begins],
        "info": json.dumps(episode.info, ensure_ascii=False, default=str) if episode.info else "",
    }


def _placed(values: np.ndarray, written: Sequence[bool]) -> list[float | str | None]:
    """Return the values of the model's own tokens in their places, None for what it was told."""
    known = iter(values)
    return [_figure(next(known)) if mine else None for mine in written]


def token_values(answer: DrawnAnswer) -> dict[str, np.ndarray]:
    """Return what is known of each token of an answer, by the name under which the page offers it."""
    found: dict[str, np.ndarray | None] = {
        "log-probability": answer.logps,
        "entropy": answer.entropies,
        "advantage": answer.advantages,
        "importance weight": answer.is_weights,
    }
    if answer.old_logps is not None:
        gap = answer.old_logps - answer.logps
        found |= {"gap to the engine": gap, "ratio to the engine": np.exp(gap)}
        if answer.ref_logps is not None:
            found["log-ratio to the reference"] = answer.old_logps - answer.ref_logps
    return {name: values for name, values in found.items() if values is not None}


def _mean(values: np.ndarray | None) -> float | str | None:
    return None if values is None or not len(values) else _figure(float(np.mean(values)))


def _figure(value: float) -> float | str:
    """Return four digits; JSON has no infinities."""
    return float(f"{value:.4g}") if np.isfinite(value) else str(float(value))


def _asset(name: str) -> str:
    return files("swift_rl").joinpath("assets", name).read_text(encoding="utf-8")
