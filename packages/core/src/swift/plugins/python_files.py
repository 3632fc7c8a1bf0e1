"""Plugins that need no distribution: a class in a Python file, named as `FILE.py:NAME`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from swift.errors import PluginError
from swift.plugins.entry import PluginEntry

GROUPS = frozenset({"swift.objectives"})
"""Kinds of plugins that may be in a file."""


def is_in_file(group: str, name: Any) -> bool:
    """Return whether a name of a plugin is that of a class in a Python file."""
    return group in GROUPS and isinstance(name, str) and name.partition(":")[0].endswith(".py")


def absolute(name: str) -> str:
    """Return `FILE.py:NAME` with the whole path, so that it means the same in every folder."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).expanduser().absolute()}{colon}{attribute}" if colon else name


def entry_of(group: str, name: str) -> PluginEntry:
    """Return the entry of a class in a file."""
    file, _, attribute = name.rpartition(":")
    kind = group.removeprefix("swift.").removesuffix("s")
    if not file or not attribute.isidentifier():
        raise PluginError(f"{name} names no class.", hint=f"Name the {kind} in the file: {name.rstrip(':')}:NAME")
    if not Path(file).is_file():
        raise PluginError(f"There is no file {file} with the {kind} {attribute}.", hint="Check the path.")
    return PluginEntry(group, name, "", "", absolute(name))


def is_imported(name: str) -> bool:
    """Return whether the file of a name was imported by this process: what a stored file names is never imported."""
    file = Path(name.rpartition(":")[0])
    return file.is_absolute() and _imported(file) is not None


def import_file(file: Path) -> ModuleType:
    """Import a Python file as a module of its name, which processes that this one starts find too."""
    if not file.stem.isidentifier():
        raise ImportError(f"{file.name} is not the name of a Python module")
    if (module := _imported(file)) is not None:
        return module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    importlib.invalidate_caches()
    module = importlib.import_module(file.stem)
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise ImportError(f"another module is called {file.stem} ({module.__file__}): rename {file.name}")
    return module


def _imported(file: Path) -> ModuleType | None:
    module = sys.modules.get(file.stem)
    same = module is not None and Path(getattr(module, "__file__", None) or "").resolve() == file.resolve()
    return module if same else None
