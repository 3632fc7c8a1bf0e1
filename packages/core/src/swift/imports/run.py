"""`swift config import`: from a file, a command or a folder of recipes to swift's YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swift.config.parse import config_from_mapping
from swift.errors import ConfigError, SwiftError
from swift.imports import axolotl, llama_factory, ms_swift, nemo, torchtune, trainer, trl
from swift.imports.media import note_media
from swift.imports.recipe import NotTrainable, RecipeImport, Remark, ThirdPartyRun
from swift.imports.sources import READABLE, read_file, read_script
from swift.imports.write import text_of
from swift.untrusted import shown

TRANSLATIONS: dict[str, Callable[[RecipeImport], None]] = {
    llama_factory.NAME: llama_factory.translate,
    axolotl.NAME: axolotl.translate,
    trl.NAME: trl.translate,
    ms_swift.NAME: ms_swift.translate,
    trainer.NAME: trainer.translate,
    torchtune.NAME: torchtune.translate,
    nemo.NAME: nemo.translate,
}
_ATTEMPTS = 40
_FASTER = ("model.liger",)
"""Keys that change speed alone, so that nothing is lost where a backend refuses them."""


@dataclass(frozen=True)
class ImportedRun:
    """A configuration of swift made from a third-party recipe."""

    program: str
    text: str
    """The YAML file."""
    command: str
    """What to type next."""
    lost: list[Remark]
    """Settings that are not imported."""
    keys: int
    noted: int


def read_runs(source: str) -> list[ThirdPartyRun]:
    """Return the runs of a file, or of a command line."""
    path = Path(source)
    if is_there(path):
        return read_file(path)
    if " " not in source and (path.suffix in READABLE or "/" in source):
        raise ConfigError(
            f"There is no file {shown(path)}.",
            hint='swift config import FILE, or a command in quotes: "trl sft --model_name_or_path ..."',
        )
    return read_script(source, "the command", Path())


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether a string that may be a command is an existing file, or folder."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        return False


def imported(recipe: ThirdPartyRun, out: str = "run.yaml") -> ImportedRun:
    """Translate one run; settings that swift refuses are left out, with a remark."""
    run = RecipeImport(recipe)
    translate = TRANSLATIONS[recipe.program]
    translate(run)
    note_media(run)
    _refused(run)
    several = f" --nproc {run.processes}" if run.processes > 1 else ""
    flags = "".join(f" {flag}" for flag in dict.fromkeys(run.flags))
    command = f"swift {run.command} {shlex.quote(out)}{several}{flags}"
    return ImportedRun(
        recipe.program, text_of(run, command), command, run.lost, len(run.settings), len(run.remarks) - len(run.lost)
    )


def _refused(run: RecipeImport) -> None:
    """Remove keys that the parser refuses, one at a time, with a remark for each."""
    for _ in range(_ATTEMPTS):
        try:
            config_from_mapping({key: each.value for key, each in run.settings.items()}, run.command, source="this")
            return
        except SwiftError as error:
            if _other_optimizer(run, error):
                continue
            key = _blamed(run, error)
            if key is None:
                run.lose("", "", f"swift {run.command} will fail: {error.message}")
                return
            refused = run.settings.pop(key)
            add_remark = run.unneeded if key in _FASTER else run.lose
            add_remark(refused.origin, refused.value, _reason(error, key))


def _other_optimizer(run: RecipeImport, error: SwiftError) -> bool:
    """Replace 8-bit Adam by Adam where the backend does not support it; True if that was the error."""
    if run.get("optim.name") != "adamw_8bit" or "'adamw_8bit'" not in error.message:
        return False
    origin = run.settings["optim.name"].origin
    run.changed(origin, "adamw_8bit", f"{error.message} It is replaced by adamw")
    run.set("optim.name", "adamw", origin)
    return True


def _blamed(run: RecipeImport, error: SwiftError) -> str | None:
    """Return the key that an error is about: the first that it names."""
    named = [(error.message.find(f"({key})"), key) for key in run.settings if f"({key})" in error.message]
    if named:
        return max(named)[1] if "contradict" in error.message else min(named)[1]
    mentioned = [key for key in run.settings if re.search(rf"\b{re.escape(key)}\b", error.message)]
    return mentioned[0] if mentioned else None


def _reason(error: SwiftError, key: str) -> str:
    return error.message.replace(f"this ({key})", key).replace("\n", " ")


def summary(folder: Path) -> list[tuple[str, str, str]]:
    """Return (file, program, result) for each recipe of a folder, in order."""
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in READABLE or not path.is_file():
            continue
        name = str(path.relative_to(folder))
        try:
            runs = read_file(path)
        except SwiftError as error:
            rows.append((name, "", error.message))
            continue
        rows.extend((name, recipe.program, _outcome(recipe)) for recipe in runs)
    return rows


def _outcome(recipe: ThirdPartyRun) -> str:
    try:
        result = imported(recipe)
    except NotTrainable as error:
        return f"not supported: {error.message.partition(' recipe of ')[2] or error.message}"
    except SwiftError as error:
        return error.message
    return f"{result.keys} keys set, {result.noted} noted, {len(result.lost)} not imported"
