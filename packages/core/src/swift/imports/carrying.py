"""Settings of another program: those that are carried over, and remarks about the others."""

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
    """A recipe of something that swift does not do: inference, or learning from generated answers."""


@dataclass(frozen=True)
class ThirdPartyRun:
    """The settings of one run, as another program would read them."""

    program: str
    """Its name as people write it: 'LLaMA-Factory'."""
    values: dict[str, Any]
    source: str
    """The file, with the line of the command where there are several, or the command itself."""
    command: str = ""
    """What the program was asked to do: 'sft', 'megatron dpo'; empty where the settings say it."""
    folder: Path = field(default_factory=Path)
    """Where relative paths may start, next to the working folder."""
    processes: int = 1
    remarks: tuple[tuple[str, Any, str], ...] = ()
    """(key, value, text) of what was met while reading, and changes the run."""


@dataclass(frozen=True)
class Remark:
    """The end of a setting that was not carried over as it stands, and why."""

    key: str
    value: Any
    text: str
    kind: Literal["lost", "changed", "unneeded"]


@dataclass(frozen=True)
class Carried:
    """A key of swift, and where its value is from."""

    value: Any
    origin: str


class Carrying:
    """One import under way: a table takes their settings out of `values` and says what becomes of each."""

    def __init__(self, recipe: ThirdPartyRun) -> None:
        self.recipe = recipe
        self.program = recipe.program
        self.values = {key: value for key, value in recipe.values.items() if value not in _NOTHING}
        self.empty = [key for key, value in recipe.values.items() if value in _NOTHING]
        self.settings: dict[str, Carried] = {}
        self.remarks: list[Remark] = []
        self.command: CommandName = "sft"
        self.processes = recipe.processes
        self.flags: list[str] = []
        """What has to be typed after the file: a configuration cannot decide it."""
        for key, value, text in recipe.remarks:
            self.lose(key, value, text)

    def take(self, *keys: str) -> Any:
        """Return the first of these settings that is there, and count all of them as dealt with."""
        found = [self.values.pop(key) for key in keys if key in self.values]
        return found[0] if found else None

    def set(self, key: str, value: Any, origin: str) -> None:
        """Carry a value over; `origin` is their key."""
        field = core_fields().get(key)
        texts = field is not None and field.type_name in ("text", "path", "list")
        self.settings[key] = Carried(value if texts else plain(value), origin)

    def default(self, key: str, value: Any) -> None:
        """Make a default of the other program explicit, unless the recipe says otherwise."""
        if key not in self.settings:
            self.settings[key] = Carried(value, f"{self.program}'s default")

    def get(self, key: str, default: Any = None) -> Any:
        """Return what a key of swift was set to."""
        return self.settings[key].value if key in self.settings else default

    def lose(self, key: str, value: Any, text: str) -> None:
        """Say that a setting is not carried over, and that the run differs for it."""
        self.remarks.append(Remark(key, value, text, "lost"))

    def changed(self, key: str, value: Any, text: str) -> None:
        """Say what a setting means here that was carried over with another meaning, or left to swift."""
        self.remarks.append(Remark(key, value, text, "changed"))

    def unneeded(self, key: str, value: Any, text: str) -> None:
        """Say why a setting has nothing to do here, and makes no difference to the training."""
        self.remarks.append(Remark(key, value, text, "unneeded"))

    @property
    def beside(self) -> list[str]:
        """Return the keys that were read together with others, and are named by none of the rest."""
        named = {carried.origin for carried in self.settings.values()} | {remark.key for remark in self.remarks}
        return [key for key in self.recipe.values if key not in named and key not in self.empty]

    @property
    def lost(self) -> list[Remark]:
        """Return the remarks about what is not carried over."""
        return [remark for remark in self.remarks if remark.kind == "lost"]


def is_off(value: Any) -> bool:
    """Return whether a setting is switched off: false, 0, empty, or such a word."""
    return value.strip().lower() in OFF if isinstance(value, str) else not value


def number(value: Any) -> float | None:
    """Return a number, of a text such as 2e-5 too, which YAML leaves a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def plain(value: Any) -> Any:
    """Return a value with texts that spell a number as that number, as every program's own reader takes them."""
    found = number(value) if isinstance(value, str) else None
    if found is None or "_" in value or found != found or abs(found) == float("inf"):
        return value
    return int(found) if value.strip().lstrip("+-").isdecimal() else found


def share(floor: float, peak: float) -> float:
    """Return a final learning rate as part of the peak, without the last digits of a division."""
    return float(f"{floor / peak:.12g}")


def words(value: Any) -> list[str]:
    """Return the names in a list, or in a text that separates them by commas or spaces."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [word for word in str(value).replace(",", " ").split() if word]
