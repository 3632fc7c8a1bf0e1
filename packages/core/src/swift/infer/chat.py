"""A conversation on the terminal, and the commands that are for swift and not for the model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from swift.contracts import Sampling
from swift.data.conversation import Unusable
from swift.data.images import measure
from swift.data.media import Medium
from swift.errors import UsageError
from swift.infer.answers import ChatEngine
from swift.infer.image_messages import question_with, written
from swift.infer.questions import with_system
from swift.terminal import waiting
from swift.untrusted import check_unicode

COMMANDS = {
    "/help": "show these commands",
    "/system TEXT": "give the model a system message, and begin anew; without a text show the one in force",
    "/image FILE": "show the model an image with the next question; may be repeated",
    "/clear": "forget the conversation",
    "/save FILE": "write the conversation to a file, as a line of JSON that swift sft reads",
    "/exit": "leave; so do /quit, exit, quit and Ctrl-D",
}
_LEAVE = ("/exit", "/quit", "exit", "quit")


def converse(chat_engine: ChatEngine, sampling: Sampling) -> None:
    """Ask, answer, remember, until the user leaves."""
    interactive = sys.stdin.isatty()
    if interactive:
        sys.stdout.write("/help shows the commands; /exit or Ctrl-D leaves.\n")
    talk = _Conversation(chat_engine)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise UsageError("What was typed is not UTF-8 text.", hint="Write it in UTF-8.") from None
        check_unicode(line, "What was typed", UsageError)
        if line in _LEAVE:
            return
        if _is_command(line):
            sys.stderr.write("".join(f"{each}\n" for each in talk.command(line)))  # answers alone on stdout
        elif line:
            _print_answer(talk.answer(line, sampling), chat_engine.name)


def _print_answer(pieces: Iterator[str], name: str) -> None:
    """Print an answer as it comes; a long question is read for a while before its first word."""
    with waiting(f"Waiting for {name}"):
        first = next(pieces, "")
    for piece in chain([first], pieces):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _is_command(line: str) -> bool:
    """Whether a line is for swift: `/word`, but not a path such as /etc/hosts."""
    word = line.split(maxsplit=1)[0] if line else ""
    return word.startswith("/") and "/" not in word[1:]


class _Conversation:
    """The conversation so far."""

    def __init__(self, chat_engine: ChatEngine) -> None:
        self._chat_engine = chat_engine
        self._system: str | None = None
        self._messages: list[dict[str, Any]] = []
        """What the model is told; empty again after each answer of a model without a chat template."""
        self._record: list[dict[str, Any]] = []
        self._shown: list[Path] = []
        """Images of the next question."""

    def answer(self, words: str, sampling: Sampling) -> Iterator[str]:
        """Yield the pieces of an answer."""
        question = question_with(words, self._shown)
        self._shown.clear()
        self._messages.append(question)
        answer = ""
        for piece in self._chat_engine.stream(with_system(self._messages, self._system), sampling):
            answer += piece
            yield piece
        answered = {"role": "assistant", "content": answer}
        self._record += [question, answered]
        if self._chat_engine.multi_turn:
            self._messages.append(answered)
        else:
            self._messages.clear()

    def command(self, typed: str) -> list[str]:
        """Do what a command says; returns the lines to show."""
        word, _, text = typed.partition(" ")
        commands: dict[str, Callable[[str], list[str]]] = {
            "/help": lambda _: _listed(),
            "/system": self._set_system,
            "/image": self._show,
            "/clear": self._clear,
            "/save": self._save,
        }
        if word not in commands:
            return [f"There is no command {word}; the model was not asked.", *_listed()]
        return commands[word](text.strip())

    def _set_system(self, text: str) -> list[str]:
        if not text:
            return [f"System message: {self._system or 'that of the run or of --system, if there is one'}"]
        if not self._chat_engine.multi_turn:
            return ["This model has no chat template, and so no place for a system message."]
        self._clear("")
        self._system = text
        return ["The conversation begins anew with this system message."]

    def _show(self, name: str) -> list[str]:
        if not name:
            return ["Which one? Type: /image FILE"]
        if not self._chat_engine.reads_images:
            return [f"{self._chat_engine.name} reads text alone."]
        path = Path(name).expanduser().absolute()
        try:
            seen = measure(Medium(str(path)), path.parent)
        except Unusable as unusable:
            return [f"{unusable.detail}."]
        self._shown.append(path)
        return [f"{path.name}, {seen.width}×{seen.height} pixels, goes with the next question."]

    def _clear(self, _: str) -> list[str]:
        self._messages.clear()
        self._record.clear()
        self._shown.clear()
        return ["Forgotten."]

    def _save(self, name: str) -> list[str]:
        if not name:
            return ["Where to? Type: /save FILE"]
        if not self._record:
            return ["Nothing has been said yet."]
        path = Path(name).expanduser()
        line = json.dumps({"messages": written(with_system(self._record, self._system))}, ensure_ascii=False)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            return [f"{path} cannot be written: {error.strerror}."]
        return [f"Added to {path}."]


def _listed() -> list[str]:
    return [f"  {command:<13} {text}" for command, text in COMMANDS.items()]
