"""Base class of all options, and annotations that add to a field's flag: an argument, aliases, shorthands.

A field is declared once: its name is the flag, its type gives the valid values, its description is the help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from swift.config.limits import fault_of, takes_numbers_only


@dataclass(frozen=True)
class Argument:
    """Marks a field that a positional argument also sets: `model: Annotated[Name | None, Argument("MODEL")]`."""

    name: str
    """Its name in help."""


class Aliases:
    """Lists further flags that set a field: `out: Annotated[FilePath, Aliases("output_dir")]`."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags


@dataclass(frozen=True)
class Shorthand:
    """Adds a flag without a value that sets the field to `value`: `--no_verify` for `--verify none`."""

    flag: str
    value: str


class Parts:
    """Lists flags that set one key of a mapping: `Parts(attn_impl="attention")` for `--engine_options.attention`."""

    def __init__(self, **keys: str) -> None:
        self.keys = keys


@dataclass(frozen=True)
class Bare:
    """Allows the flag without a value, which then is `value`."""

    value: str


class Verbatim:
    """Marks a list of strings that are never parsed: a prompt may look like JSON."""


class RunsCode:
    """Marks a field that may name Python files to run (`FILE.py`, `FILE.py:NAME`), which no configuration file may."""

    @classmethod
    def fields(cls, model: type[BaseModel]) -> list[str]:
        """Return the names of the marked fields of a model."""
        return [
            name for name, info in model.model_fields.items() if any(isinstance(each, cls) for each in info.metadata)
        ]

    @staticmethod
    def files(value: Any) -> list[str]:
        """Return the Python files in a value, unchanged."""
        names = value if isinstance(value, list | tuple) else [value]
        return [str(name) for name in names if str(name).partition(":")[0].endswith(".py")]


class Section(BaseModel):
    """Base class of all options: sections of the configuration, options of commands and of plugins."""

    # Schemas are built when the first value is validated: help and flags are made from the fields alone.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)
    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines in the help of a command; the first is also the hint where a required option is missing."""

    @field_validator("*", mode="before")
    @classmethod
    def _well_formed(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse malformed values, and a bool for a number, which pydantic would read as 0 or 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and takes_numbers_only(field.annotation):
            raise ValueError("must be a number")
        if isinstance(value, BaseModel) or _is_section(field.annotation):
            return value
        if fault := fault_of(value):
            raise ValueError(fault)
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _of_usual_size(cls, value: Any) -> Any:
        """Refuse a number out of range that was parsed from a string."""
        if isinstance(value, int | float) and (fault := fault_of(value)):
            raise ValueError(fault)
        return value


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def examples_of(options: type[BaseModel]) -> tuple[str, ...]:
    """Return the command lines in the help of a command; a plugin's model may have none."""
    return tuple(getattr(options, "examples", ()))
