"""Files that an objective adds to an export: they say how the inputs of the model are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.checkpoint.weights_location import OBJECTIVE
from swift.contracts import ExportContext, Objective
from swift.models.sentence_files import add_prompts, stored_prompts
from swift.plugins.objective import load_objective_of_run, make_objective_of_run
from swift.terminal import Say, say_nothing


def add_files_of_objective(
    folder: Path,
    objective: Mapping[str, Any],
    *,
    model: Path | None,
    system: str | None = None,
    say: Say = say_nothing,
) -> None:
    """Let the objective of a run finish the export; without a run, keep the prompts of the `model` folder."""
    if objective.get("name") is None:
        if model is not None:
            add_prompts(folder, stored_prompts(model))
        return
    plugin = load_objective_of_run(objective, say)
    if plugin is None:
        return
    if plugin.object.finish_export is not Objective.finish_export:
        make_objective_of_run(plugin, objective).finish_export(ExportContext(folder, system))
    if plugin.object.returns is not None:
        stored = json.dumps({"objective": dict(objective), "system": system}, indent=2, ensure_ascii=False)
        (folder / OBJECTIVE).write_text(f"{stored}\n", encoding="utf-8")
