"""Public names of a package that are imported when they are first used, so that the package itself stays light."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, for the names that its `if TYPE_CHECKING:` imports as public.

    These are written once, as type checkers need them: `from package.module import name as name`.
    """

    @cache
    def home_of() -> dict[str, str]:
        return public_imports(inspect.getsource(sys.modules[package]))

    def getattr_of_package(name: str) -> Any:
        if name.startswith("__") or name not in home_of():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of()[name]), name)

    return getattr_of_package


def public_imports(source: str) -> dict[str, str]:
    """Return the names that `if TYPE_CHECKING:` imports as public at the top of a module, and the home of each."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    typed = [line for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for line in block.body]
    imports = [line for line in typed if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names if name.asname == name.name}
