"""State of an import: settings of a third-party recipe, those imported so far, and remarks about the others."""

from __future__ import annotations

from typing import Any

from swift.config import core_fields
from swift.contracts import ThirdPartyRun, TranslatedRun, TranslatedValue

_NOTHING: tuple[Any, ...] = (None, [], {}, "")
OFF = ("", "none", "null", "false", "no", "off", "0", "0.0")


class RecipeImport(TranslatedRun):
    """An import in progress: rules take third-party settings out of `values`, and set keys or add remarks."""

    def __init__(self, recipe: ThirdPartyRun) -> None:
        super().__init__(recipe)
        self.program = recipe.program
        self.values = {key: value for key, value in recipe.values.items() if value not in _NOTHING}
        self.empty = [key for key, value in recipe.values.items() if value in _NOTHING]

    def take(self, *keys: str) -> Any:
        """Return the first of these settings that exists, and mark all of them as handled."""
        found = [self.values.pop(key) for key in keys if key in self.values]
        return found[0] if found else None

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a key of swift; `origin` is the third-party key."""
        field = core_fields().get(key)
        keeps_string = field is not None and field.type_name in ("string", "path", "list")
        super().set(key, value if keeps_string else plain(value), origin)

    def default(self, key: str, value: Any) -> None:
        """Make a default of the program explicit, unless the recipe sets the key."""
        if key not in self.settings:
            self.settings[key] = TranslatedValue(value, f"{self.program}'s default")

    def defaults(self, section: str, **values: Any) -> None:
        """Make defaults of the program for keys of a section explicit, unless the recipe sets them."""
        for name, value in values.items():
            self.default(f"{section}.{name}", value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of swift."""
        return self.settings[key].value if key in self.settings else default


def is_off(value: Any) -> bool:
    """Return whether a setting is off: false, 0, empty, or a string for one of these."""
    return value.strip().lower() in OFF if isinstance(value, str) else not value


def number(value: Any) -> float | None:
    """Return a number, also from a string such as 2e-5, which YAML does not parse; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def plain(value: Any) -> Any:
    """Return a value, with a string of a number parsed as every program does."""
    found = number(value) if isinstance(value, str) else None
    if found is None or "_" in value or found != found or abs(found) == float("inf"):
        return value
    return int(found) if value.strip().lstrip("+-").isdecimal() else found


def ratio(floor: float, peak: float) -> float:
    """Return a final learning rate as a fraction of the peak, rounded to 12 digits."""
    return float(f"{floor / peak:.12g}")
