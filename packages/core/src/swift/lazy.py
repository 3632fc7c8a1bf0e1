"""Public names of a package that are imported when they are first used, so that the package itself stays light."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: `homes` maps each of its modules to the names there, with spaces between.

    Type checkers need the same names in an `if TYPE_CHECKING:`, as `from ... import name as name`.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def getattr_of_package(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return getattr_of_package
