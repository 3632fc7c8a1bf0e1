"""Runs of all programs: read from a file or a command, and translated."""

from __future__ import annotations

from pathlib import Path

from swift.contracts import ThirdPartyRun
from swift_migrate.imports import axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl
from swift_migrate.imports.media import note_media
from swift_migrate.imports.recipe import RecipeImport
from swift_migrate.imports.sources import read_file, read_script

_PROGRAMS = {each.NAME: each for each in (axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl)}


def read(source: str) -> list[ThirdPartyRun]:
    """Return the runs of a file, or of a command line."""
    path = Path(source)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        is_file = False
    return read_file(path) if is_file else read_script(source, "the command", Path())


def translated(recipe: ThirdPartyRun) -> RecipeImport:
    """Return a run in swift's keys."""
    run = RecipeImport(recipe)
    _PROGRAMS[recipe.program].translate(run)
    note_media(run)
    return run
