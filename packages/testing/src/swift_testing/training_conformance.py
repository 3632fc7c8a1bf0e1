"""The conformance kit of objectives, optimizers and tuners: a test class to inherit from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from swift.config.sections import ExportSection
from swift.errors import SwiftError
from swift.export import export_checkpoint
from swift.parsing import config_from_mapping
from swift.train import Loop, open_job
from swift_testing.checks import near
from swift_testing.crew import run_jobs, succeeded
from swift_testing.layouts import Layout
from swift_testing.subjects import conversations, write_model

__tracebackhide__ = True  # pytest shows the sentence alone

STEPS, ROWS = 6, 8
Curve = dict[int, tuple[float, float]]
"""Step → loss and gradient norm."""


class TrainingConformance:
    """Trains a tiny model in several ways that must give the same numbers, with the plugins that `settings` name.

        class TestFocal(TrainingConformance):
            settings = {"objective.name": "focal", "objective.gamma": 1.5}

    The first tests tell the most: `-k "accumulation or processes"`.
    """

    settings: ClassVar[Mapping[str, Any]]
    """Dotted keys of the run: `objective.name`, `optim.name` or `tuner.kind`, and options."""
    rows: ClassVar[Sequence[Mapping[str, Any]] | None] = None
    """At least 8 rows of different lengths that the objective can read; None: short conversations."""
    layouts: ClassVar[Sequence[Layout]] = (Layout(2),)
    """Layouts that are compared with one process; `config={"backend.name": "fsdp"}` tries another backend."""
    tolerance: ClassVar[float] = 1e-4
    """Largest relative difference of losses and gradient norms."""

    def test_accumulation_changes_nothing(self, tmp_path: Path) -> None:
        """Rows of a step in one micro-batch, or one by one: what is summed, not averaged, is the same."""
        whole = self._trained(tmp_path, "whole", {"train.micro_batch": 4})
        single = self._trained(tmp_path, "single", {"train.micro_batch": 1, "train.accumulation": 4})
        self._same(single, whole, "with one row in each micro-batch")

    def test_processes_change_nothing(self, tmp_path: Path) -> None:
        """Each layout has the numbers of one process."""
        alone = self._trained(tmp_path, "alone", {"train.micro_batch": 4})
        for layout in self.layouts:
            rows = {"train.micro_batch": max(4 // layout.data_size, 1)}
            shared = self._trained(tmp_path, f"layout-{layout}", rows, layout)
            self._same(shared, alone, f"with {layout.world} processes ({layout})")

    def test_resumed_run_changes_nothing(self, tmp_path: Path) -> None:
        """A run that was interrupted half-way has the numbers of one that was not."""
        whole = self._trained(tmp_path, "uninterrupted")
        first = self._trained(tmp_path, "resumed", pause_at=STEPS // 2)
        second = self._trained(tmp_path, "resumed", {"checkpoint.resume": "last"})
        assert min(second) == STEPS // 2 + 1, f"the resumed run begins at step {min(second)}"
        self._same({**first, **second}, whole, "resumed half-way")

    def test_training_repeats(self, tmp_path: Path) -> None:
        """Two runs with the same seed have the same numbers, bit for bit."""
        one, other = self._trained(tmp_path, "one"), self._trained(tmp_path, "other")
        differing = [step for step in one if one[step] != other.get(step)]
        assert not differing, f"two runs with the same seed differ at step {differing[0]}"

    def test_weights_are_trained(self, tmp_path: Path) -> None:
        """The loss changes, and every gradient norm is a positive number."""
        curve = self._trained(tmp_path, "trained")
        assert len({loss for loss, _ in curve.values()}) > 1, f"the loss stays {curve[1][0]:.6g}: nothing is trained"
        zero = [step for step, (_, norm) in curve.items() if not norm > 0]
        assert not zero, f"step {zero[0]}: the gradient norm is {curve[zero[0]][1]:.6g}" if zero else ""

    def test_trained_model_is_exported(self, tmp_path: Path) -> None:
        """The export of the trained model, adapters merged, has what was in training: swift verifies it."""
        self._trained(tmp_path, "trained")
        out = tmp_path / "exported"
        (run,) = (tmp_path / "trained").glob("*/run")
        export_checkpoint(run, to="hf", options=ExportSection(out=out), say=lambda _: None)
        report = json.loads((out / "verification.json").read_text(encoding="utf-8"))
        assert report["verified"], f"not verified: {report.get('reason')}"

    def _trained(
        self,
        folder: Path,
        name: str,
        changes: Mapping[str, Any] = MappingProxyType({}),
        layout: Layout = Layout(1),  # noqa: B008 - frozen
        *,
        pause_at: int | None = None,
    ) -> Curve:
        """Train in processes of their own; return loss and gradient norm of each step."""
        model = folder / "model"
        if not model.is_dir():
            write_model(model)
        settings = {
            "model.path": str(model), "backend.device": "cpu", "data.workers": 1, "data.max_length": 64,
            "optim.lr": 1e-3, "optim.warmup_steps": 0, "train.micro_batch": 2, "train.max_steps": STEPS,
            "checkpoint.save_steps": STEPS // 2, "logging.output": str(folder / name), "logging.run_name": "run",
            "logging.report_to": (), **self.settings, **layout.settings(), **changes,
        }  # fmt: skip
        rows = list(self.rows) if self.rows is not None else conversations(ROWS)
        (results,) = run_jobs(layout.world, [partial(_train, settings, rows, pause_at)])
        curve: Curve | str = succeeded(results)[0]
        assert not isinstance(curve, str), f"{name}: {curve}"
        return curve

    def _same(self, found: Curve, expected: Curve, how: str) -> None:
        assert found.keys() == expected.keys(), f"{how}: steps {[*found]}, not {[*expected]}"
        for step, (loss, norm) in expected.items():
            near(f"{how}, step {step}: loss", found[step][0], loss, self.tolerance)
            near(f"{how}, step {step}: gradient norm", found[step][1], norm, self.tolerance)


def _train(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], pause_at: int | None) -> Curve | str:
    """Return the steps of a run, or why swift refused or ended it."""
    try:
        with open_job(config_from_mapping(settings), rows=rows) as job:
            done = Loop(job, pause_at=pause_at).steps()
            return {record.step: (record.result.loss, record.result.grad_norm) for record in done}
    except SwiftError as error:
        return str(error)
