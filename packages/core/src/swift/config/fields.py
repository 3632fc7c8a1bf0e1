"""Fields of sections, flattened: flags, help, reference and errors are made from them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from swift.config.options import Aliases, Argument, Bare, Parts, Shorthand, Verbatim
from swift.config.own_options import AdamOptions, FullOptions, LoraOptions

_TYPE_NAMES = {"str": "string", "Path": "path", "float": "number", "int": "integer", "bool": "switch", "dict": "JSON"}

Kind = Literal["switch", "list", "mapping", "value"]


@dataclass(frozen=True)
class Field:
    """One key of the configuration."""

    key: str
    """`section.name`, or the name alone where there are no sections."""
    kind: Kind
    optional: bool
    """Whether the value may be unset (`null`)."""
    default: Any
    description: str
    type_name: str
    """For people: 'integer', 'switch', 'a | b | c'."""
    bounds: str = ""
    """The bounds that help shows."""
    required: bool = False
    aliases: tuple[str, ...] = ()
    """Further flags that set it."""
    shorthands: tuple[Shorthand, ...] = ()
    argument: str | None = None
    """Its name in help as a positional argument."""
    verbatim: bool = False
    """Whether its values are strings that are never parsed as JSON."""
    bare: str | None = None
    """The value of its flag when none is given."""
    parts: tuple[tuple[str, str], ...] = ()
    """Of a mapping: (flag, the key in it that the flag sets)."""

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the valid values where the type lists them, unlike a union of types."""
        names = tuple(self.type_name.split(" | "))
        types = {"string", "path", "number", "integer", "switch", "JSON", "list"}
        return names if self.kind == "value" and len(names) > 1 and not types & set(names) else ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Return every further flag that sets it, or a part of it."""
        return (*self.aliases, *(each.flag for each in self.shorthands), *(flag for flag, _ in self.parts))


_OPTIONS: dict[str, dict[str, type[BaseModel]]] = {
    "tuner": {"lora": LoraOptions, "full": FullOptions},
    "optim": {"adamw": AdamOptions},
}
"""Section → core's own plugins, the default first, and their options. Their flags are known whichever plugin is
selected, because third-party commands set them in any case."""


@cache
def core_fields() -> dict[str, Field]:
    """Return all keys of core's own sections, and those of core's own tuners and optimizers."""
    from swift.config.sections import Config  # only the commands that train need all sections

    found = {}
    for section in Config.model_fields:
        for model in (_section_model(section), *_OPTIONS.get(section, {}).values()):
            found.update({field.key: field for field in model_fields(model, section)})
    return found


def core_keys(section: str) -> frozenset[str]:
    """Return core's own keys of a section; none for an unknown section."""
    from swift.config.sections import Config

    return frozenset(_section_model(section).model_fields) if section in Config.model_fields else frozenset()


def default_options(section: str) -> frozenset[str]:
    """Return the keys of the plugin that a section selects by default."""
    return frozenset(next(iter(_OPTIONS[section].values())).model_fields) if section in _OPTIONS else frozenset()


def plugins_with(section: str, option: str) -> list[str]:
    """Return core's own plugins in a section that have an option."""
    return [name for name, model in _OPTIONS.get(section, {}).items() if option in model.model_fields]


def _section_model(section: str) -> type[BaseModel]:
    from swift.config.sections import Config

    model = Config.model_fields[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


def model_fields(model: type[BaseModel], section: str = "") -> Iterator[Field]:
    """Yield the keys of a model, of core or of a plugin."""
    for name, info in model.model_fields.items():
        name = info.alias or name
        yield _field(f"{section}.{name}" if section else name, info)


def _field(key: str, info: FieldInfo) -> Field:
    annotation, optional = _without_none(info.annotation)
    aliases = [flag for each in info.metadata if isinstance(each, Aliases) for flag in each.flags]
    return Field(
        key=key,
        kind=_kind(annotation),
        optional=optional,
        default=None if info.is_required() else info.get_default(call_default_factory=True, validated_data={}),
        description=info.description or "",
        type_name=_type_name(annotation),
        bounds=", ".join(_bounds((info.annotation, *info.metadata))),
        required=info.is_required(),
        aliases=tuple(aliases),
        shorthands=tuple(each for each in info.metadata if isinstance(each, Shorthand)),
        verbatim=any(isinstance(each, Verbatim) for each in info.metadata),
        argument=next((each.name for each in info.metadata if isinstance(each, Argument)), None),
        bare=next((each.value for each in info.metadata if isinstance(each, Bare)), None),
        parts=tuple(pair for each in info.metadata if isinstance(each, Parts) for pair in each.keys.items()),
    )


_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_LARGEST_SHOWN = 2**16
"""Larger bounds only catch typos, so help does not show them."""


def _bounds(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the bounds of a type as signs, from a field's metadata or its annotation."""
    for part in parts:
        if isinstance(part, FieldInfo):
            yield from _bounds(part.metadata)
        elif typing.get_origin(part) in (typing.Annotated, Union, types.UnionType):
            yield from _bounds(typing.get_args(part))
        elif not isinstance(part, type):
            for name, sign in _BOUNDS.items():
                bound = getattr(part, name, None)
                if isinstance(bound, int | float) and abs(bound) < _LARGEST_SHOWN:
                    yield f"{sign} {bound:g}"


def _without_none(annotation: Any) -> tuple[Any, bool]:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = typing.get_args(annotation)
    rest = tuple(member for member in members if member is not type(None))
    inner = _without_none(rest[0])[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - made from a tuple
    return inner, len(rest) < len(members)


def _kind(annotation: Any) -> Kind:
    origin = typing.get_origin(annotation) or annotation
    if origin is bool:
        return "switch"
    if origin in (tuple, list, set, frozenset):
        return "list"
    if origin is dict or (isinstance(origin, type) and issubclass(origin, BaseModel)):
        return "mapping"
    return "value"


def _type_name(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in typing.get_args(annotation))
    if origin is tuple:
        return "list"
    if origin in (Union, types.UnionType):
        names = [_type_name(member) for member in typing.get_args(annotation)]
        return "number" if names == ["integer", "number"] else " | ".join(names)
    if _kind(annotation) == "mapping":
        return "JSON"
    name = str((origin or annotation).__name__)
    return _TYPE_NAMES.get(name, name)
