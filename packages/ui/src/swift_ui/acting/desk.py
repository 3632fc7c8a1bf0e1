"""The desk where forms are answered: the clerk's process, started when the first form is opened."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from swift.contracts import ExpectedMemory
from swift.errors import SwiftError, UsageError
from swift.forms import CheckedCommand, FormField, FormSection

PATIENCE = 60.0
"""Seconds for an answer: a plugin may import much at its first."""


class FrontDesk:
    """Asks the clerk, one question after the other; a clerk that died or hangs is replaced."""

    def __init__(self) -> None:
        self._clerk: subprocess.Popen[str] | None = None
        self._turn = Lock()
        self._forms: dict[str, list[FormSection]] = {}

    def form(self, command_name: str, selected: Mapping[str, str]) -> list[FormSection]:
        """Return the options of a command with the plugins that are selected."""
        key = json.dumps([command_name, sorted(selected.items())])
        if key not in self._forms:
            came = self._ask({"ask": "form", "verb": command_name, "selected": dict(selected)})
            self._forms[key] = [_section(each) for each in came["sections"]]
        return self._forms[key]

    def check(self, words: Sequence[str], *, expect: bool = False) -> CheckedCommand:
        """Return what a command would do; raise what it would be refused with."""
        return _checked(self._ask({"ask": "check", "words": list(words), "expect": expect})["checked"])

    def close(self) -> None:
        """End the clerk."""
        if self._clerk is not None:
            self._clerk.kill()
            self._clerk.communicate()
        self._clerk = None

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._turn:
            try:
                came = self._exchange(json.dumps(question))
            except (OSError, ValueError):
                self.close()
                raise UsageError(
                    "The form could not be checked: whoever checks it has died, or hangs.",
                    hint="Type the command in a terminal, which shows more.",
                ) from None
        if "refused" in came:
            raise SwiftError(came["refused"]["message"], hint=came["refused"]["hint"])
        return came

    def _exchange(self, line: str) -> dict[str, Any]:
        if self._clerk is None or self._clerk.poll() is not None:
            command = [sys.executable, "-m", "swift_ui.acting.clerk"]
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._clerk = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, encoding="utf-8")
        clerk = self._clerk
        assert clerk.stdin is not None
        assert clerk.stdout is not None
        last_resort = Timer(PATIENCE, clerk.kill)
        last_resort.start()
        try:
            clerk.stdin.write(f"{line}\n")
            clerk.stdin.flush()
            came: dict[str, Any] = json.loads(clerk.stdout.readline())
        finally:
            last_resort.cancel()
        return came


def _section(told: Mapping[str, Any]) -> FormSection:
    fields = tuple(FormField(**{**each, "choices": tuple(each["choices"])}) for each in told["fields"])
    return FormSection(told["name"], told["title"], fields, told["problem"])


def _checked(told: Mapping[str, Any]) -> CheckedCommand:
    expected, folder = told["expected"], told["run_folder"]
    return CheckedCommand(
        told["verb"],
        tuple(told["notes"]),
        told["processes"],
        tuple(map(Path, told["writes"])),
        None if folder is None else Path(folder),
        tuple(told["trusts"]),
        tuple(told["hosts"]),
        tuple(told["sends"]),
        None if expected is None else ExpectedMemory(**expected),
    )
