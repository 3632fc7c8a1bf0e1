"""Run the commands of a page, one process for each.

`swift` and `python` commands run in forks of this process, which has imported torch and transformers once: new
interpreters would take most of a test's time. All other commands run in a shell.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from pages import Command

_OPENED = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
"""How standard input, output and error are opened."""


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    printed: str
    complained: str


class Reader:
    """Runs commands in a folder, with the plugins in `site` installed."""

    def __init__(self, folder: Path, site: Path | None = None) -> None:
        # Imported once for all forks.
        import swift.export.run
        import swift.train.loop  # noqa: F401 - only for its effect

        self._folder = folder
        self._site = site
        self._cache = folder.parent / "cache"

    def types(self, command: Command) -> Done:
        """Run one command with the input of the page."""
        words = command.words()
        if words[0] not in ("swift", "python"):
            done = subprocess.run(
                command.line, shell=True, cwd=self._folder, capture_output=True, text=True, check=False
            )
            return Done(done.returncode, done.stdout, done.stderr)
        files = [self._folder.parent / name for name in ("typed", "printed", "complained")]
        files[0].write_text("".join(f"{line}\n" for line in command.typed), encoding="utf-8")
        child = os.fork()
        if child == 0:
            self._become(words, files)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return Done(code, files[1].read_text(encoding="utf-8"), files[2].read_text(encoding="utf-8"))

    def _become(self, words: list[str], files: list[Path]) -> None:
        """Run the command in the fork, and exit with its exit code."""
        code = 1
        try:
            for number, (path, flags) in enumerate(zip(files, _OPENED, strict=True)):
                os.dup2(os.open(path, flags), number)
            # pytest has replaced these.
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            os.environ.update(XDG_CACHE_HOME=str(self._cache), COLUMNS="200")
            os.chdir(self._folder)
            if self._site is not None:
                sys.path.insert(0, str(self._site))
                os.environ["PYTHONPATH"] = str(self._site)  # for its child processes
            if words[0] == "swift":
                from swift.cli.main import run

                code = run(words[1:])
            elif words[1] == "-m":
                sys.argv = words[2:]
                runpy.run_module(words[2], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[1], run_name="__main__")
                code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
