"""Commands that the page may start. What only the terminal may decide is refused here, whoever asks."""

from __future__ import annotations

from pathlib import Path

from swift.errors import UsageError
from swift.forms import CheckedCommand
from swift.untrusted import shown
from swift_ui.settings import UiSettings

TRAINING = ("pt", "sft", "rlhf", "train")
BUILTIN_COMMANDS = (*TRAINING, "export", "eval", "infer", "serve")
"""The others are for a terminal: they ask questions, or change other things than runs."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_command(command: object) -> str:
    """Return the command; raise `UsageError` for one that the page does not start."""
    if command not in BUILTIN_COMMANDS:
        raise UsageError(
            f"The page does not start `swift {command}`.", hint=f"It starts: {', '.join(BUILTIN_COMMANDS)}"
        )
    return str(command)


def check_allowed(checked: CheckedCommand, settings: UiSettings) -> None:
    """Raise `UsageError` for what the terminal has not allowed: code from elsewhere, other hosts, other folders."""
    if checked.trusts and not settings.trust_remote_code:
        raise UsageError(
            f"This would run code, or hand on flags, that swift does not know ({', '.join(checked.trusts)}). A page "
            "cannot decide that.",
            hint="Type the command in a terminal; or, if you trust all of it: swift ui --trust_remote_code",
        )
    far = [host for host in checked.hosts if host not in _LOOPBACK]
    if far:
        raise UsageError(
            f"This would listen on {far[0]}, for other machines. A page cannot decide that.",
            hint="Type the command in a terminal, or leave the host out.",
        )
    if checked.sends:
        raise UsageError(
            f"This would copy files to {shown(checked.sends[0])}. A page cannot decide that.",
            hint="Type the command in a terminal, or leave the URL out.",
        )
    roots = [root.resolve() for root in settings.roots]
    for path in checked.writes:
        if not any(within(path, root) for root in roots):
            raise UsageError(
                f"{path} is not below {' or '.join(map(str, roots))}, and the page writes nowhere else.",
                hint=f"Choose a folder in {roots[0]}, or start the page with another one: swift ui FOLDER",
            )


def within(path: Path, root: Path) -> bool:
    """Return whether a path lies below a folder, links followed."""
    found = path.resolve()
    return found == root or root in found.parents
