"""A server's log: its progress, and the reason of a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swift.errors import ServeError, SwiftError, UsageError, did_you_mean

SHOWN = 15
"""Lines of the log shown below an error."""

_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)")
_INVALID = re.compile(r"^\s*(?:Value|Assertion) error, (.+?)(?: \[type=.*)?$")
"""The line with the reason in a validation error of pydantic."""


@dataclass(frozen=True)
class ServerLog:
    """Patterns of the log of one kind of server."""

    title: str
    stages: Sequence[tuple[str, str]]
    """String in the log → the stage that it marks; the latest first."""
    program: str
    """Program name in errors of its parser: 'api_server.py'."""
    prefixes: re.Pattern[str]
    """Prefix of a line: time, level, process."""
    wrappers: tuple[str, ...] = ()
    """Prefixes of errors that only wrap another one."""

    def stage_of(self, text: str) -> str:
        """Return the current stage of loading."""
        return next((stage for mark, stage in self.stages if mark in text), f"starting {self.title}")

    def failure(self, log: Path, code: int, version: str, model: Path, *, ready: bool = False) -> SwiftError:
        """Return the error for a server that ended by itself; `ready` if it had served before."""
        content = log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [self.prefixes.sub("", line) for line in content]
        refused = self._refused_flag(lines, version)
        if refused is not None:
            return refused
        tail = "\n".join(f"  {line}" for line in lines[-SHOWN:] if line.strip())
        reason = self._reason(lines)
        if reason is None:
            killed = "; it was killed, probably because the machine ran out of memory" if code in (137, -9) else ""
            reason = f"it ended with exit code {code}{killed}"
        what = "stopped while serving" if ready else "could not serve"
        return ServeError(f"{version} {what} {model}: {reason}", hint=f"The end of {log}:\n{tail}")

    def _refused_flag(self, lines: list[str], version: str) -> UsageError | None:
        for line in lines:
            _, found, complaint = line.partition(f"{self.program}: error: ")
            if not found:
                continue
            unknown = complaint.partition("unrecognized arguments: ")[2].split()
            if not unknown:
                return UsageError(f"{version} rejected a flag: {complaint}")
            flags = set(re.findall(r"(--[a-z][\w-]*)", "\n".join(lines[: lines.index(line)])))
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
            return UsageError(
                f"Unknown flag {flag}: neither swift serve nor {version} has it.{did_you_mean(flag, flags)}",
                hint="See: swift serve --help",
            )
        return None

    def _reason(self, lines: list[str]) -> str | None:
        """Return the first error that is not one process's complaint about another's."""
        invalid = next(filter(None, map(_INVALID.match, lines)), None)
        if invalid is not None:
            return invalid[1]
        found = [match for line in lines if (match := _ERROR.match(line)) and not match[2].startswith(self.wrappers)]
        return f"{found[0][2]} ({found[0][1]})" if found else None
