"""Any checkpoint resumes anywhere: five steps on one engine, five on another, and each step is that of one plain run.

`make matrix` tries every pair and writes what it found; `docs/reference/resume-matrix.md` shows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from places import DENSE, PLACES, Engine, Pair, Place, pairs
from tiers import selected, tiered

from swift.checkpoint.manifest import installed_versions
from swift_testing.cases import BY_NAME, FP32, STEPS
from swift_testing.crew import Job, succeeded
from swift_testing.subjects import Subject
from swift_testing.trial import Outcome
from swift_testing.trials import KILLED_AT, Trials

PAIRS = list(pairs())
QUICK = [pair for pair in PAIRS if pair.case == "clipped" and pair.subject is DENSE and pair.wrote in PLACES[1:4]]
"""From FSDP over DeepSpeed and Megatron to torch."""
ENGINES = ("deepspeed", "megatron-core", "mcore-bridge")


class Matrix:
    """Runs of all places, each saved once per case, and resumed in one launch per reader."""

    def __init__(self, folder: Path, chosen: Sequence[Pair]) -> None:
        self._folder = folder
        self._chosen = chosen
        self._trials: dict[tuple[str, Subject], Trials] = {}
        self.found: dict[Pair, tuple[float, float]] = {}
        """Largest relative difference of loss and gradient norm."""

    def saved(self, pair: Pair, place: Place) -> list[Outcome]:
        """Each process's outcome of the first steps; they die on the spot when the checkpoint is whole."""
        case = BY_NAME[pair.case]
        return succeeded(self._of(place.engine, pair.subject).killed(case, place.layout))

    def resumed(self, pair: Pair) -> list[Outcome]:
        """Each process's outcome of the steps that follow."""
        reads, case = pair.reads, BY_NAME[pair.case]
        trials = self._of(reads.engine, pair.subject)
        trials.expected(case)
        jobs: dict[tuple[Any, ...], Job] = {}
        for each in self._chosen:
            if (each.case, each.subject, each.reads) != (pair.case, pair.subject, reads):
                continue
            checkpoint = self.saved(each, each.wrote)[0].checkpoint
            assert checkpoint is not None
            trial = trials.trial(case, reads.layout, f"resumed from {each.wrote}")
            jobs[each, "resumed"] = partial(trial.resumed, checkpoint, STEPS - KILLED_AT)
        return succeeded(trials.results(reads.layout, jobs)[pair, "resumed"])

    def _of(self, engine: Engine, subject: Subject) -> Trials:
        key = (engine.backend, subject)
        if key not in self._trials:
            self._trials[key] = Trials(
                engine.backend,
                self._folder / f"{engine.backend}-{subject.architecture}",
                environment=engine.environment,
                preload=engine.preload,
                subject=subject,
            )
        return self._trials[key]

    def expected(self, pair: Pair) -> Any:
        """The plain run, which no engine has a part in."""
        return self._of(pair.reads.engine, pair.subject).expected(BY_NAME[pair.case])


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    made = Matrix(tmp_path_factory.mktemp("matrix"), selected(request, "pair"))
    yield made
    if destination := os.environ.get("SWIFT_MATRIX_RESULTS"):
        _write(Path(destination), made.found)


@pytest.mark.parametrize("pair", tiered(PAIRS, QUICK), ids=str)
def test_what_one_engine_saved_another_goes_on_with(matrix: Matrix, pair: Pair) -> None:
    expected = matrix.expected(pair)
    of_loss = of_norm = 0.0
    both = ((matrix.saved(pair, pair.wrote), 1, KILLED_AT), (matrix.resumed(pair), KILLED_AT + 1, STEPS))
    for outcomes, first, last in both:
        for rank, outcome in enumerate(outcomes):
            assert list(outcome.results) == list(range(first, last + 1)), f"process {rank}: {list(outcome.results)}"
            for step, result in outcome.results.items():
                at = f"{pair}, process {rank}, step {step}"
                assert result.learning_rate == pytest.approx(expected.rates[step - 1], rel=1e-6), at
                of_loss = max(of_loss, _off(result.loss, expected.losses[step - 1]))
                of_norm = max(of_norm, _off(result.grad_norm, expected.grad_norms[step - 1]))
                assert of_loss <= FP32, f"{at}: loss {result.loss}, expected {expected.losses[step - 1]}"
                assert of_norm <= FP32, f"{at}: norm {result.grad_norm}, expected {expected.grad_norms[step - 1]}"
    matrix.found[pair] = (of_loss, of_norm)


def test_every_layout_writes_and_reads() -> None:
    full = [pair for pair in PAIRS if pair.case == "clipped"]
    assert set(PLACES) <= {pair.wrote for pair in full}
    assert set(PLACES) <= {pair.reads for pair in full}


def _off(value: float, expected: float) -> float:
    return abs(value - expected) / abs(expected)


def _write(destination: Path, found: dict[Pair, tuple[float, float]]) -> None:
    rows = [
        {
            "model": pair.subject.architecture,
            "case": pair.case,
            "wrote": pair.wrote.name,
            "reads": pair.reads.name,
            "loss": float(f"{of_loss:.1e}"),
            "grad_norm": float(f"{of_norm:.1e}"),
        }
        for pair, (of_loss, of_norm) in found.items()
    ]
    versions = {**installed_versions(), **{name: version(name) for name in ENGINES}}
    facts = {"command": "make matrix", "tried": len(PAIRS), "tolerance": FP32, "versions": versions}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    destination.write_text(f'{{\n "facts": {json.dumps(facts)},\n "pairs": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
