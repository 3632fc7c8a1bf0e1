"""The entry point: finds the verb, runs it, and turns errors into one message and an exit code.

Nothing but the standard library is imported before a verb is known: `swift --help` answers at once.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from swift.cli.verbs import COMMANDS, KIN, NOT_THERE, TRAINING, VERBS, plugin_verbs, verb_name
from swift.errors import SHOW_TRACEBACK, SwiftError, UsageError, did_you_mean
from swift.version import __version__


def main() -> None:
    """Run the `swift` command."""
    verb = next(iter(sys.argv[1:]), "")
    if verb in (*TRAINING, *KIN) or (verb in VERBS and {"-h", "--help"} & set(sys.argv)):
        gc.disable()  # collecting garbage takes a tenth of the time of imports; `launch` resumes it after them
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; every error that a user can fix is printed without a traceback."""
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
        # The reader (a pager, `head`) went away: that is its right. Nothing may be flushed into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    if len(argv) > 1 and argv[0] == "help":
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview(styled=sys.stdout.isatty()))
        return 0
    if argv[0] in ("--version", "-V", "-v", "version"):
        sys.stdout.write(f"swift {__version__}\n")
        return 0
    name = verb_name(argv[0])
    if name in KIN:
        name, *flags = KIN[name]
        argv = [name, *flags, *argv[1:]]
    verb = VERBS.get(name)
    if verb is None:
        return _run_plugin_verb(name, argv[1:])
    module, _, function = verb.target.partition(":")
    code: int = getattr(importlib.import_module(module), function)(name, argv[1:])
    return code


def _run_plugin_verb(name: str, args: list[str]) -> int:
    from swift.plugins.discover import list_plugins

    added = next((each.name for each in list_plugins(COMMANDS) if verb_name(each.name) == name), None)
    if added is None:
        raise _unknown_verb(name)
    from swift.cli.plugin_verb import run as run_plugin_verb

    return run_plugin_verb(added, args)


def overview(*, styled: bool) -> str:
    """Return what `swift --help` prints."""
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if styled else ("", "", "")
    lines = [
        f"{bold}swift{plain} {__version__}: train large language models on any parallel backend",
        "",
        f"{bold}Usage{plain}  swift VERB [flags]",
    ]
    group = ""
    for verb in VERBS.values():
        if verb.group != group:
            group = verb.group
            lines += ["", f"{bold}{group}{plain}"]
        lines.append(f"  {verb.name:<11} {dim}{verb.summary}{plain}")
    added = plugin_verbs()
    if added:
        lines += ["", f"{bold}From plugins{plain}"]
        lines += [f"  {each.name:<11} {dim}from {each.distribution} {each.version}{plain}" for each in added]
    lines += [
        "",
        f"{bold}For example{plain}",
        "  swift demo",
        "  swift sft --model qwen3-0.6b --dataset data.jsonl",
        "  swift sft --help",
    ]
    return "\n".join(lines) + "\n"


def _unknown_verb(name: str) -> UsageError:
    from swift.plugins.known import install_command

    command = install_command(COMMANDS, name)
    if command:
        return UsageError(f"`swift {name}` is not installed.", hint=f"Run: {command}")
    if name in NOT_THERE:
        reason, instead = NOT_THERE[name]
        return UsageError(reason, hint=instead)
    known = [*VERBS, *KIN, *(each.name for each in plugin_verbs())]
    return UsageError(f"There is no `swift {name}`.{did_you_mean(name, known)}", hint="All verbs: swift --help")


def _complain(message: str) -> None:
    colour, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    # What plugins and files put into a message is not for the terminal to act on.
    shown = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in message)
    sys.stderr.write(f"{colour}Error:{plain} {shown}\n")
