"""Entry point: find the command, run it, and turn errors into one message and an exit code.

Little more than the standard library is imported before the command is known, so that `swift --help` is fast.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from swift.cli.commands import (
    COMMANDS,
    REPLACED_COMMANDS,
    TRAINING,
    collision,
    command_name,
    commands,
    training_command,
)
from swift.errors import SHOW_TRACEBACK, SwiftError, UsageError, did_you_mean
from swift.installation import conflicts, pip_install
from swift.plugins.discover import conflicting_distributions, list_plugins, objective_names
from swift.plugins.entry import PluginEntry, printable
from swift.plugins.known import KNOWN, PACKAGES
from swift.version import __version__


def main() -> None:
    """Run the `swift` command."""
    command = next(iter(sys.argv[1:]), "")
    if command in (*TRAINING, *KNOWN["swift.objectives"], "--complete") or {"-h", "--help"} & set(sys.argv):
        gc.disable()  # garbage collection takes a tenth of the time of imports; `launch` resumes it after them
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code; errors that a user can fix are printed without a traceback."""
    try:
        return _dispatch(list(argv))
    except SwiftError as error:
        if os.environ.get(SHOW_TRACEBACK):
            raise
        if error.traceback_of is not None:
            from swift.plugins.blame import keep_traceback

            keep_traceback(error)
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("Interrupted.")
        return 130
    except BrokenPipeError:
        # The reader (a pager, `head`) closed the pipe; flushing into it at exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if argv and argv[0] in ("--version", "-V", "-v", "version"):
        sys.stdout.write(f"swift {__version__}\n")
        return 0
    if argv and argv[0] in ("--complete", "--show-completion", "--install-completion"):
        from swift.cli.completion import run as run_completion

        return run_completion(argv)
    if argv[:1] != ["doctor"]:  # which reports it among its findings
        _check_conflicts()
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview(styled=sys.stdout.isatty()))
        return 0
    name, args = command_name(argv[0]), argv[1:]
    if not _entries(name):
        name, args = training_command(argv, name)
    entries = _entries(name)
    if not entries:
        raise _unknown_command(name)
    from swift.cli.plugin_command import run as run_command

    return run_command(entries, args)


def _check_conflicts() -> None:
    """Report another distribution that installs files of swift; raise if it has damaged this one."""
    for other in conflicts(conflicting_distributions()):
        if other.damaged:
            raise SwiftError(other.problem, hint=other.repair)
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"Note: {other.problem} Install swift in an environment of its own.\n")


def _entries(name: str) -> list[PluginEntry]:
    return [each for each in list_plugins(COMMANDS) if command_name(each.name) == name and collision(each) is None]


def overview(*, styled: bool) -> str:
    """Return the output of `swift --help`."""
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if styled else ("", "", "")
    lines = [
        f"{bold}swift{plain} {__version__}: train large language models on any parallel backend",
        "",
        f"{bold}Usage{plain}  swift COMMAND [flags]",
    ]
    group = ""
    found = commands()
    width = max((len(name) for name in found), default=0)
    for command in found.values():
        if command.group != group:
            group = command.group
            lines += ["", f"{bold}{group}{plain}"]
        source = f"{command.entry.distribution} {command.entry.version}"
        own = command.entry.distribution in PACKAGES and command.summary
        summary = command.summary if own else " ".join(filter(None, (command.summary, f"({source})")))
        lines.append(f"  {command.name:<{width}} {dim}{printable(summary)}{plain}")
    lines += [
        "",
        f"{bold}For example{plain}",
        *(["  swift demo"] if "demo" in found else []),
        "  swift sft --model qwen3-0.6b --dataset data.jsonl",
        "  swift sft --help",
        "  swift --install-completion",
    ]
    if "infer" not in found:
        lines += ["", f"More commands, to infer, evaluate and serve: {pip_install('swift-core[standard]')}"]
    return "\n".join(lines) + "\n"


def _unknown_command(name: str) -> UsageError:
    from swift.plugins.known import install_command

    command = install_command(COMMANDS, name)
    if command:
        return UsageError(f"`swift {name}` is not installed.", hint=f"Run: {command}")
    if name in REPLACED_COMMANDS:
        reason, instead = REPLACED_COMMANDS[name]
        return UsageError(reason, hint=instead)
    known = ["--help", "--version"] if name.startswith("-") else [*commands(), *map(command_name, objective_names())]
    return UsageError(f"There is no `swift {name}`.{did_you_mean(name, known)}", hint="All commands: swift --help")


def _complain(message: str) -> None:
    colour, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    # Messages may contain escape sequences from plugins and files.
    shown = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in message)
    sys.stderr.write(f"{colour}Error:{plain} {shown}\n")
