"""Client of the form worker, which is started with the first form."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from threading import Lock, Timer
from typing import Any

from pydantic import TypeAdapter

from swift.errors import SwiftError, UsageError
from swift.forms import CheckedCommand, FormSection

PATIENCE = 60.0
"""Seconds to wait for a response: the first one of a plugin may import much."""
_SECTIONS, _CHECKED = TypeAdapter(list[FormSection]), TypeAdapter(CheckedCommand)


class FormClient:
    """Sends one request at a time to the worker; replaces a worker that died or hangs."""

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None
        self._lock = Lock()
        self._forms: dict[str, list[FormSection]] = {}

    def form(self, command_name: str, selected: Mapping[str, str]) -> list[FormSection]:
        """Return the options of a command with the selected plugins."""
        key = json.dumps([command_name, sorted(selected.items())])
        if key not in self._forms:
            response = self._request({"kind": "form", "command": command_name, "selected": dict(selected)})
            self._forms[key] = _SECTIONS.validate_python(response["sections"])
        return self._forms[key]

    def check(self, argv: Sequence[str], *, expect: bool = False) -> CheckedCommand:
        """Return the effects of a command, or raise its error."""
        response = self._request({"kind": "check", "argv": list(argv), "expect": expect})
        return _CHECKED.validate_python(response["checked"])

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
        self._worker = None

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                response = self._exchange(json.dumps(request))
            except (OSError, ValueError):
                self.close()
                raise UsageError(
                    "The process that checks forms died or did not respond.",
                    hint="Run the command in a terminal, which shows the error.",
                ) from None
        if "refused" in response:
            raise SwiftError(response["refused"]["message"], hint=response["refused"]["hint"])
        return response

    def _exchange(self, line: str) -> dict[str, Any]:
        if self._worker is None or self._worker.poll() is not None:
            command = [sys.executable, "-m", "swift_ui.acting.form_worker"]
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, encoding="utf-8")
        worker = self._worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        timeout = Timer(PATIENCE, worker.kill)
        timeout.start()
        try:
            worker.stdin.write(f"{line}\n")
            worker.stdin.flush()
            response: dict[str, Any] = json.loads(worker.stdout.readline())
        finally:
            timeout.cancel()
        return response
