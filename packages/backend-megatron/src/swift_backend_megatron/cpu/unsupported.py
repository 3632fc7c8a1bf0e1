"""How the CPU layer refuses what only Transformer Engine on a GPU can do."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    """Raise NotImplementedError for a feature that needs CUDA."""
    raise NotImplementedError(f"{what}: needs CUDA and Transformer Engine, and this machine runs without them")


def refuse_any(**options: Any) -> None:
    """Raise NotImplementedError for the first option that is set."""
    for name, value in options.items():
        if value is not None and value is not False:
            refuse(f"{name}={value!r}")
