"""Plugins that need no distribution: a class in a Python file, named as `FILE.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from hashlib import blake2b
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
    """Import a Python file, as a module of its name unless another one has it.

    Processes that this one starts find it by that name, and the files next to it are found by theirs.
    """
    if (module := _imported(file)) is not None:
        return module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last: nothing that is installed is replaced
    importlib.invalidate_caches()
    found = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    if found is not None and found.origin is not None and Path(found.origin).resolve() == file.resolve():
        return importlib.import_module(file.stem)
    name = _own_name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(file: Path) -> ModuleType | None:
    for name in (file.stem, _own_name(file)):
        module = sys.modules.get(name)
        if module is not None and Path(getattr(module, "__file__", None) or "").resolve() == file.resolve():
            return module
    return None


def _own_name(file: Path) -> str:
    return f"swift_file_{blake2b(str(file.resolve()).encode(), digest_size=6).hexdigest()}"
