"""How many processes a backend is tried on, and how they share the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

_SHARING = ("tp", "pp", "cp", "ulysses")
"""Dimensions whose processes work on the same samples."""


@dataclass(frozen=True)
class Layout:
    """Processes, the `parallel` section for them, and other keys of the configuration that this layout is about."""

    world: int
    parallel: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys, such as {'backend.offload': True}."""
    label: str = ""
    cases: frozenset[str] | None = None
    """Names of the only cases to be tried, where this layout combines what others try alone; None tries all."""
    without: frozenset[str] = frozenset()
    """Names of cases that a backend does not claim under this layout; it must refuse them."""

    def __str__(self) -> str:
        if self.label:
            return self.label
        plan = "-".join(f"{key}{int(value)}" for key, value in self.parallel.items())
        options = "-".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.config.items())
        return "-".join(filter(None, (str(self.world), plan, options)))

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def data_size(self) -> int:
        """Into how many slices the global batch is cut."""
        return self.world // prod(int(self.parallel.get(name, 1)) for name in _SHARING)

    @property
    def cuts_rows(self) -> bool:
        """Whether processes share the tokens of a row."""
        return any(int(self.parallel.get(name, 1)) > 1 for name in ("cp", "ulysses"))

    def tries(self, case: str) -> bool:
        """Return whether a case is part of this layout's tests."""
        return case not in self.without and (self.cases is None or case in self.cases)

    def settings(self) -> dict[str, Any]:
        """Dotted keys of the configuration."""
        return {**{f"parallel.{key}": value for key, value in self.parallel.items()}, **self.config}
