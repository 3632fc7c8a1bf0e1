"""Imports torch and transformers without work that importing them does twice, or for nothing.

Two things take half a second of CPU time in every process: Python looks for garbage a thousand times among modules that
stay, and transformers reads all files of its models twice, since what it remembers of them has fewer places than it has
models.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from swift import deferred
from swift.terminal import waiting

_SCANNING = "transformers.utils.import_utils"
"""The module of transformers that reads its files."""
_SCAN = "create_import_structure_from_path"
"""Its function for one folder; that of a folder of folders calls it for each."""


@contextmanager
def importing(what: str = "torch and transformers") -> Iterator[None]:
    """Show that libraries are imported, which takes seconds, and import them inside as fast as they can be.

    In a process that runs one command only, what was imported is none of the garbage collector's business afterwards.
    """
    was_enabled = gc.isenabled()
    finder = _ScannedOnce()
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        with waiting(f"Importing {what}"):
            yield
    finally:
        sys.meta_path.remove(finder)
        if was_enabled:
            gc.enable()
        if deferred.is_own_process():
            gc.freeze()


class _ScannedOnce(MetaPathFinder):
    """Gives the module that scans transformers' files a memory as large as there are folders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _SCANNING:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Remembering(spec.loader.name, spec.loader.path)
        return spec


class _Remembering(SourceFileLoader):
    """Loads the module, and replaces the cache of its function, where there is one, by one without a limit."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        scan = getattr(getattr(module, _SCAN, None), "__wrapped__", None)
        if scan is not None:
            setattr(module, _SCAN, cache(scan))
