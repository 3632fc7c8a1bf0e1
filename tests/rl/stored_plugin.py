"""The objective `stored_grpo`: the losses of `grpo` over completions that a seed makes.

So runs on any backend learn from exactly the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift.contracts import BatchSchedule
from swift.data.samples import Encoded, Segment
from swift_rl.objective import Grpo

POINTS = "[swift.objectives]\nstored_grpo = stored_plugin:StoredGrpo\n"
MODEL_SAYS = -float(np.log(264))
"""About what a model with random weights says of any token."""


@pytest.fixture
def stored_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the entry points of this module known for one test."""
    info = tmp_path / "site" / "made_up_completions-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: made-up-completions\nVersion: 1.0\nRequires-Dist: swift-rl>=0.1\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(info.parent))


class StoredGrpo(Grpo):
    """`grpo` whose schedule makes the completions up."""

    name = "stored_grpo"
    encoding = "chat"  # type: ignore[assignment]

    def batch_schedule(self, context: Any) -> StoredSchedule:
        return StoredSchedule(context)


class StoredSchedule(BatchSchedule):
    """Completions of 1 to 20 tokens, two of a round of twelve never learned from; a round serves two steps."""

    steps_per_epoch = None

    def __init__(self, context: Any) -> None:
        self._context = context
        self.total_steps = context.config.train.max_steps

    def epoch_at(self, step: int) -> float:
        return step / 2

    def batch(self, step: int, data_rank: int, data_size: int) -> Any:
        size = self._context.layout.global_rows
        rows = [(made_up(step // 2 * 2 * size + step % 2 * size + place),) for place in range(size)]
        return replace(self._context.batch(step, rows, data_rank, data_size), temperature=0.8)


def made_up(number: int) -> Encoded:
    """A completion after a prompt, with all numbers that a schedule may give to its tokens."""
    noise = np.random.default_rng(number)
    prompt, length = int(noise.integers(2, 12)), int(noise.integers(1, 21))
    tokens = noise.integers(3, 250, size=prompt + length).astype(np.int32)
    old = MODEL_SAYS + noise.normal(scale=0.3, size=length)
    values = {
        "advantages": np.full(length, 0.3 + noise.normal()),
        "old_logps": old,
        "ref_logps": old + noise.normal(scale=0.2, size=length),
        "is_weights": noise.uniform(0.5, 2.0, size=length),
    }

    def placed(each: Any) -> np.ndarray:
        whole = np.zeros(prompt + length, dtype=np.float32)
        whole[prompt:] = each
        return whole

    learned = 0.0 if number % 6 == 4 else 1.0
    segment = Segment(tokens, placed(learned), {name: placed(value) for name, value in values.items()})
    return Encoded(number, (segment,))
