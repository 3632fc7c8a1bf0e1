"""A server's log: how far it has come, and what went wrong, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swift.errors import ServeError, SwiftError, UsageError, did_you_mean

SHOWN = 15
"""Lines of the log that stand below an error."""

_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)")
_INVALID = re.compile(r"^\s*(?:Value|Assertion) error, (.+?)(?: \[type=.*)?$")
"""The line of pydantic's that says what is wrong, below one that only says that something is."""


@dataclass(frozen=True)
class ServerLog:
    """How the log of one kind of server is read."""

    title: str
    stages: Sequence[tuple[str, str]]
    """What a line of the log says → what is being done then; the latest first."""
    program: str
    """The name by which its parser complains: 'api_server.py'."""
    prefixes: re.Pattern[str]
    """Everything at the start of a line that is no part of what it says."""
    wrappers: tuple[str, ...] = ()
    """Beginnings of errors that only say that there was another one."""

    def stage_of(self, text: str) -> str:
        """Return the current stage of loading."""
        return next((stage for mark, stage in self.stages if mark in text), f"starting {self.title}")

    def failure(self, log: Path, code: int, version: str, model: Path, *, ready: bool = False) -> SwiftError:
        """Why the server ended by itself, as an error for the user; `ready` where it had served before."""
        told = log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [self.prefixes.sub("", line) for line in told]
        refused = self._refused_flag(lines, version)
        if refused is not None:
            return refused
        tail = "\n".join(f"  {line}" for line in lines[-SHOWN:] if line.strip())
        reason = self._reason(lines)
        if reason is None:
            killed = "; it was killed, as a machine does that runs out of memory" if code in (137, -9) else ""
            reason = f"it ended with exit code {code}{killed}"
        what = "ended while it served" if ready else "could not serve"
        return ServeError(f"{version} {what} {model}: {reason}", hint=f"The end of {log}:\n{tail}")

    def _refused_flag(self, lines: list[str], version: str) -> UsageError | None:
        for line in lines:
            _, found, complaint = line.partition(f"{self.program}: error: ")
            if not found:
                continue
            unknown = complaint.partition("unrecognized arguments: ")[2].split()
            if not unknown:
                return UsageError(f"{version} refuses a flag that was passed on to it: {complaint}")
            flags = set(re.findall(r"(--[a-z][\w-]*)", "\n".join(lines[: lines.index(line)])))
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
            return UsageError(
                f"Neither swift serve nor {version} knows {flag}.{did_you_mean(flag, flags)}",
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
