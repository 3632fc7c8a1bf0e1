"""`swift config import`: from a file, a command or a folder of recipes to swift's YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swift.config.fields import core_fields
from swift.contracts import Remark, TranslatedRun, TranslatedValue
from swift.errors import ConfigError, NotTrainable, SwiftError
from swift.parsing import config_from_mapping
from swift.plugins import vocabularies
from swift.plugins.vocabularies import ReadRun
from swift.untrusted import shown

READABLE = (".yaml", ".yml", ".sh", ".bash", ".json")
"""Files that may hold a recipe."""
_TITLES = {
    "lost": "NOT imported; this changes the training:",
    "changed": "Different in swift:",
    "unneeded": "Not needed; the training is the same:",
}
_WIDE = 1 << 20
_LISTED = 100
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


def read_runs(source: str) -> list[ReadRun]:
    """Return the runs of a file, or of a command line."""
    path = Path(source)
    if not is_there(path) and " " not in source and (path.suffix in READABLE or "/" in source):
        raise ConfigError(
            f"There is no file {shown(path)}.",
            hint='swift config import FILE, or a command in quotes: "trl sft --model_name_or_path ..."',
        )
    return vocabularies.read_runs(source)


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether a string that may be a command is an existing file, or folder."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        return False


def imported(read: ReadRun, out: str = "run.yaml") -> ImportedRun:
    """Translate one run; settings that swift refuses are left out, with a remark."""
    run = read.translated()
    _refused(run)
    several = f" --nproc {run.processes}" if run.processes > 1 else ""
    flags = "".join(f" {flag}" for flag in dict.fromkeys(run.flags))
    command = f"swift {run.command} {shlex.quote(out)}{several}{flags}"
    return ImportedRun(
        run.recipe.program,
        text_of(run, command),
        command,
        run.lost,
        len(run.settings),
        len(run.remarks) - len(run.lost),
    )


def _refused(run: TranslatedRun) -> None:
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
            reason = error.message.replace(f"this ({key})", key).replace("\n", " ")
            add_remark(refused.origin, refused.value, reason)


def _other_optimizer(run: TranslatedRun, error: SwiftError) -> bool:
    """Replace 8-bit Adam by Adam where the backend does not support it; True if that was the error."""
    chosen = run.settings.get("optim.name", TranslatedValue(None, ""))
    if chosen.value != "adamw_8bit" or "'adamw_8bit'" not in error.message:
        return False
    origin = chosen.origin
    run.changed(origin, "adamw_8bit", f"{error.message} It is replaced by adamw")
    run.set("optim.name", "adamw", origin)
    return True


def _blamed(run: TranslatedRun, error: SwiftError) -> str | None:
    """Return the key that an error is about: the first that it names."""
    named = [(error.message.find(f"({key})"), key) for key in run.settings if f"({key})" in error.message]
    if named:
        return max(named)[1] if "contradict" in error.message else min(named)[1]
    mentioned = [key for key in run.settings if re.search(rf"\b{re.escape(key)}\b", error.message)]
    return mentioned[0] if mentioned else None


def summary(folder: Path) -> list[tuple[str, str, str]]:
    """Return (file, program, result) for each recipe of a folder, in order."""
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in READABLE or not path.is_file():
            continue
        name = str(path.relative_to(folder))
        try:
            runs = vocabularies.read_runs(str(path))
        except SwiftError as error:
            rows.append((name, "", error.message))
            continue
        rows.extend((name, each.run.program, _outcome(each)) for each in runs)
    return rows


def _outcome(read: ReadRun) -> str:
    try:
        result = imported(read)
    except NotTrainable as error:
        return f"not supported: {error.message.partition(' recipe of ')[2] or error.message}"
    except SwiftError as error:
        return error.message
    return f"{result.keys} keys set, {result.noted} noted, {len(result.lost)} not imported"


def text_of(run: TranslatedRun, command: str) -> str:
    """Return the YAML file: the command to type, the remarks, then the keys."""
    lines = [
        f"# {run.recipe.program}: {shown(run.recipe.source)}, by swift config import",
        f"# {command}",
        *_remarks(run),
        "",
        *_keys(run),
    ]
    return "\n".join(lines) + "\n"


def _remarks(run: TranslatedRun) -> Iterable[str]:
    for kind, title in _TITLES.items():
        remarks = [remark for remark in run.remarks if remark.kind == kind]
        if remarks:
            yield "#"
            yield f"# {title}"
            yield from (f"#   {written_remark(remark)}" for remark in remarks)
    if run.empty:
        yield "#"
        yield f"# Empty or off: {shown(', '.join(run.empty), _LISTED * 20)}"
    if run.read_with_others:
        yield "#"
        names = shown(", ".join(run.read_with_others), _LISTED * 20)
        yield f"# Read together with other keys, or without effect: {names}"


def written_remark(remark: Remark) -> str:
    """Return a remark as one line: `key: value (why)`."""
    inline = str(remark.value).lower() if isinstance(remark.value, bool) else str(remark.value)
    value = "" if remark.value in ("", None) else f" {inline}"
    name = shown(remark.key, _LISTED)
    return f"{name}:{shown(value, _LISTED)} ({shown(remark.text, 4 * _LISTED)})" if name else f"{value} ({remark.text})"


def _keys(run: TranslatedRun) -> Iterable[str]:
    """Yield the keys by section, in swift's order."""
    order = {key: position for position, key in enumerate(core_fields())}
    loose = sorted(key for key in run.settings if "." not in key)
    for key in loose:
        yield f"{key}: {_value(run.settings[key].value)}  # {shown(run.settings[key].origin, _LISTED)}"
    for section in dict.fromkeys(field.section for field in core_fields().values()):
        keys = [key for key in run.settings if key.partition(".")[0] == section and "." in key]
        if not keys:
            continue
        yield f"{section}:"
        for key in sorted(keys, key=lambda key: (order.get(key, len(order)), key)):
            setting = run.settings[key]
            name = _value(key.partition(".")[2])
            yield f"  {name}: {_value(setting.value)}  # {shown(setting.origin, _LISTED)}"


def _value(value: Any) -> str:
    """Return a value as YAML in one line."""
    style = '"' if isinstance(value, str) and "\n" in value else None
    text: str = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=_WIDE, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
