"""The flags of the installed vLLM, read from its source: importing it takes half a minute, and starting it longer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ENGINE = "engine/arg_utils.py"
_SERVER = "entrypoints/**/cli_args.py"
_LLM = "entrypoints/llm.py"
_LEVEL = "-O"
"""Which the parser makes `--optimization-level` of before it looks: -O3."""
_OPTIONS = "EngineArgs"
_FRONTEND = "FrontendArgs"
"""Ends the names of the classes whose fields are flags of the server."""


@dataclass(frozen=True)
class KnownFlags:
    """The flags that the server's parser and `vllm.LLM` take."""

    flags: frozenset[str]
    """Of the server, with `-` between words, and short ones; a switch is there without its `--no-` form."""
    options: frozenset[str]
    """Names of the settings of `vllm.LLM`."""

    def has(self, typed: str) -> bool:
        """Whether the server's parser takes a flag as it was typed: with its value, a part of a JSON, abbreviated."""
        word = typed.partition("=")[0]
        if not word.startswith("--"):
            return word.startswith((_LEVEL, *(flag for flag in self.flags if not flag.startswith("--"))))
        name = dashed(word.partition(".")[0])
        positive = name.replace("--no-", "--", 1)
        if name in self.flags or (name != positive and positive in self.flags):
            return True
        return sum(flag.startswith(name) for flag in self.flags) == 1


def dashed(flag: str) -> str:
    """Return a flag as vLLM spells it: `_` and `-` mean the same to it."""
    return flag.replace("_", "-")


def known_flags(folder: Path) -> KnownFlags | None:
    """Return what the vLLM in this folder takes; None where its source is laid out otherwise."""
    engine, server = folder / _ENGINE, sorted(folder.glob(_SERVER))
    try:
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (engine, *server)]
        offline = ast.parse((folder / _LLM).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    flags = {flag for tree in trees for flag in (*_arguments(tree), *_frontend(tree))}
    options = {name for each in _classes(trees[0]) if each.name == _OPTIONS for name in _fields(each)}
    options |= {name for each in _classes(offline) if each.name == "LLM" for name in _parameters(each)}
    if not options or "--model" not in flags or "--port" not in flags:
        return None
    return KnownFlags(frozenset(flags), frozenset(options))


def _arguments(tree: ast.Module) -> Iterator[str]:
    """Yield what `add_argument` is called with."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            for word in call.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("-"):
                    yield dashed(word.value)


def _frontend(tree: ast.Module) -> Iterator[str]:
    for each in _classes(tree):
        if each.name.endswith(_FRONTEND):
            yield from (f"--{dashed(name)}" for name in _fields(each))


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [each for each in tree.body if isinstance(each, ast.ClassDef)]


def _fields(each: ast.ClassDef) -> list[str]:
    return [
        line.target.id for line in each.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def _parameters(each: ast.ClassDef) -> list[str]:
    made = (line for line in each.body if isinstance(line, ast.FunctionDef) and line.name == "__init__")
    return [argument.arg for line in made for argument in (*line.args.args[1:], *line.args.kwonlyargs)]
