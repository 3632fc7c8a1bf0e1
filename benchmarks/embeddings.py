"""Embeddings: tokens per second and losses beside sentence-transformers' trainer, as `benchmarks.scoring` explains.

Its loss is MultipleNegativesRankingLoss; model, pooling, and scale (here: temperature) are the same.
"""

from __future__ import annotations

import subprocess
from typing import Any

from benchmarks.commands import TRAINING
from benchmarks.facts import Figure
from benchmarks.scoring import BATCH, LAYOUTS, OBJECTIVES, SENTENCES, figures_of, make_inputs, note, taken
from benchmarks.turns import summary


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    make_inputs()
    steps = 15 if quick else 105
    runs = {layout: taken("embedding", layout, steps) for layout in LAYOUTS}
    details = {
        "sentence-transformers": _version(),
        "steps": steps,
        "queries_of_a_step": BATCH["embedding"],
        "arguments": [*TRAINING, *OBJECTIVES["embedding"]],
        **{layout: summary(run) for layout, run in runs.items()},
        "notes": [note()],
    }
    return figures_of("over sentence-transformers'", runs), details


def _version() -> str:
    command = "from importlib import metadata; print(metadata.version('sentence-transformers'))"
    return subprocess.run([SENTENCES, "-c", command], capture_output=True, text=True, check=True).stdout.strip()
