"""Chat templates at work: what transformers' `apply_chat_template` renders, within limits of time, size and memory.

A template comes with a model from anywhere, and is a program: one that never ends, or that multiplies a text until
the memory is full, must not stop the process that renders it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.runtime import Context

from swift.data.template_turns import TurnsTemplate, turns_template
from swift.errors import DataError, SwiftError
from swift.untrusted import is_unicode, memory_limit, read_text, shown, time_limit

SECONDS = 10.0
"""For one rendering: honest ones take less than a hundredth of it."""
CHARACTERS = 1 << 26
"""Of one rendered text: some twenty million tokens."""
MEMORY = 2 << 30
"""Bytes that rendering may take beyond what the process has."""
_OTHERWISE = "Otherwise."
"""Put after a message to see whether a template writes it."""
_PIECES = 64
"""Pieces of output after which the size is looked at."""


def render_chat(tokenizer: Any, messages: Sequence[Any], *, location: str, **arguments: Any) -> str:
    """Return what `apply_chat_template` makes of one conversation, within the limits; `location` is for messages."""
    guard = Guard(tokenizer)
    with guard.limits():
        return guard.run(location, lambda: str(tokenizer.apply_chat_template(messages, tokenize=False, **arguments)))


def render_prompt(tokenizer: Any, messages: Sequence[Any], *, location: str, **arguments: Any) -> str:
    """Return a conversation that a model is asked; `DataError` where its template refuses it, or leaves its end out."""
    try:
        text = render_chat(tokenizer, messages, location=location, **arguments)
        if not text:
            raise _refusal(tokenizer, location, "renders it as an empty string")
        if (last := _last_text(messages)) and last.strip() not in text:
            other = [*messages[:-1], {**messages[-1], "content": f"{last} {_OTHERWISE}"}]
            if render_chat(tokenizer, other, location=location, **arguments) == text:
                raise _refusal(tokenizer, location, "omits the last message")
    except SwiftError:
        raise
    except Exception as error:  # templates raise what they like
        reason = shown(str(error)) if isinstance(error, TemplateError) else shown(f"{type(error).__name__}: {error}")
        raise _refusal(tokenizer, location, f"cannot render it: {reason}") from error
    return text


def _last_text(messages: Sequence[Any]) -> str:
    """Return the text of the last message; nothing where it has parts, or none."""
    content = messages[-1].get("content") if messages and isinstance(messages[-1], Mapping) else None
    return content if isinstance(content, str) else ""


def _refusal(tokenizer: Any, location: str, what: str) -> DataError:
    return DataError(
        f"{location}: the chat template {template_location(tokenizer)} {what}.",
        hint="Change the messages, or copy the template again.",
    )


def template_location(tokenizer: Any) -> str:
    """Return the file that holds a tokenizer's chat template, where it is one of its folder."""
    folder = Path(str(getattr(tokenizer, "name_or_path", "") or "."))
    file = folder / "chat_template.jinja"
    try:
        own = read_text(file, DataError)
    except DataError:
        return f"of {shown(folder)}"
    return f"in {shown(file)}" if own == tokenizer.chat_template else f"of {shown(folder)}"


Beginnings = Callable[[int, bool], str]
"""The text of so many messages, and whether it goes up to where the assistant's next answer begins."""


class Renderer:
    """Renders conversations with the chat template of a tokenizer and fixed arguments."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments)
        self._variables = {**tokenizer.special_tokens_map, **self._arguments, "documents": None}
        self._globals: dict[str, Any] = {}
        self._guard = Guard(tokenizer)
        self.limits = self._guard.limits
        self._template: Template | None = None
        self._turns: TurnsTemplate | None = None
        with self.limits():
            self._guard.run("Before the first row", self._prepare)

    def text(self, messages: Sequence[Any], tools: Sequence[Any], location: str, *, answering: bool = False) -> str:
        """Return messages as text; with `answering`, up to the start of the assistant's next answer."""
        if self._template is None or not _usual(messages, tools):
            return self._guard.run(location, lambda: self._applied(messages, tools, answering))
        template = self._template
        return self._guard.run(location, lambda: self._written(template, messages, tools, answering))

    def render(self, messages: Sequence[Any], tools: Sequence[Any], location: str) -> tuple[str, Beginnings]:
        """Return a conversation as text, and how to have the texts of its beginnings."""
        if self._turns is not None and _usual(messages, tools):
            turns = self._turns
            marked = self._guard.run(location, lambda: self._written(turns.template, messages, tools, False))
            parts = marked.split(turns.mark)
            if len(parts) == len(messages) + 2:  # fewer where the template leaves the loop
                whole, ends = "".join(parts), list(accumulate(map(len, parts)))
                return whole, lambda count, answering: whole[: ends[count]] + turns.tails[answering]
        whole = self.text(messages, tools, location)
        return whole, lambda count, answering: self.text(messages[:count], tools, location, answering=answering)

    def _prepare(self) -> str:
        try:
            self._template = _compiled(self._tokenizer, self._arguments)
            if self._template is not None:
                environment, source = self._template.environment, self._tokenizer.chat_template
                self._turns = turns_template(environment, source, self._variables)
                self._globals = dict(self._template.globals)
                self._variables = {**self._globals, **self._variables}
        except TemplateError:
            pass  # rendering any conversation says so
        return ""

    def _written(self, template: Template, messages: Sequence[Any], tools: Sequence[Any], answering: bool) -> str:
        variables = {"messages": list(messages), "tools": list(tools) or None, "add_generation_prompt": answering}
        context = Context(
            template.environment, {**self._variables, **variables}, template.name, template.blocks, self._globals
        )
        return _joined(template.root_render_func(context))

    def _applied(self, messages: Sequence[Any], tools: Sequence[Any], answering: bool) -> str:
        arguments = {"tools": list(tools) or None, "add_generation_prompt": answering, **self._arguments}
        return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **arguments))


class Guard:
    """Stops renderings of a tokenizer's chat template that take too much time, text or memory."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._location = ""
        self._begun = 0
        self._under_way = False

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Apply the limits of any number of renderings to the body: they cost nothing for each."""
        with (
            time_limit(SECONDS, self._endless, watch=lambda: self._begun if self._under_way else None),
            memory_limit(MEMORY),
        ):
            yield

    def run(self, location: str, rendering: Callable[[], str]) -> str:
        """Render; `DataError` names the template and the location where it takes too much."""
        self._location = location
        self._begun += 1
        self._under_way = True
        try:
            text = rendering()
            if len(text) > CHARACTERS:
                raise _TooLarge
            if not is_unicode(text):
                raise self._refused("writes an unpaired surrogate")
            return text
        except _TooLarge:
            raise self._refused(f"writes more than {CHARACTERS:,} characters") from None
        except MemoryError:
            raise self._refused(f"takes more than {MEMORY >> 30} GiB of memory") from None
        finally:
            self._under_way = False

    def _endless(self) -> DataError:
        return self._refused(f"has not come to an end within {SECONDS:g} seconds")

    def _refused(self, what: str) -> DataError:
        owner = getattr(self._tokenizer, "name_or_path", "") or "this tokenizer"
        source = str(self._tokenizer.chat_template)
        return DataError(
            f"{self._location}: the chat template of {owner}, which begins {source[:40]!r}, {what}.",
            hint="Give another one with --model.chat_template FILE.",
        )


class _TooLarge(Exception):
    """More text than any conversation has."""


def _joined(pieces: Iterator[str]) -> str:
    taken: list[str] = []
    size = 0
    while True:
        some = list(islice(pieces, _PIECES))
        size += sum(map(len, some))
        if size > CHARACTERS:
            raise _TooLarge
        taken += some
        if len(some) < _PIECES:
            return "".join(taken)


def _usual(messages: Sequence[Any], tools: Sequence[Any]) -> bool:
    """Return whether `apply_chat_template` hands them to the template as they are."""
    return bool(messages) and all(isinstance(each, dict) for each in (*messages, *tools))


def _compiled(tokenizer: Any, arguments: Mapping[str, Any]) -> Template | None:
    """Return the template that `apply_chat_template` renders; None where that might do anything else with it."""
    from transformers import PreTrainedTokenizerBase
    from transformers.utils import chat_template_utils

    kind = type(tokenizer)
    own = any(
        getattr(kind, method, None) is not getattr(PreTrainedTokenizerBase, method)
        for method in ("apply_chat_template", "get_chat_template")
    )
    compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
    render = getattr(chat_template_utils, "render_jinja_template", None)
    if own or not isinstance(tokenizer.chat_template, str) or compile_template is None or render is None:
        return None
    taken = {"messages", *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters}
    if arguments.keys() & (taken | set(inspect.signature(render).parameters)):
        return None
    template: Template = compile_template(tokenizer.chat_template)
    return template
