"""Reward models: tokens per second and losses beside TRL's RewardTrainer, as `benchmarks.scoring` explains.

TRL runs as it comes, which recomputes activations in the backward pass, and without that.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from benchmarks.commands import TRAINING
from benchmarks.facts import Figure
from benchmarks.scoring import BATCH, FLAT, LAYOUTS, OBJECTIVES, figures_of, make_inputs, note, taken
from benchmarks.turns import summary


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    make_inputs()
    steps = 15 if quick else 105
    runs = {"over TRL's, as it comes": {FLAT: taken("rm", FLAT, steps, recompute=True)}}
    runs["over TRL's, nothing recomputed"] = {layout: taken("rm", layout, steps) for layout in LAYOUTS}
    details = {
        "TRL": metadata.version("trl"),
        "steps": steps,
        "pairs_of_a_step": BATCH["rm"],
        "arguments": [*TRAINING, *OBJECTIVES["rm"]],
        **{title: {layout: summary(run) for layout, run in each.items()} for title, each in runs.items()},
        "notes": [note()],
    }
    return [figure for title, each in runs.items() for figure in figures_of(title, each)], details
