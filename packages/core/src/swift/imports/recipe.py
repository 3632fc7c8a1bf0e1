"""State of an import: settings of a third-party recipe, those imported so far, and remarks about the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swift.config.fields import core_fields
from swift.errors import UsageError

CommandName = Literal["pt", "sft", "rlhf", "train"]
_NOTHING: tuple[Any, ...] = (None, [], {}, "")
OFF = ("", "none", "null", "false", "no", "off", "0", "0.0")


class NotTrainable(UsageError):
    """A recipe that swift cannot train, such as one for inference."""


@dataclass(frozen=True)
class ThirdPartyRun:
    """The settings of one third-party run."""

    program: str
    """The program's name: 'LLaMA-Factory'."""
    values: dict[str, Any]
    source: str
    """The file, with the line of the command if there are several, or the command itself."""
    command: str = ""
    """The program's command: 'sft', 'megatron dpo'; empty where the settings determine it."""
    folder: Path = field(default_factory=Path)
    """A folder that relative paths may start from, besides the working folder."""
    processes: int = 1
    remarks: tuple[tuple[str, Any, str], ...] = ()
    """(key, value, reason) of settings that could not be read, and change the run."""


@dataclass(frozen=True)
class Remark:
    """A setting that was not imported unchanged, and why."""

    key: str
    value: Any
    text: str
    kind: Literal["lost", "changed", "unneeded"]


@dataclass(frozen=True)
class ImportedValue:
    """The value of a key of swift, and the setting that it comes from."""

    value: Any
    origin: str


class RecipeImport:
    """An import in progress: rules take third-party settings out of `values`, and set keys or add remarks."""

    def __init__(self, recipe: ThirdPartyRun) -> None:
        self.recipe = recipe
        self.program = recipe.program
        self.values = {key: value for key, value in recipe.values.items() if value not in _NOTHING}
        self.empty = [key for key, value in recipe.values.items() if value in _NOTHING]
        self.settings: dict[str, ImportedValue] = {}
        self.remarks: list[Remark] = []
        self.command: CommandName = "sft"
        self.processes = recipe.processes
        self.flags: list[str] = []
        """Flags to type after the file, for keys that a file cannot set."""
        for key, value, text in recipe.remarks:
            self.lose(key, value, text)

    def take(self, *keys: str) -> Any:
        """Return the first of these settings that exists, and mark all of them as handled."""
        found = [self.values.pop(key) for key in keys if key in self.values]
        return found[0] if found else None

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a key of swift; `origin` is the third-party key."""
        field = core_fields().get(key)
        keeps_string = field is not None and field.type_name in ("string", "path", "list")
        self.settings[key] = ImportedValue(value if keeps_string else plain(value), origin)

    def default(self, key: str, value: Any) -> None:
        """Make a default of the program explicit, unless the recipe sets the key."""
        if key not in self.settings:
            self.settings[key] = ImportedValue(value, f"{self.program}'s default")

    def defaults(self, section: str, **values: Any) -> None:
        """Make defaults of the program for keys of a section explicit, unless the recipe sets them."""
        for name, value in values.items():
            self.default(f"{section}.{name}", value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of swift."""
        return self.settings[key].value if key in self.settings else default

    def lose(self, key: str, value: Any, text: str) -> None:
        """Note a setting that is not imported and would change the run."""
        self.remarks.append(Remark(key, value, text, "lost"))

    def changed(self, key: str, value: Any, text: str) -> None:
        """Note a setting that has another meaning here, or is left to swift."""
        self.remarks.append(Remark(key, value, text, "changed"))

    def unneeded(self, key: str, value: Any, text: str) -> None:
        """Note a setting that does not change the training."""
        self.remarks.append(Remark(key, value, text, "unneeded"))

    @property
    def read_with_others(self) -> list[str]:
        """Return the keys that were read together with others, and appear in no setting or remark."""
        named = {each.origin for each in self.settings.values()} | {remark.key for remark in self.remarks}
        return [key for key in self.recipe.values if key not in named and key not in self.empty]

    @property
    def lost(self) -> list[Remark]:
        """Return the remarks about settings that are not imported."""
        return [remark for remark in self.remarks if remark.kind == "lost"]


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


def names_in(value: Any) -> list[str]:
    """Return the names in a list, or in a string separated by commas or spaces."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value).replace(",", " ").split()
