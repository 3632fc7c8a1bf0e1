"""Modules without a file, importable under the name of a package that is missing on a CPU."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any


def add_module(name: str, **names: Any) -> None:
    """Make `import name` return a module with these attributes, as an attribute of its parent too."""
    module = types.ModuleType(name, "A dummy of plain torch.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
