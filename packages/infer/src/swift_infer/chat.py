"""Conversations on the terminal, and their commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from swift.contracts import Sampling
from swift.data.encodings import Unusable
from swift.data.images import measure
from swift.data.media import Medium
from swift.errors import UsageError
from swift.terminal import waiting
from swift.untrusted import check_unicode
from swift_infer.image_messages import question_with, written
from swift_infer.questions import with_system
from swift_infer.response import ChatEngine

COMMANDS = {
    "/help": "show these commands",
    "/system TEXT": "set the system message and start over; without TEXT show the current one",
    "/image FILE": "attach an image to the next message; may be repeated",
    "/clear": "clear the conversation",
    "/save FILE": "append the conversation to a JSON Lines file that swift sft can read",
    "/exit": "exit; same as /quit, exit, quit and Ctrl-D",
}
_LEAVE = ("/exit", "/quit", "exit", "quit")


def converse(chat_engine: ChatEngine, sampling: Sampling) -> None:
    """Run a conversation until the user exits."""
    interactive = sys.stdin.isatty()
    if interactive:
        sys.stdout.write("/help lists the commands, /exit or Ctrl-D exits.\n")
    conversation = _Conversation(chat_engine)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise UsageError("The input is not valid UTF-8.", hint="Set the terminal to UTF-8.") from None
        check_unicode(line, "The input", UsageError)
        if line in _LEAVE:
            return
        if _is_command(line):
            sys.stderr.write("".join(f"{each}\n" for each in conversation.command(line)))  # stdout has responses only
        elif line:
            _print_response(conversation.respond(line, sampling), chat_engine.name)


def _print_response(pieces: Iterator[str], name: str) -> None:
    """Print a response while it is generated."""
    with waiting(f"Waiting for {name}"):
        first = next(pieces, "")
    for piece in chain([first], pieces):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def _is_command(line: str) -> bool:
    """Return whether a line is a command: `/word`, but not a path such as /etc/hosts."""
    word = line.split(maxsplit=1)[0] if line else ""
    return word.startswith("/") and "/" not in word[1:]


class _Conversation:
    """The conversation so far."""

    def __init__(self, chat_engine: ChatEngine) -> None:
        self._chat_engine = chat_engine
        self._system: str | None = None
        self._messages: list[dict[str, Any]] = []
        """The model's context; cleared after each response of a model without a chat template."""
        self._record: list[dict[str, Any]] = []
        self._shown: list[Path] = []
        """Images of the next message."""

    def respond(self, text: str, sampling: Sampling) -> Iterator[str]:
        """Yield the response to a message in pieces."""
        question = question_with(text, self._shown)
        self._shown.clear()
        self._messages.append(question)
        response = ""
        for piece in self._chat_engine.stream(with_system(self._messages, self._system), sampling):
            response += piece
            yield piece
        message = {"role": "assistant", "content": response}
        self._record += [question, message]
        if self._chat_engine.multi_turn:
            self._messages.append(message)
        else:
            self._messages.clear()

    def command(self, typed: str) -> list[str]:
        """Run a command and return the lines to show."""
        word, _, text = typed.partition(" ")
        commands: dict[str, Callable[[str], list[str]]] = {
            "/help": lambda _: _listed(),
            "/system": self._set_system,
            "/image": self._show,
            "/clear": self._clear,
            "/save": self._save,
        }
        if word not in commands:
            return [f"Unknown command {word}. Nothing was sent to the model.", *_listed()]
        return commands[word](text.strip())

    def _set_system(self, text: str) -> list[str]:
        if not text:
            return [f"System message: {self._system or 'the one of the run or of --system, if any'}"]
        if not self._chat_engine.multi_turn:
            return ["This model has no chat template, so it takes no system message."]
        self._clear("")
        self._system = text
        return ["System message set. The conversation starts over."]

    def _show(self, name: str) -> list[str]:
        if not name:
            return ["Missing FILE. Type: /image FILE"]
        if not self._chat_engine.reads_images:
            return [f"{self._chat_engine.name} does not read images."]
        path = Path(name).expanduser().absolute()
        try:
            seen = measure(Medium(str(path)), path.parent)
        except Unusable as unusable:
            return [f"{unusable.detail}."]
        self._shown.append(path)
        return [f"{path.name}, {seen.width}×{seen.height} pixels, is attached to the next message."]

    def _clear(self, _: str) -> list[str]:
        self._messages.clear()
        self._record.clear()
        self._shown.clear()
        return ["Conversation cleared."]

    def _save(self, name: str) -> list[str]:
        if not name:
            return ["Missing FILE. Type: /save FILE"]
        if not self._record:
            return ["The conversation is empty."]
        path = Path(name).expanduser()
        line = json.dumps({"messages": written(with_system(self._record, self._system))}, ensure_ascii=False)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            return [f"Could not write {path}: {error.strerror}."]
        return [f"Appended to {path}."]


def _listed() -> list[str]:
    return [f"  {command:<13} {text}" for command, text in COMMANDS.items()]
