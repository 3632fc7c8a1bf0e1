"""The flags of an installed server, read from its source: importing such a library takes half a minute."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swift.errors import UsageError, did_you_mean

_FLAG = re.compile(r"--?[a-z][\w-]*")


@dataclass(frozen=True)
class KnownFlags:
    """The flags that a server's parser takes, and the settings that its library takes in Python."""

    flags: frozenset[str]
    """With `-` between words, and short ones; a switch is there without its `--no-` form."""
    options: frozenset[str] = field(default_factory=frozenset)
    """Names of settings in Python."""
    joined: tuple[str, ...] = ()
    """Short flags that a value may follow without a space: '-O' for `-O3`."""

    def has(self, typed: str) -> bool:
        """Return whether the server's parser accepts a flag as typed: with a value, with a JSON key, or abbreviated."""
        word = typed.partition("=")[0]
        if not word.startswith("--"):
            return word.startswith((*self.joined, *(flag for flag in self.flags if not flag.startswith("--"))))
        name = dashed(word.partition(".")[0])
        positive = name.replace("--no-", "--", 1)
        if name in self.flags or (name != positive and positive in self.flags):
            return True
        return sum(flag.startswith(name) for flag in self.flags) == 1


def dashed(flag: str) -> str:
    """Return a flag with `-` between its words."""
    return flag.replace("_", "-")


def passed_on(args: Sequence[str], engine: str, ours: Mapping[str, str], *, negated: bool = True) -> tuple[str, ...]:
    """Return the flags for a server; raise `UsageError` for those that swift has a flag of its own for.

    `--ENGINE_NAME` means `--NAME`, and a switch may be followed by true or false.
    """
    prefix = re.compile(rf"--{engine}[_-]")
    taken = as_switches([prefix.sub("--", word) if prefix.match(word) else word for word in args], negated=negated)
    for flag, instead in ours.items():
        if any(_means(word, flag) for word in taken):
            raise UsageError(f"swift serve sets {flag} itself.", hint=f"Use {instead} instead.")
    return taken


def _means(word: str, flag: str) -> bool:
    """Return whether a word is a flag or an abbreviation of it."""
    typed = dashed(word.partition("=")[0])
    return flag.startswith(typed) and len(typed) > len("--x")


def check_known(args: Sequence[str], known: KnownFlags | None, server: object) -> None:
    """Raise `UsageError` for a flag that neither swift nor the server has, where its flags are known."""
    for word in args:
        if known is not None and _is_flag(word) and not known.has(word):
            flag = word.partition("=")[0]
            raise UsageError(
                f"Unknown flag {flag}: neither swift serve nor {server} has it."
                f"{did_you_mean(dashed(flag), sorted(known.flags))}",
                hint="See: swift serve --help",
            )


def as_switches(args: Sequence[str], *, negated: bool = True) -> tuple[str, ...]:
    """Replace `--x true` by `--x`, and `--x false` by `--no-x`, or by nothing if flags cannot be negated."""
    taken: list[str] = []
    for word in args:
        switch = word.lower()
        if switch in ("true", "false") and taken and taken[-1].startswith("--") and "=" not in taken[-1]:
            if switch == "false":
                flag = taken.pop()
                taken += [flag.replace("--", "--no-", 1)] if negated else []
        else:
            taken.append(word)
    return tuple(taken)


def given(flag: str, args: Sequence[str], *more: str) -> str | None:
    """Return the value of a flag by any of its names: '' for one without a value, None if it is absent."""
    for position, word in enumerate(args):
        name, has_value, value = word.partition("=")
        if dashed(name) in (flag, *more):
            following = args[position + 1] if position + 1 < len(args) else ""
            return value if has_value else "" if following.startswith("-") else following
    return None


def parsed(paths: Iterable[Path]) -> list[ast.Module]:
    """Return sources; none where one of them is missing or invalid."""
    try:
        return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    except (OSError, SyntaxError, ValueError):
        return []


def argument_flags(tree: ast.Module) -> Iterator[str]:
    """Yield the flags that `add_argument` is called with in a source."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            for word in call.args:
                if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value.startswith("-"):
                    yield dashed(word.value)


def flags_in(tree: ast.Module) -> Iterator[str]:
    """Yield every string of a source that looks like a flag: a superset of its parser's flags."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.fullmatch(node.value):
            yield dashed(node.value)


def classes_of(tree: ast.Module) -> list[ast.ClassDef]:
    """Return the classes of a source."""
    return [each for each in tree.body if isinstance(each, ast.ClassDef)]


def field_names(each: ast.ClassDef) -> list[str]:
    """Return the annotated names of a class, as a dataclass has them."""
    return [
        line.target.id for line in each.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit() and " " not in word.partition("=")[0]
