"""Importance weights against the engine: every mode by its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swift_rl import correction
from swift_rl.algorithm_options import AlgorithmOptions

OLD = [np.log([0.5, 0.2, 0.9]), np.log([0.6, 0.9]), np.log([0.1])]
DRAWN = [np.log([0.25, 0.05, 0.45]), np.log([0.5, 0.8]), np.log([0.9])]
MASKS = [np.array([True, True, True]), np.array([True, False]), np.array([True])]


def weights(**options: Any) -> list[list[float]]:
    given = {f"rollout_importance_sampling_{name}": value for name, value in options.items()}
    made = correction.weights(OLD, DRAWN, MASKS, AlgorithmOptions(**given))
    return [each.tolist() for each in made.weights]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "off"}, [[1, 1, 1], [1, 1], [1]]),
        ({"mode": "token_truncate"}, [[2, 2, 2], [1.2, 1], [1 / 9]]),
        ({"mode": "token_truncate", "min": 0.5}, [[2, 2, 2], [1.2, 1], [0.5]]),
        ({"mode": "token_mask", "threshold": 3.0}, [[2, 0, 2], [1.2, 1], [1 / 9]]),
        ({"mode": "token_mask", "threshold": 5.0, "min": 0.5}, [[2, 4, 2], [1.2, 1], [0]]),
        ({"mode": "sequence_truncate", "threshold": 10.0}, [[10] * 3, [1.2] * 2, [1 / 9]]),
        ({"mode": "sequence_mask", "threshold": 10.0}, [[0] * 3, [1.2] * 2, [1 / 9]]),
        ({"mode": "sequence_mask", "threshold": 20.0}, [[16] * 3, [1.2] * 2, [1 / 9]]),
        (
            {"mode": "sequence_truncate", "aggregate": "mean", "threshold": 9.0},
            [[16 ** (1 / 3)] * 3, [1.2] * 2, [1 / 9]],
        ),
        ({"mode": "sequence_mask", "aggregate": "mean", "threshold": 9.0}, [[2, 4, 2], [1.2, 1], [1 / 9]]),
        ({"mode": "sequence_mask", "aggregate": "mean", "threshold": 2.0}, [[0, 0, 0], [1.2, 1], [1 / 9]]),
    ],
)
def test_each_mode_bounds_the_ratio_in_its_own_way(options: dict[str, Any], expected: list[list[float]]) -> None:
    made = weights(**options)
    assert len(made) == len(expected)
    for ours, theirs in zip(made, expected, strict=True):
        assert ours == pytest.approx(theirs)


def test_correction_applies_only_to_other_engines_by_default() -> None:
    """Only engines that compute otherwise are corrected unless the user says more."""
    auto, asked = AlgorithmOptions(), AlgorithmOptions(rollout_importance_sampling_mode="sequence_mask")
    assert correction.mode_of(auto, off_policy=False) == "off"
    assert correction.mode_of(auto, off_policy=True) == "token_truncate"
    assert correction.mode_of(asked, off_policy=False) == correction.mode_of(asked, off_policy=True) == "sequence_mask"
    kept = correction.weights(OLD, DRAWN, MASKS, auto, off_policy=False)
    assert all(np.all(each == 1) for each in kept.weights)


def test_facts_say_how_much_was_corrected() -> None:
    options = AlgorithmOptions(rollout_importance_sampling_mode="token_truncate")
    facts = correction.weights(OLD, DRAWN, MASKS, options).facts
    used = np.array([2, 2, 2, 1.2, 1 / 9])
    assert facts["is_weight"] == pytest.approx(used.mean())
    assert facts["is_bounded"] == pytest.approx(1 / 5)
    assert facts["is_effective"] == pytest.approx(used.sum() ** 2 / (5 * (used**2).sum()))


def test_no_weight_is_infinite() -> None:
    options = AlgorithmOptions(
        rollout_importance_sampling_mode="sequence_truncate", rollout_importance_sampling_threshold=1e10
    )
    made = correction.weights([np.zeros(1000)], [np.full(1000, -50.0)], [np.ones(1000, dtype=bool)], options)
    assert made.weights[0] == pytest.approx(np.exp(20.0))
