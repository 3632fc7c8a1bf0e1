"""The flags of the installed vLLM, read from its source: importing it takes half a minute, and starting it longer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from swift_infer.servers import KnownFlags, argument_flags, classes_of, dashed, field_names, parsed

_ENGINE = "engine/arg_utils.py"
_SERVER = "entrypoints/**/cli_args.py"
_LLM = "entrypoints/llm.py"
_LEVEL = "-O"
"""Which the parser makes `--optimization-level` of before it looks: -O3."""
_OPTIONS = "EngineArgs"
_FRONTEND = "FrontendArgs"
"""Ends the names of the classes whose fields are flags of the server."""


def known_flags(folder: Path) -> KnownFlags | None:
    """Return what the vLLM in this folder takes; None where its source is laid out otherwise."""
    trees = parsed((folder / _ENGINE, folder / _LLM, *folder.glob(_SERVER)))
    classes = [each for tree in trees[:2] for each in classes_of(tree)]
    flags = {flag for tree in trees for flag in (*argument_flags(tree), *_frontend(tree))}
    options = {name for each in classes if each.name == _OPTIONS for name in field_names(each)}
    options |= {name for each in classes if each.name == "LLM" for name in _parameters(each)}
    if not options or "--model" not in flags or "--port" not in flags:
        return None
    return KnownFlags(frozenset(flags), frozenset(options), (_LEVEL,))


def _frontend(tree: ast.Module) -> Iterator[str]:
    for each in classes_of(tree):
        if each.name.endswith(_FRONTEND):
            yield from (f"--{dashed(name)}" for name in field_names(each))


def _parameters(each: ast.ClassDef) -> list[str]:
    made = (line for line in each.body if isinstance(line, ast.FunctionDef) and line.name == "__init__")
    return [argument.arg for line in made for argument in (*line.args.args[1:], *line.args.kwonlyargs)]
