"""Vocabularies as core calls them: errors name the vocabulary, and results are checked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from swift.contracts.vocabulary import FlagTopic, ThirdPartyRun, TranslatedRun, Vocabulary
from swift.errors import ConfigError, NotTrainable, PluginError, SwiftError
from swift.plugins.discover import ALLOW_LIST, allowed_plugins, list_plugins
from swift.plugins.entry import PluginEntry
from swift.plugins.known import install_command
from swift.plugins.load import load
from swift.plugins.return_values import Checked
from swift.untrusted import is_file, shown

if TYPE_CHECKING:
    from swift.config.meanings import Meaning
    from swift.config.settings import Settings

GROUP = "swift.vocabularies"
PROGRAMS = "programs"
"""The vocabulary of this project, to name what installs it."""
PROGRAMS_TITLE = "ms-swift, the Trainer, LLaMA-Factory, axolotl, TRL, torchtune and NeMo"


@dataclass(frozen=True)
class ReadRun:
    """A run of a third-party program, and the vocabulary that read it."""

    run: ThirdPartyRun
    _vocabulary: Vocabulary

    def translated(self) -> TranslatedRun:
        """Return the run in swift's keys."""
        return self._vocabulary.translate(self.run)


def check_is_own(args: Iterable[str]) -> None:
    """Raise `ConfigError` for a configuration file of a third-party program in the arguments of a command."""
    from swift.config.files import read_yaml

    for arg in args:
        path = Path(arg)
        if path.suffix not in (".yaml", ".yml") or not is_file(path):
            continue
        values = read_yaml(path)[0]
        for vocabulary in _vocabularies():
            if (program := vocabulary.program_of(values)) is not None:
                raise ConfigError(
                    f"{shown(path)} is a configuration of {program}, not of swift.",
                    hint=f"Type: swift config import {shlex.quote(arg)} --out run.yaml",
                )


def read_runs(source: str) -> list[ReadRun]:
    """Return the training runs in a file or command line, from the first vocabulary that knows it."""
    refusals: list[SwiftError] = []
    for vocabulary in _vocabularies():
        try:
            runs = vocabulary.read(source)
        except PluginError:
            raise
        except SwiftError as error:  # another vocabulary may know it
            refusals.append(error)
            continue
        if runs:
            return [ReadRun(run, vocabulary) for run in runs]
    if refusals:
        raise refusals[0]
    raise NotTrainable(
        f"No installed plugin knows {shown(source)} as a configuration or command of a third-party program.",
        hint=programs_missing() or "See: swift plugins",
    )


def starts_command(word: str) -> bool:
    """Return whether a word begins a command line of a third-party program, or sets a variable for it."""
    if re.fullmatch(r"[A-Z_]+=\S*", word):
        return True
    return any(word in vocabulary.starts for vocabulary in _vocabularies())


def flag_topics() -> tuple[FlagTopic, ...]:
    """Return the flags that vocabularies add, by the names of the vocabularies."""
    return _flag_topics(tuple(allowed_plugins(GROUP)))


@lru_cache(maxsize=16)
def _flag_topics(entries: tuple[PluginEntry, ...]) -> tuple[FlagTopic, ...]:
    return tuple(topic for entry in entries for topic in _checked(entry).flags())


def meaning_of_value(flag: str, value: str) -> Settings | Meaning | None:
    """Return what a vocabulary knows of a value of one of core's flags."""
    return next((topic.values[flag][value] for topic in flag_topics() if value in topic.values.get(flag, ())), None)


def advice(name: str) -> str | None:
    """Return what to write instead of importing a name of a third-party program; None for an unknown one.

    A vocabulary that fails here is passed over: `swift plugins --check` reports it.
    """
    for entry in allowed_plugins(GROUP):
        with suppress(SwiftError):
            if (instead := _checked(entry).advice(name)) is not None:
                return instead
    return None


def programs_missing() -> str:
    """Return what brings the vocabulary of this project; empty where it is used."""
    installed = [entry for entry in list_plugins(GROUP) if entry.name == PROGRAMS]
    if any(entry.allowed for entry in installed):
        return ""
    if installed:
        return f"{installed[0]} is installed, but {ALLOW_LIST} leaves it out."
    return f"For {PROGRAMS_TITLE}, type: {install_command(GROUP, PROGRAMS)}"


def _vocabularies() -> Iterator[Vocabulary]:
    return map(_checked, allowed_plugins(GROUP))


def _checked(entry: PluginEntry) -> Vocabulary:
    return cast(Vocabulary, Checked(entry, load(entry).object, Vocabulary))
