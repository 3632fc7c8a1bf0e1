"""Reader of YAML configurations that keeps the line of every key for error messages.

YAML can create Python objects, refer to itself, and grow from a line to gigabytes through aliases. Only strings,
numbers, switches, lists and mappings are read, within limits that real configurations never reach.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from swift.config.values import clipped
from swift.errors import ConfigError
from swift.untrusted import read_json_object, read_text, shown

LIMIT = 1 << 20
"""Maximum size of a configuration file, in bytes."""
DEPTH = 30
NODES = 20_000
"""Maximum number of values, counting each repetition by an alias."""
_PREFIX = "tag:yaml.org,2002:"
_SCALARS = {_PREFIX + name for name in ("str", "int", "float", "bool", "null")}
_MERGE = _PREFIX + "merge"
_NUMBERS = {_PREFIX + "int", _PREFIX + "float"}
_DIGITS = 30
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a YAML or JSON file; None for what is no such file."""
    try:
        found = path.suffix in (".yaml", ".yml", ".json") and path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null byte
        found = False
    if not found:
        return None
    return read_json_object(path, ConfigError, limit=LIMIT) if path.suffix == ".json" else read_yaml(path)[0]


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the mapping in a file, and dotted key → line.

    A repeated key is an error: YAML would silently keep the last.
    """
    name = shown(path)
    try:
        missing = not path.exists()
    except (OSError, ValueError):
        missing = False  # reading it raises the error
    if missing:
        raise ConfigError(f"There is no configuration file {name}.", hint="Write one with: swift config show")
    text = read_text(path, ConfigError, limit=LIMIT)
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, MappingNode):
            raise ConfigError(f"{name}:1: expected a mapping of sections, such as `train: {{epochs: 1}}`.")
        lines: dict[str, int] = {}
        _Check(loader, name, lines).mapping(node, "")
        content: dict[str, Any] = loader.construct_document(node)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = mark.line + 1 if mark else 1
        reason = clipped(problem.problem or problem.context or "")
        raise ConfigError(f"{name}:{line}: invalid YAML: {reason}.") from None
    except yaml.reader.ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        raise ConfigError(f"{name}:{line}: invalid YAML: the character {problem.character!a} is not allowed.") from None
    except yaml.YAMLError as problem:
        raise ConfigError(f"{name}: invalid YAML: {clipped(str(problem))}.") from None
    except _Refused as problem:
        raise ConfigError(f"{name}:{problem.line}: {problem.reason}") from None
    finally:
        if loader is not None:
            loader.dispose()
    return content, lines


_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _PREFIX + "timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Refused(Exception):
    def __init__(self, node: Node | yaml.Event, reason: str) -> None:
        super().__init__(reason)
        self.line = node.start_mark.line + 1 if node.start_mark else 1
        self.reason = reason


class _Loader(yaml.SafeLoader):
    """Reads dates as strings, and refuses deep or long documents before they are in memory."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = _RESOLVERS
        self._depth = self._nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self._depth += 1
        self._nodes += 1
        if self._depth > DEPTH:
            raise _Refused(self._next(), f"nested more than {DEPTH} levels deep.")
        if self._nodes > NODES:
            raise _Refused(self._next(), f"more than {NODES:,} values.")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _next(self) -> yaml.Event:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # its stubs leave it so
        return event


class _Check:
    """Checks the values as they would be in memory, and records the line of each key."""

    def __init__(self, loader: _Loader, name: str, lines: dict[str, int]) -> None:
        self._loader = loader
        self._name = name
        self._lines = lines
        self._around: list[Node] = []
        self._nodes = 0

    def mapping(self, node: MappingNode, prefix: str) -> None:
        self._enter(node, "map")
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                self._value(value_node, None)
                continue
            if not isinstance(key_node, ScalarNode) or key_node.tag != _PREFIX + "str":
                what = f"the key {clipped(key_node.value)}" if isinstance(key_node, ScalarNode) else "this key"
                raise _Refused(key_node, f"{what} is not a string. Write it in quotes.")
            key = f"{prefix}{key_node.value}"
            line = key_node.start_mark.line + 1
            if key in self._lines:
                raise ConfigError(
                    f"{self._name}:{line}: duplicate key {clipped(key)}, first set in line {self._lines[key]}.",
                    hint="Keep one of them.",
                )
            self._lines[key] = line
            self._value(value_node, f"{key}.")
        self._around.pop()

    def _value(self, node: Node, prefix: str | None) -> None:
        """Check one value; `prefix` is None where keys are not recorded, in lists and merged mappings."""
        if isinstance(node, MappingNode) and prefix is not None:
            self.mapping(node, prefix)
        elif isinstance(node, MappingNode | SequenceNode):
            self._enter(node, "map" if isinstance(node, MappingNode) else "seq")
            members = [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else node.value
            for member in members:
                self._value(member, None)
            self._around.pop()
        elif isinstance(node, ScalarNode) and node.tag != _MERGE:
            self._scalar(node)

    def _enter(self, node: Node, kind: str) -> None:
        if node.tag != _PREFIX + kind:
            raise _Refused(node, f"the YAML tag {clipped(node.tag)} is not allowed. Write a plain value.")
        if any(node is outer for outer in self._around):
            raise _Refused(node, "the value refers to itself.")
        self._around.append(node)
        self._count(node)

    def _count(self, node: Node) -> None:
        self._nodes += 1
        if self._nodes > NODES:
            raise _Refused(node, f"aliases expand to more than {NODES:,} values.")

    def _scalar(self, node: ScalarNode) -> None:
        self._count(node)
        if node.tag not in _SCALARS:
            raise _Refused(node, f"the YAML tag {clipped(node.tag)} is not allowed. Write a plain value.")
        if node.tag in _NUMBERS:
            if ":" in node.value or _OCTAL.fullmatch(node.value):
                raise _Refused(node, f"{node.value} is ambiguous in YAML. Write a decimal number, or quote a string.")
            if len(node.value) > _DIGITS:
                raise _Refused(node, f"the number has {len(node.value)} digits, more than any key takes.")
        try:
            self._loader.construct_object(node)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            kind = node.tag.removeprefix(_PREFIX)
            raise _Refused(node, f"{clipped(node.value)!r} is not a valid !!{kind}.") from None
