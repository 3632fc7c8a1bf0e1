"""Commands that the dashboard may start; options reserved for the terminal are refused."""

from __future__ import annotations

from pathlib import Path

from swift.errors import UsageError
from swift.forms import CheckedCommand
from swift.untrusted import shown
from swift_ui.options import LOCAL_HOSTS, UiSettings

TRAINING = ("pt", "sft", "rlhf", "train")
BUILTIN_COMMANDS = (*TRAINING, "export", "eval", "infer", "serve")
"""The other commands are interactive or change more than runs, so they need a terminal."""


def check_command(command: object) -> str:
    """Return the command; raise `UsageError` for one that the dashboard does not start."""
    if command not in BUILTIN_COMMANDS:
        raise UsageError(
            f"The dashboard does not start `swift {command}`.", hint=f"Available: {', '.join(BUILTIN_COMMANDS)}"
        )
    return str(command)


def check_allowed(checked: CheckedCommand, settings: UiSettings) -> None:
    """Raise `UsageError` for third-party code, other hosts, URLs and folders that the terminal has not allowed."""
    if checked.trusts and not settings.trust_remote_code:
        raise UsageError(
            f"This would run third-party code or pass unknown flags ({', '.join(checked.trusts)}).",
            hint="Run the command in a terminal. To allow this here, restart: swift ui --trust_remote_code",
        )
    far = [host for host in checked.hosts if host not in LOCAL_HOSTS]
    if far:
        raise UsageError(
            f"This would listen on {far[0]}, which other machines can reach.",
            hint="Run the command in a terminal, or omit the host.",
        )
    if checked.sends:
        raise UsageError(
            f"This would copy files to {shown(checked.sends[0])}.",
            hint="Run the command in a terminal, or omit the URL.",
        )
    roots = [root.resolve() for root in settings.roots]
    for path in checked.writes:
        if not any(within(path, root) for root in roots):
            raise UsageError(
                f"{path} is outside of {' and '.join(map(str, roots))}. The dashboard writes nowhere else.",
                hint=f"Choose a folder in {roots[0]}, or restart with another one: swift ui FOLDER",
            )


def within(path: Path, root: Path) -> bool:
    """Return whether a path is in a folder, after following links."""
    found = path.resolve()
    return found == root or root in found.parents
