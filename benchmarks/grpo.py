"""GRPO beside TRL's GRPOTrainer: drawing answers, learning from them, and both, with the same model, prompts and G.

All sides take turns step by step, each in a process of its own with one thread; the first steps of each are left out.
A model with random weights hardly ever ends an answer, so that all have equally many tokens; where the token that ends
them is made likelier, most are over long before the longest allowed. swift runs padded, as TRL does, and
without padding; TRL as it comes, which recomputes activations in the backward pass, and without that.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.facts import Figure
from benchmarks.grpo_sides import REWARD
from benchmarks.inputs import CHATS, ENDING, MODEL, WORK, ensure
from benchmarks.peer import Peer
from benchmarks.scoring import FLAT, LAYOUTS, PADDED, note

TRL = {"as it comes": {}, "nothing recomputed": {"gradient_checkpointing": False}}
"""Settings of TRL, by what figures call it."""
LENGTHS = {"answers of one length": MODEL, "answers of their own lengths": ENDING}
PROMPTS, GENERATIONS, LONGEST = 4, 8, 64
"""Of each step."""
WARM_UP = 1
LEARNING_RATE = 1e-6
"""So small that lengths stay what they are."""

Steps = dict[str, list[dict[str, Any]]]
"""Of every side, by name."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Return ratios over TRL, of medians over steps."""
    _make_inputs()
    steps = WARM_UP + (3 if quick else 6)
    runs = {lengths: _turns(model, steps) for lengths, model in LENGTHS.items()}
    figures = [figure for lengths, run in runs.items() for figure in _figures(lengths, run)]
    details = {
        "TRL": metadata.version("trl"),
        "steps": steps,
        **{"prompts_of_a_step": PROMPTS, "answers_to_each": GENERATIONS, "longest_answer": LONGEST},
        **{lengths: {side: _summary(each) for side, each in run.items()} for lengths, run in runs.items()},
        "notes": [note()],
    }
    return figures, details


def _turns(model: Path, steps: int) -> Steps:
    """Return the steps of all sides in turn, without the first ones."""
    both = {
        "model": str(model),
        "data": str(WORK / "prompts.jsonl"),
        "rewards": str(WORK / "letters.py"),
        "steps": steps + 1,
        "learning_rate": LEARNING_RATE,
        **{"prompts": PROMPTS, "generations": GENERATIONS, "longest": LONGEST},
    }
    orders = {layout: {**both, "side": "swift", "arguments": given} for layout, given in LAYOUTS.items()}
    orders |= {said: {**both, "side": "trl", "arguments": given} for said, given in TRL.items()}
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SWIFT_PLUGINS": "swift-rl"}
    peers = {side: Peer("benchmarks.grpo_sides", order, variables=alone) for side, order in orders.items()}
    made: Steps = {side: [] for side in peers}
    for peer in peers.values():
        peer.wait()
    for _ in range(steps):
        for side, peer in peers.items():
            made[side].append(peer.step())
        (WORK / f"grpo-{model.name}.json").write_text(json.dumps(made))  # what there is, if it has to be ended early
    for peer in peers.values():
        peer.close()
    print(f"  {model.name}: done", flush=True)
    return {side: each[WARM_UP:] for side, each in made.items()}


def _figures(lengths: str, run: Steps) -> list[Figure]:
    figures = []
    for said in TRL:
        for clock, unit in (("cpu", "CPU second"), ("seconds", "second")):
            title = f"{lengths}: tokens per {unit} over TRL's, {said}"
            figures += [
                Figure(f"{title}: drawn", _ratio(run, PADDED, said, clock, _drawing), at_least=1.3),
                Figure(f"{title}: learned from, {PADDED}", _ratio(run, PADDED, said, clock, _learning)),
                Figure(f"{title}: learned from, {FLAT}", _ratio(run, FLAT, said, clock, _learning), at_least=1.5),
                Figure(f"{title}: end to end, {FLAT}", _ratio(run, FLAT, said, clock, _whole), at_least=1.4),
            ]
        peaks = [max(step["mib"] for step in run[side]) for side in (FLAT, said)]
        title = f"{lengths}: peak memory beyond the model over TRL's, {said}"
        figures.append(Figure(title, peaks[0] / peaks[1], at_most=1.0))
    sent = median(step["cpu"]["sent"] / step["cpu"]["whole"] for step in run[FLAT])
    mean = [median(step["tokens"] for step in run[side]) / PROMPTS / GENERATIONS for side in (FLAT, next(iter(TRL)))]
    return [
        *figures,
        Figure(f"{lengths}: weights to the engine and their verification, share of a step", 100 * sent, unit="%"),
        Figure(f"{lengths}: mean length over the longest allowed, swift's", mean[0] / LONGEST),
        Figure(f"{lengths}: mean length over TRL's", mean[0] / mean[1]),
    ]


def _ratio(run: Steps, own: str, other: str, clock: str, part: Any) -> float:
    """Return tokens a second over the other's: a median over the steps that were made side by side."""
    pairs = zip(run[own], run[other], strict=True)
    return median(_speed(mine, clock, part) / _speed(theirs, clock, part) for mine, theirs in pairs)


def _speed(step: dict[str, Any], clock: str, part: Any) -> float:
    return float(step["tokens"] / part(step[clock]))


def _drawing(seconds: dict[str, float]) -> float:
    return seconds["drawn"]


def _learning(seconds: dict[str, float]) -> float:
    """All but answers and their scores: the step itself, and what belongs to it."""
    return seconds["whole"] - seconds["prepared"]


def _whole(seconds: dict[str, float]) -> float:
    return seconds["whole"]


def _summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians that figures were made of."""
    clocks = ("seconds", "cpu")
    return {
        "tokens": median(step["tokens"] for step in steps),
        "peak_mib_beyond_the_model": max(step["mib"] for step in steps),
        **{clock: {part: median(step[clock][part] for step in steps) for part in steps[0][clock]} for clock in clocks},
    }


def _make_inputs() -> None:
    """Make the models, the prompts and the file of the reward."""
    ensure()
    (WORK / "letters.py").write_text(REWARD)
    questions = ([json.loads(line)["messages"][0]] for line in CHATS.read_text().splitlines())
    (WORK / "prompts.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in questions))
