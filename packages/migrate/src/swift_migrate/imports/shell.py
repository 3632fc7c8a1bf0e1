"""Parser of shell scripts: continued lines, quotes, comments, variables, and environment variables before a command.

Nothing is executed. Variables that the script sets to plain strings are expanded; others stay in the arguments as
`${NAME}` or `$(...)`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from swift.errors import ConfigError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(\[@\]|\[\*\])?(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_KEYWORDS = ("if", "then", "else", "elif", "do", "while", "time", "nohup", "exec", "sudo", "env", "!", "{")
_SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_DIGITS = 9
_LONGEST = 1 << 16
"""Maximum length of a word, so that a malicious script cannot grow without limit."""


@dataclass
class ShellCommand:
    """A command with its environment variables."""

    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    line: int = 1


def read_commands(text: str) -> list[ShellCommand]:
    """Return the commands of a script, or of one line."""
    return list(_Script(text.replace("\r\n", "\n")).commands())


class _Script:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._variables: dict[str, list[str]] = {}
        self._exported: dict[str, str] = {}
        self._argv: list[str] = []
        self._started = 1
        self._word: str | None = None
        self._array: tuple[str, list[str]] | None = None
        """The name of the array that is being read, and the words before it."""
        self._drop = False
        """Whether the next word is the file of a redirection."""

    def commands(self) -> Iterator[ShellCommand]:
        """Yield the commands that are not assignments."""
        while self._at < len(self._text):
            if self._step() and (found := self._finished()):
                yield found
        self._end_word()
        if self._array is None and (found := self._finished()):
            yield found

    def _step(self) -> bool:
        """Read one character or quoted string; return True where a command ends."""
        letter = self._text[self._at]
        self._at += 1
        if letter == "\n":
            self._line += 1
        if letter in "\n;&|()":
            return self._separator(letter)
        if letter in " \t":
            self._end_word()
        elif letter == "#" and self._word is None:
            self._at = self._find("\n")
        elif letter in "<>":
            self._redirect()
        else:
            self._part(letter)
        return False

    def _part(self, letter: str) -> None:
        if letter == "\\":
            following = self._text[self._at : self._at + 1]
            self._at += 1
            if following == "\n":
                self._line += 1
                return
            self._add(following)
        elif letter == "'":
            end = self._find("'")
            self._add(self._text[self._at : end])
            self._line += self._text.count("\n", self._at, end)
            self._at = end + 1
        elif letter == '"':
            self._quoted()
        elif letter == "$":
            self._dollar()
        else:
            self._add(letter)

    def _separator(self, letter: str) -> bool:
        previous = self._text[self._at - 2 : self._at - 1]
        if letter == "(" and self._word is not None and self._word.endswith("="):  # NAME=(a b c)
            self._array, self._argv, self._word = (self._word[:-1], self._argv), [], None
            return False
        if self._array is not None:
            self._end_word()
            if letter == ")":
                name, outer = self._array
                self._variables[name], self._argv, self._array = self._argv, outer, None
            return False
        if letter == "&" and previous == ">":
            return False  # 2>&1: what follows is no command
        self._end_word()
        return True

    def _redirect(self) -> None:
        heredoc = _HEREDOC.match(self._text, self._at - 1)
        if self._word is not None and self._word.isdecimal():
            self._word = None
        self._end_word()
        if heredoc is not None:
            end = re.compile(rf"^\s*{heredoc[2]}\s*$", re.MULTILINE).search(self._text, heredoc.end())
            stop = end.end() if end else len(self._text)
            self._line += self._text.count("\n", self._at, stop)
            self._at = stop
            return
        self._drop = True

    def _quoted(self) -> None:
        self._add("")
        while self._at < len(self._text) and self._text[self._at] != '"':
            letter = self._text[self._at]
            self._at += 1
            if letter == "\n":
                self._line += 1
            if letter == "\\" and self._text[self._at : self._at + 1] in ('"', "\\", "$", "`", "\n"):
                following = self._text[self._at]
                self._at += 1
                self._line += following == "\n"
                self._add("" if following == "\n" else following)
            elif letter == "$":
                self._dollar(quoted=True)
            else:
                self._add(letter)
        self._at += 1

    def _dollar(self, *, quoted: bool = False) -> None:
        """Replace a variable that the script sets; keep the others, and what it computes, as they are written."""
        if self._text[self._at : self._at + 1] == "(":
            start, depth = self._at - 1, 0
            while self._at < len(self._text):
                depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
                self._at += 1
                if depth == 0:
                    break
            self._add(self._computed(self._text[start : self._at]))
            return
        found = _VARIABLE.match(self._text, self._at - 1)
        if found is None:
            self._add("$")
            return
        self._at = found.end()
        values = self._variables.get(found[1] or found[4])
        if values is None:
            self._add(found[3] if found[3] is not None else f"${{{found[1] or found[4]}}}")
        elif quoted and not found[2]:
            self._add(" ".join(values))
        else:
            parts = values if quoted else [part for value in values for part in value.split()]
            for number, part in enumerate(parts):
                if number:
                    self._end_word()
                self._add(part)

    def _computed(self, text: str) -> str:
        """Return the number of `$(expr 16 / $N)` and `$((16 / N))`; anything else as it is written."""
        found = re.fullmatch(r"\$\(\((.*)\)\)|\$\(expr (.*)\)", text)
        if found is None:
            return text
        terms = [self._number(word) for word in re.findall(r"[\w${}]+|[-+*/]", found[1] or found[2])]
        total: int | None = None
        for sign, operand in zip(["+", *terms[1::2]], terms[0::2], strict=False):
            if (
                sign not in _SIGNS
                or not operand.isdecimal()
                or len(operand) > _DIGITS
                or (sign == "/" and not int(operand))
            ):
                return text
            total = _SIGNS[sign](total or 0, int(operand))
        return text if total is None or len(terms) % 2 == 0 else str(total)

    def _number(self, word: str) -> str:
        values = self._variables.get(word.strip("${}"))
        return values[0] if values else word

    def _add(self, text: str) -> None:
        if self._word is None and not self._argv:
            self._started = self._line
        self._word = (self._word or "") + text
        if len(self._word) > _LONGEST:
            raise ConfigError(f"Line {self._line}: a word of the script is longer than {_LONGEST:,} characters.")

    def _end_word(self) -> None:
        if self._word is not None and not self._drop:
            self._argv.append(self._word)
        self._drop = self._drop and self._word is None
        self._word = None

    def _find(self, what: str) -> int:
        found = self._text.find(what, self._at)
        return len(self._text) if found < 0 else found

    def _finished(self) -> ShellCommand | None:
        """Return the command that was read; where it is only assignments, keep the variables."""
        argv, self._argv = self._argv, []
        self._drop = False
        while argv and argv[0] in _KEYWORDS:
            del argv[0]
        exports = bool(argv) and argv[0] in ("export", "declare", "local", "readonly")
        if exports:
            del argv[0]
        environment = dict(self._exported)
        while argv and (found := _ASSIGNMENT.fullmatch(argv[0])):
            environment[found[1]] = found[2]
            del argv[0]
        if argv and not exports:
            return ShellCommand(argv, environment, self._started)
        self._variables.update({name: [value] for name, value in environment.items()})
        if exports:
            self._exported = environment
        return None
