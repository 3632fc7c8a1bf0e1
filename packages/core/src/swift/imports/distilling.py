"""Recipes of distillation (GKD) of TRL and ms-swift: their flags are taken, and the defaults by which they differ."""

from __future__ import annotations

from swift.imports import online
from swift.imports.carrying import Carrying, number
from swift.imports.rules import Table

_WARM = 0.9
"""Temperature of both programs."""


def trl(run: Carrying, table: Table) -> None:
    """Translate what is left of a recipe of TRL's GKD; `table` is that of its other trainers."""
    run.command = "rlhf"
    run.set("objective.name", "gkd", "trl gkd")
    _rest(run, table, longest=128)


def ms_swift(run: Carrying, table: Table) -> None:
    """Translate what is left of a recipe of ms-swift's GKD; `table` is that of its other commands."""
    warm = number(run.values.get("temperature", _WARM))
    whole = run.values.get("gkd_logits_topk") is None
    _rest(run, table, longest=512)
    if whole:
        run.default("objective.divergence_temperature", warm)
    elif warm != 1:
        run.lose(
            "temperature",
            warm,
            "ms-swift divides the teacher's likeliest logits by it; swift compares at temperature 1, where others have "
            "a probability too",
        )


def _rest(run: Carrying, table: Table, *, longest: int) -> None:
    teacher = {"teacher_model", "teacher_model_name_or_path", "teacher_model_server"} & run.values.keys()
    if not teacher:
        run.lose("teacher_model", "", "the recipe names no teacher: write objective.teacher_model")
    online.apply_flags(run, table)
    defaults = {"lmbda": 0.5, "beta": 0.5, "temperature": _WARM, "gkd_logits_topk": 0}
    for name, value in {**defaults, "max_completion_length": longest}.items():
        run.default(f"objective.{name}", value)
