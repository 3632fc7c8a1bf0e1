"""Core's code mentions no backend, exporter, engine or scheme of quantising of another package by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import import_rules

CORE = import_rules.ROOT / "packages" / "core" / "src" / "swift"
NAMES = re.compile(r"vllm|megatron(?!-bert)|deepspeed|(?<![a-z])fsdp|w4a16|w8a8|gptq|(?<![a-z])awq", re.IGNORECASE)
EXCEPTIONS = {
    "plugins/known.py": "what this project publishes, for advice where it is not installed",
    "config/draft.py": "backends that articles combine",
    "parsing/aliases.py": "third-party flags, which name these libraries",
    "parsing/translations.py": "the same: the values of each flag",
    "parsing/quantization_flags.py": "the same: the bits of each scheme",
    "models/quiet.py": "a message of a library that transformers imports by itself",
    "parsing/requests.py": "ms-swift's --sequence_parallel_size means another thing with Megatron",
    "api.py": "ms-swift's class MegatronArguments",
    "__init__.py": "the same, exported",
    "models/merge.py": "keys of PEFT's configuration",
    "models/adapter_file.py": "keys of PEFT's configuration",
    "cli/plugins.py": "an example in the help",
}
"""Files that may, and why."""


def names_and_strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield names and strings of a module's code; comments and docstrings may explain by example."""
    tree = ast.parse(file.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def test_core_names_no_plugin_of_another_package() -> None:
    """Files outside EXCEPTIONS name none, and each exception is needed."""
    needed, offenders = set(), []
    for file in sorted(CORE.rglob("*.py")):
        name = file.relative_to(CORE).as_posix()
        found = [f"{name}:{line}: {text!r}" for line, text in names_and_strings(file) if NAMES.search(text)]
        if name not in EXCEPTIONS:
            offenders += found
        elif found:
            needed.add(name)
    assert offenders == []
    assert needed == {*EXCEPTIONS}
