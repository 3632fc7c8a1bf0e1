"""The charts of a run's logged lines: known metrics first, then one chart for every other metric."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import files
from typing import Any

from swift.observers.lines import EVAL_PREFIX, MEMORY, PROGRESS, SPEED, TIME_PARTS, Line, is_number, waiting_label
from swift.observers.text import label

KNOWN = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
    MEMORY: "Memory (GiB)",
    "mfu": "Model FLOPs utilisation",
    "token_acc": "Token accuracy",
    "router_aux_loss": "Balance loss of routers",
    "router_z_loss": "z-loss of routers",
    "expert_load/max": "Largest load of an expert (1 is balanced)",
    "expert_load/entropy": "Entropy of the load of experts (1 is balanced)",
    "expert_load/unused": "Experts without tokens",
    "expert_load/dropped": "Dropped tokens",
}

FROM_ZERO = {"learning_rate", "grad_norm", "tokens_per_second", MEMORY, "mfu"}
"""Amounts, whose axis starts at zero; the axis of the others frames the values."""

TIME_TITLE = "Time breakdown of a step"
TIME_SERIES = (
    ("compute_fraction", "compute", "compute"),
    ("communication_fraction", "communication", "communication"),
    ("optimizer_fraction", "optimizer", "optimizer"),
    ("data_fraction", "", "waiting"),
)
"""Name, label and kind of the parts of a step's time; that of waiting depends on the run."""

NOT_CHARTED = {
    *TIME_PARTS,
    "slowest_rank",
    "step",
    "epoch",
    "elapsed_time",
    "remaining_time",
    "padding_fraction",
    "data_wait_fraction",
    "skipped",
    PROGRESS,
    SPEED,
}


def charts_of(lines: list[Line], peak: float | None = None) -> list[dict[str, Any]]:
    """Return titles and series for the page's script: training and evaluation of one metric share a chart.

    Metrics without values have no chart, nor has GPU memory on a CPU. `peak` is the learning rate that the axis
    reaches, whether or not a line was logged there.
    """
    present = dict.fromkeys(name for line in lines for name, value in line.items() if is_number(value))
    if not any(line.get(MEMORY) for line in lines):
        present.pop(MEMORY, None)
    metrics = dict.fromkeys(name.removeprefix(EVAL_PREFIX) for name in present if name not in NOT_CHARTED)
    ordered = [name for name in KNOWN if name in metrics] + [name for name in metrics if name not in KNOWN]
    charts = []
    for metric in ordered:
        series = []
        if metric in present:
            series.append({"name": metric, "label": "train", "kind": "train"})
        if EVAL_PREFIX + metric in present:
            series.append({"name": EVAL_PREFIX + metric, "label": "evaluation", "kind": "evaluation"})
        title = KNOWN.get(metric, label(metric))
        charts.append({"title": title, "metric": metric, "from_zero": metric in FROM_ZERO, "series": series})
        if metric == "learning_rate" and peak is not None:
            charts[-1]["reaches"] = peak
    return charts + _time_chart(present)


def chart_script() -> str:
    """Return the script of the charts in `report.html` and the dashboard, which defines `swiftCharts`."""
    return files("swift.observers").joinpath("assets", "charts.js").read_text(encoding="utf-8")


def _time_chart(present: Collection[str]) -> list[dict[str, Any]]:
    """Return the stacked chart of the parts of a step's time, where they were measured."""
    waiting = waiting_label(present)
    series = [
        {"name": name, "label": label or waiting, "kind": kind} for name, label, kind in TIME_SERIES if name in present
    ]
    return [{"title": TIME_TITLE, "metric": "time_breakdown", "stacked": True, "series": series}] if series else []
