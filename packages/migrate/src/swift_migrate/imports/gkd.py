"""GKD recipes (distillation) of TRL and ms-swift: their flags and different defaults."""

from __future__ import annotations

from swift_migrate.imports import grpo
from swift_migrate.imports.recipe import RecipeImport, number
from swift_migrate.imports.rules import Table

_WARM = 0.9
"""Default temperature of both programs."""


def trl(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a GKD recipe of TRL; `table` is that of its other trainers."""
    run.command = "rlhf"
    run.set("objective.name", "gkd", "trl gkd")
    _rest(run, table, longest=128)


def ms_swift(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a GKD recipe of ms-swift; `table` is that of its other commands."""
    warm = number(run.values.get("temperature", _WARM))
    whole = run.values.get("gkd_logits_topk") is None
    _rest(run, table, longest=512)
    if whole:
        run.default("objective.divergence_temperature", warm)
    elif warm != 1:
        run.lose(
            "temperature",
            warm,
            "ms-swift applies it to the teacher's top logits only; swift compares all probabilities at temperature 1",
        )


def _rest(run: RecipeImport, table: Table, *, longest: int) -> None:
    teacher = {"teacher_model", "teacher_model_name_or_path", "teacher_model_server"} & run.values.keys()
    if not teacher:
        run.lose("teacher_model", "", "the recipe has no teacher: set objective.teacher_model")
    grpo.apply_flags(run, table)
    run.defaults("objective", lmbda=0.5, beta=0.5, temperature=_WARM, gkd_logits_topk=0, max_completion_length=longest)
