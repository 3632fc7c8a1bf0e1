"""Logged lines: what the console, `logging.jsonl`, TensorBoard and the report show of a step.

A line is a flat dictionary. Loss, gradient norm, learning rate and metrics are those of the line's own step,
unrounded; speeds and fractions are averages since the previous line. Values that are not finite become None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping
from typing import Any

from swift.contracts import SECONDS_GENERATING, RankFacts, Run, StepRecord
from swift.hardware import device_called
from swift.train.cadence import LoggedSteps

Line = dict[str, Any]

PROGRESS = "global_step/max_steps"
MEMORY = "memory(GiB)"
SPEED = "train_speed(s/it)"
EVAL_PREFIX = "eval_"
RANKS = "ranks"
TIME_PARTS = ("compute_fraction", "communication_fraction", "data_fraction", "optimizer_fraction")
"""Parts of a step's time, which sum to 1; on lines after a measured step (`logging.time_breakdown`)."""


def waiting_label(names: Container[str]) -> str:
    """Return what a step waits for before it begins, in a run with metrics of these names."""
    return f"waiting for {'completions' if SECONDS_GENERATING in names else 'data'}"


class Meter:
    """Turns the records of steps that are to be logged into lines.

    These are the first step that it sees, every `every`-th, the last, and each that was evaluated.
    `mfu` turns tokens per second into a fraction of the hardware's peak, as `mfu_of` returns it.
    """

    def __init__(
        self,
        every: float,
        *,
        mfu: Callable[[float], float | None] = lambda tokens_per_second: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._logged = LoggedSteps(every)
        self._mfu = mfu
        self._clock = clock
        self._started = clock()
        self._since_last_line: list[StepRecord] = []

    def take(self, record: StepRecord) -> Line | None:
        """Return the line of this step, or None where it is not to be logged."""
        self._since_last_line.append(record)
        return self._line(record) if self._logged.takes(record) else None

    def rest(self) -> Line | None:
        """Return the line of the last step where a run ended between two logged ones, else None."""
        return self._line(self._since_last_line[-1]) if self._since_last_line else None

    def _line(self, record: StepRecord) -> Line:
        records, self._since_last_line = self._since_last_line, []
        result = record.result
        line: Line = {
            "step": record.step,
            PROGRESS: f"{record.step}/{record.total_steps}",
            "epoch": record.epoch,
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            **result.metrics,
            **self._times(record),
            **_averages(records),
            **_measured(records),
        }
        mfu = self._mfu(line["tokens_per_second"])
        if mfu is not None:
            line["mfu"] = mfu
        if result.skipped:
            line["skipped"] = True
        line |= _evaluated(record.evaluation or {})
        return {name: _finite(value) for name, value in line.items()}

    def _times(self, record: StepRecord) -> Line:
        """Return the seconds since this process began to train, and the seconds left at the pace so far."""
        elapsed = self._clock() - self._started
        steps_made = record.step - (self._logged.first or record.step) + 1
        remaining = elapsed / steps_made * (record.total_steps - record.step)
        return {"elapsed_time": round(elapsed, 3), "remaining_time": round(remaining, 3)}


def line_before(record: StepRecord) -> Line | None:
    """Return the line of the evaluation that was made before this step, or None where there was none."""
    if record.evaluation_before is None:
        return None
    step = record.step - 1
    line = {"step": step, PROGRESS: f"{step}/{record.total_steps}", **_evaluated(record.evaluation_before)}
    return {name: _finite(value) for name, value in line.items()}


def _evaluated(metrics: Mapping[str, float]) -> Line:
    return {name if name.startswith(EVAL_PREFIX) else EVAL_PREFIX + name: value for name, value in metrics.items()}


def evaluation_of(line: Mapping[str, Any]) -> Line:
    """Return the evaluation's metrics in a line, by their own names: {'loss': 1.2}."""
    return {name.removeprefix(EVAL_PREFIX): value for name, value in line.items() if name.startswith(EVAL_PREFIX)}


def scalars_of(line: Line) -> dict[str, float]:
    """Return the numbers of a line under the names of TensorBoard and trackers: `train/...` and `eval/...`."""
    return {
        f"eval/{name.removeprefix(EVAL_PREFIX)}" if name.startswith(EVAL_PREFIX) else f"train/{name}": value
        for name, value in line.items()
        if name != "step" and is_number(value)
    }


def is_number(value: object) -> bool:
    """Return whether a value of a line is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _averages(records: list[StepRecord]) -> Line:
    seconds = sum(record.seconds for record in records)
    tokens = sum(record.tokens for record in records)
    padded = sum(record.padded_tokens for record in records)
    return {
        SPEED: seconds / len(records),
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "padding_fraction": 1.0 - tokens / padded if padded else 0.0,
        "data_wait_fraction": sum(record.data_seconds for record in records) / seconds if seconds else 0.0,
        MEMORY: max(record.memory_gib for record in records),
    }


def _measured(records: list[StepRecord]) -> Line:
    """Return the time breakdown and what each process measured, where records have them."""
    line: Line = {}
    times = next((record.time_breakdown for record in reversed(records) if record.time_breakdown is not None), None)
    if times is not None:
        line |= {f"{name}_fraction": part for name, part in times.fractions.items()}
    ranks = next((record.ranks for record in reversed(records) if record.ranks), ())
    if ranks:
        line[RANKS] = [_row(each) for each in ranks]
    slowest = records[-1].slowest
    if slowest is not None:
        line["slowest_rank"] = slowest.rank
    return line


def _row(facts: RankFacts) -> Line:
    row = {"rank": facts.rank, "host": facts.host, "seconds": facts.seconds, "data_seconds": facts.data_seconds}
    if facts.own_seconds is not None:
        row |= {"own_seconds": facts.own_seconds, "communication_seconds": facts.communication_seconds}
    return row | {MEMORY: facts.memory_gib}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mfu_of(run: Run) -> Callable[[float], float | None]:
    """Tokens per second → share of the peak of all devices of the run, or None where something is not known.

    A token costs 2 FLOPs per weight forward, 2 backward for activations, and 2 more for weights that are trained: the
    usual 6N where all are. It is taken to pass through all weights. Attention's own products and recomputation are left
    out, as is the custom.
    """
    model, peak = run.facts.model, _peak_flops(run)
    if model is None or peak is None:
        return lambda tokens_per_second: None
    flops_per_token = 4 * model.parameters + 2 * model.trainable
    return lambda tokens_per_second: tokens_per_second * flops_per_token / peak


def _peak_flops(run: Run) -> float | None:
    """Return the peak of all processes' devices together; None for unknown hardware or precision."""
    on_gpu = run.topology.device.startswith("cuda")
    if not on_gpu or run.facts.model is None or run.facts.model.precision not in ("bfloat16", "float16"):
        return None
    import torch

    device = torch.cuda.get_device_name()
    facts = device_called(device)
    return facts.tflops * 1e12 * run.world.size if facts is not None else None
