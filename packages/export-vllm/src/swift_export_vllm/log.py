"""vLLM's log: how far it has come, and what went wrong, in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

from swift.errors import ServeError, SwiftError, UsageError, did_you_mean

STAGES = (
    ("Starting vLLM server", "opening the port"),
    ("KV cache size", "making the cache"),
    ("Loading weights took", "making the cache"),
    ("Starting to load model", "loading the weights"),
    ("Initializing a V1 LLM engine", "starting the workers"),
    ("Resolved architecture", "starting the engine"),
    ("non-default args", "reading the configuration"),
)
"""What a line of the log says → what is being done then; the latest first."""
FIRST_STAGE = "starting vLLM"
SHOWN = 15
"""Lines of the log that stand below an error."""

_PREFIX = re.compile(r"^\(\w[\w-]* pid=\d+\) ")
_STAMP = re.compile(r"^(?:ERROR|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ")
_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)")
_INVALID = re.compile(r"^\s*(?:Value|Assertion) error, (.+?)(?: \[type=.*)?$")
"""The line of pydantic's that says what is wrong, below one that only says that something is."""
_WRAPPERS = ("Engine core initialization failed", "WorkerProc initialization failed", "Failed core proc")


def stage_of(text: str) -> str:
    """Return the current stage of loading."""
    return next((stage for mark, stage in STAGES if mark in text), FIRST_STAGE)


def failure(log: Path, code: int, version: str, model: Path, *, ready: bool = False) -> SwiftError:
    """Why the server ended by itself, as an error for the user; `ready` where it had served before."""
    lines = [_clean(line) for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    refused = _refused_flag(lines, version)
    if refused is not None:
        return refused
    tail = "\n".join(f"  {line}" for line in lines[-SHOWN:] if line.strip())
    reason = _reason(lines)
    if reason is None:
        killed = "; it was killed, as a machine does that runs out of memory" if code in (137, -9) else ""
        reason = f"it ended with exit code {code}{killed}"
    what = "ended while it served" if ready else "could not serve"
    return ServeError(f"{version} {what} {model}: {reason}", hint=f"The end of {log}:\n{tail}")


def _refused_flag(lines: list[str], version: str) -> UsageError | None:
    for line in lines:
        _, found, complaint = line.partition("api_server.py: error: ")
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


def _reason(lines: list[str]) -> str | None:
    """Return the first error that is not one process's complaint about another's."""
    invalid = next(filter(None, map(_INVALID.match, lines)), None)
    if invalid is not None:
        return invalid[1]
    found = [match for line in lines if (match := _ERROR.match(line)) and not match[2].startswith(_WRAPPERS)]
    return f"{found[0][2]} ({found[0][1]})" if found else None


def _clean(line: str) -> str:
    return _STAMP.sub("", _PREFIX.sub("", line))
