"""`plan.json` in the folder of every run, with predicted and measured values; `--report_to plan` adds more.

Every process of every run imports this: the planner itself is imported at the end, by the one that writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import log1p
from statistics import median
from typing import TYPE_CHECKING, Any

from swift.errors import SwiftError
from swift.files import replace_file
from swift.hookspecs import hookimpl
from swift_plan.watching import TrialWatch, is_trial

if TYPE_CHECKING:
    from swift.contracts import Run, RunSummary, StepRecord, StepResult, StepTimes
    from swift.data.batch import Batch
    from swift_plan.bars import Bar
    from swift_plan.search import Candidate

NAME, FILE_NAME = "plan", "plan.json"
_WARM = 2
"""Steps that are left out of the time of a step, where there are others: the first ones compile and fill caches."""


class PlanObserver:
    """Notes what each step took, and compares it with the plan when the run ends."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._tokens: list[int] = []
        self._peak = 0.0
        self._measured: list[StepTimes] = []
        self._watch = TrialWatch() if is_trial() else None

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        """Watch the step, where the run is a trial."""
        if self._watch is None or run.role != "policy":
            return (yield)
        with self._watch.step(run, batch.step):
            return (yield)

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        """Note the step."""
        self._seconds.append(record.seconds)
        self._tokens.append(record.padded_tokens)
        self._peak = max(self._peak, record.memory_gib * 2**30)
        if record.time_breakdown is not None:
            self._measured.append(record.time_breakdown)

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        """Write the comparison, and add it to the ledger."""
        if not self._seconds or self._watch is not None:
            return
        from swift_plan import ledger
        from swift_plan.bars import Bars
        from swift_plan.machine import this_machine

        seconds = median(self._seconds[_WARM:] or self._seconds)
        measured: dict[str, Any] = {
            "peak_bytes": round(self._peak),
            "step_seconds": seconds,
            "steps": len(self._seconds),
        }
        parts = {name: seconds * part for name, part in _mean_fractions(self._measured).items()}
        if parts:
            measured["seconds"] = parts
        # Tracing takes seconds, so it is done only on request.
        requested = NAME in run.config.logging.report_to
        try:
            planned = _planned(run, max(self._tokens))
        except Exception as error:
            if requested and not isinstance(error, SwiftError):
                raise
            reason = error.message if isinstance(error, SwiftError) else f"{type(error).__name__}: {error}"
            _write(run, {"not_counted": reason, "measured": measured})
            return
        device = run.topology.device.partition(":")[0]
        entry = ledger.LedgerEntry(
            backend=run.config.backend.name,
            device=this_machine(run.world.size, 1).device.name if device == "cuda" else device,
            level=0,
            layout=dict(run.topology.layout),
            parameters=run.facts.model.parameters if run.facts.model is not None else 0,
            predicted_bytes=planned.peak,
            measured_bytes=self._peak,
            predicted_seconds=planned.time.total,
            measured_seconds=seconds,
        )
        predicted = {
            "memory_bytes": {name: round(size) for name, size in planned.memory.items()},
            "peak_bytes": round(planned.peak),
            "seconds": planned.time.terms(),
            "step_seconds": planned.time.total,
        }
        differs = {"peak": entry.residual("bytes"), "step": entry.residual("seconds")}
        traced = _traced(run, max(self._tokens)) if requested else {}
        _write(
            run,
            {
                "level": 0, "predicted": predicted, **({"traced": traced} if traced else {}), "measured": measured,
                "measured_above_predicted": differs,
            },
        )  # fmt: skip
        if requested and planned.time.total > 0:
            earlier = ledger.entries(entry.backend, entry.device)
            errors = [log1p(each.residual("seconds")) for each in earlier if each.measured_seconds > 0]
            run.say(verdict(Bars(errors).around(planned.time.total), seconds, parts))
        if summary.status == "completed":
            with nullcontext() if requested else suppress(OSError):  # a home that cannot be written into
                ledger.add(entry)
            if traced.get("basis") == "traced":
                ledger.add(replace(entry, level=1, predicted_bytes=float(traced["peak_bytes"])))


def verdict(bar: Bar, seconds: float, parts: Mapping[str, float]) -> str:
    """Return a comparison: 'Predicted 1.2s per step (0.9s to 1.6s), measured 1.8s: outside.', and the parts."""
    where = "inside" if bar.low <= seconds <= bar.high else "outside"
    text = f"Predicted {bar.value:.3g}s per step ({bar.low:.3g}s to {bar.high:.3g}s), measured {seconds:.3g}s: {where}."
    labels = {"communication": "communication", "data": "waiting for data", "optimizer": "the optimizer"}
    named = [
        f"{parts[name] / seconds:.0%} is {label}"
        for name, label in labels.items()
        if parts.get(name, 0.0) >= 0.005 * seconds
    ]
    return f"{text} Of it, {', '.join(named)}." if named else text


def _mean_fractions(times: Sequence[StepTimes]) -> dict[str, float]:
    """Return the parts of the steps that were measured, together; nothing where none was."""
    whole = sum(each.seconds for each in times)
    names = times[0].fractions if times else ()
    return {name: sum(each.fractions[name] * each.seconds for each in times) / whole for name in names}


def _traced(run: Run, tokens: int) -> dict[str, Any]:
    """Return the memory of level 1."""
    try:
        planned = _planned(run, tokens, level=1)
    except SwiftError as error:
        return {"not_traced": error.message}
    memory = {name: round(size) for name, size in planned.memory.items()}
    return {"basis": planned.basis, "memory_bytes": memory, "peak_bytes": round(planned.peak)}


def _planned(run: Run, tokens: int, level: int = 0) -> Candidate:
    """Return the prediction for this run, for the tokens that its largest step had."""
    from swift_plan.machine import PROGRAM
    from swift_plan.search import counted_run

    precision = run.facts.model.precision if run.facts.model is not None else "float32"
    size = 4.0 if precision.startswith("float32") else 2.0
    _, candidate = counted_run(run, tokens=tokens, compute_bytes=size, level=level)
    return candidate if run.topology.device.startswith("cuda") else replace(candidate, program=PROGRAM * 1e9)


def _write(run: Run, content: Mapping[str, Any]) -> None:
    replace_file(run.folder / FILE_NAME, json.dumps(content, indent=2) + "\n")
