"""Reading a YAML configuration, with the line of every key, so that an error can point at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from swift.errors import ConfigError


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping in a file, and dotted key → line. A repeated key is an error: YAML would keep the last in silence."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.", hint="Write one with: swift config show") from None
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"The configuration file {path} cannot be read: {cause}.") from cause
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}:1: a configuration is a mapping such as `train: {{epochs: 1}}`.")
        lines: dict[str, int] = {}
        _note_lines(node, "", lines, path)
        content: dict[str, Any] = loader.construct_document(node)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: this is not YAML: {problem.problem or problem.context}.") from None
    except yaml.YAMLError as problem:
        raise ConfigError(f"{path}: this is not YAML: {problem}.") from None
    finally:
        loader.dispose()
    return content, lines


def _note_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], path: Path) -> None:
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        line = key_node.start_mark.line + 1
        if key in lines:
            raise ConfigError(f"{path}:{line}: {key} is there already, in line {lines[key]}.", hint="Keep one of them.")
        lines[key] = line
        if isinstance(value_node, yaml.MappingNode):
            _note_lines(value_node, f"{key}.", lines, path)
