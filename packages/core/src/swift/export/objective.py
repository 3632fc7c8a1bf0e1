"""Files that an objective adds to an export: they say how the inputs of the model are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.contracts import ExportContext, Objective
from swift.errors import PluginError
from swift.models.sentence_files import add_prompts, stored_prompts
from swift.plugins.blame import failing
from swift.plugins.load import LoadedPlugin, find, load
from swift.plugins.objective import make_objective
from swift.plugins.python_files import is_imported, is_in_file
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
    name = objective.get("name")
    if name is None:
        if model is not None:
            add_prompts(folder, stored_prompts(model))
        return
    if is_in_file("swift.objectives", name) and not is_imported(name):  # a checkpoint must not name code to run
        say(f"{name} is not run for an export. Files that the objective adds, such as a chat template, are missing.")
        return
    try:
        entry = find("swift.objectives", name)
    except PluginError as problem:  # such an export was trained elsewhere, and most objectives add nothing
        say(f"{problem.message} Files that it adds to an export, such as a chat template, are missing. {problem.hint}")
        return
    plugin = load(entry)
    if plugin.object.finish_export is not Objective.finish_export:
        made = make_objective(plugin, options_of_run(plugin, objective))
        made.finish_export(ExportContext(folder, system))


def options_of_run(plugin: LoadedPlugin, objective: Mapping[str, Any]) -> Any:
    """Return the options of the run, as far as the installed version of the objective knows them."""
    assert plugin.config_model is not None
    known = {name: objective[name] for name in plugin.config_model.model_fields if name in objective}
    with failing(plugin.entry, "its options"):
        return plugin.config_model.model_validate(known)
