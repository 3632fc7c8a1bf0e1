"""Chat templates: a conversation as text, and which stretches of it are the assistant's.

What is learned must be what the model will be asked for: at inference it sees the conversation so far, rendered for
generation, and continues from there. So a turn may be learned only where that rendering is a prefix of the text. A
template that rewrites earlier turns (some drop the reasoning of all but the last) has no single text in which this
holds for every turn; then the conversation is laid out as several texts, each with the turns for which it holds. A
template whose rendering for generation is not even a prefix of the same conversation with the answer is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError

from swift.data.conversation import (
    REASONING_KEYS,
    Conversation,
    Message,
    Unusable,
    media_part,
    parts_of,
    strings_of,
    text_part,
)
from swift.data.rendering import Beginnings, Renderer
from swift.data.text import Rendered, Span
from swift.errors import DataError, SwiftError

_PROBE = "0123456789"
_READ = frozenset({"role", "content", "tool_calls"})
"""Keys of messages that are checked by themselves."""
_LINKS = frozenset({"name", "tool_call_id"})
"""Keys that tie the result of a tool to its call; most templates rely on the order instead."""


@dataclass
class Omissions:
    """Record of what a chat template leaves out of samples that can be used all the same."""

    keys: dict[str, str] = field(default_factory=dict)
    """Keys of messages that it does not write, and where the first of each is."""
    reasoning: set[str] = field(default_factory=set)
    """Rows whose earlier turns are learned without their reasoning."""


class ChatTemplate:
    """The chat template of a tokenizer, with fixed arguments."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any], *, parts: bool = False) -> None:
        """Take a template of a tokenizer; with `parts` it may be one that writes nothing but lists of parts."""
        self._tokenizer = tokenizer
        self._parts = False
        self._renderer = Renderer(tokenizer, arguments)
        self.limits = self._renderer.limits
        """Stops a template that never ends: around any number of renderings."""
        self._source = str(tokenizer.chat_template)
        self._written: dict[str, str] = {}
        self._omissions = Omissions()
        self._known_keys: set[tuple[str, str]] = set()
        """Roles with a key that the template writes."""
        self._key_sets: set[frozenset[tuple[str, str]]] = set()
        with self.limits():
            question = {"role": "user", "content": _PROBE}
            # Some templates know parts alone.
            self._parts = parts and _PROBE not in (self._writes([question], (), "Before the first row") or "")
            self._after_turn = self._probe_end()

    @property
    def ends_turns(self) -> bool:
        """Whether a special token ends the assistant's turn, so that the model can learn to stop."""
        return self._after_turn is not None

    def render(self, conversation: Conversation, turns: Sequence[int], location: str) -> list[Rendered]:
        """Return texts in which the assistant's messages at the indices `turns` can be learned; mostly a single one."""
        self._check_written(conversation)
        with _refusals():
            text, beginning = self._renderer.render(self._spelled(conversation.messages), conversation.tools, location)
            self._check_rendered(conversation, text)
            rest = [self._turn(conversation, index, text, beginning, location) for index in turns]
            learned = {at: until for at, (until, _) in zip(turns, rest, strict=True)}
            self._check_keys(conversation, text, learned, location)
        sequences: list[Rendered] = []
        while rest or not sequences:
            fits = [until is text or text.startswith(until[: span.end]) for until, span in rest]
            sequences.append(Rendered(text, tuple(span for (_, span), fit in zip(rest, fits, strict=True) if fit)))
            rest = [turn for turn, fit in zip(rest, fits, strict=True) if not fit]
            text = rest[-1][0] if rest else ""
        return sequences[::-1]

    def prompt(self, conversation: Conversation, location: str) -> Rendered:
        """Return the text up to where the assistant is about to speak; nothing of it is learned."""
        self._check_written(conversation)
        with _refusals():
            messages = self._spelled(conversation.messages)
            text = self._renderer.text(messages, conversation.tools, location, answering=True)
            self._check_rendered(conversation, text)
            self._check_keys(conversation, text, None, location)
        return Rendered(text, ())

    def take_omissions(self) -> Omissions:
        """Return what was left out since the last call."""
        taken, self._omissions = self._omissions, Omissions()
        return taken

    def written(self, kind: str) -> str:
        """Return what the template writes for an image, video or audio between two texts of a message."""
        if kind not in self._written:
            probe = text_part(_PROBE)
            message = {"role": "user", "content": [probe, media_part(kind), probe]}
            with _refusals():
                text = self._renderer.text([message], (), "Before the first row")
            _, *between, _ = text.split(_PROBE)
            if len(between) != 1:
                raise Unusable("left out by the template", f"the chat template does not say what stands for the {kind}")
            self._written[kind] = between[0]
        return self._written[kind]

    def _turn(
        self, conversation: Conversation, index: int, whole: str, beginning: Beginnings, location: str
    ) -> tuple[str, Span]:
        """Return the text up to the end of a turn, and which characters of it are the assistant's."""
        prompt = beginning(index, True)
        last = index + 1 == len(conversation.messages)
        text = whole if last else beginning(index + 1, False)
        if not text.startswith(prompt):
            raise _not_prefix_stable(prompt, text, location)
        end = len(text)
        if self._after_turn and text.endswith(self._after_turn):
            end -= len(self._after_turn)
        if end <= len(prompt):
            detail = f"message {index + 1}, the assistant's, is not in the rendered text"
            raise Unusable("left out by the template", detail)
        return text, Span(len(prompt), end, conversation.weights[index])

    def _spelled(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the template reads them: texts, or parts of which some are texts."""
        if not self._parts:
            return list(messages)
        return [{**message, "content": parts_of(message) or [text_part(message["content"])]} for message in messages]

    def _probe_end(self) -> str | None:
        """Return the text that the template puts after the token that ends a turn.

        None when no special token ends it.
        """
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        text = self._writes(messages, (), "Before the first row")
        if text is None:  # a template for other conversations than this one: nothing is taken off its turns
            return ""
        tail = text.rpartition(_PROBE)[2]
        found = [(tail.find(token), -len(token), token) for token in special_tokens(self._tokenizer) if token in tail]
        if not found:
            return None
        start, _, token = min(found)
        return tail[start + len(token) :]

    def _check_written(self, conversation: Conversation) -> None:
        """Templates pass over what they do not know without a word."""
        if conversation.tools and "tools" not in self._source:
            raise _left_out("the chat template does not write tools")
        if "tool_calls" not in self._source and any("tool_calls" in message for message in conversation.messages):
            raise _left_out("the chat template does not write tool calls")

    def _check_keys(
        self, conversation: Conversation, text: str, learned: Mapping[int, str] | None, location: str
    ) -> None:
        """Look for keys of messages without which the template would write the same.

        Reasoning must be in what is learned of its message, whose texts up to its end are in `learned` (None for a
        prompt), and in the last round; templates may leave it out of earlier turns, as they do at inference. Other
        keys are looked at once for each set of them.
        """
        if all(len(message) <= 2 for message in conversation.messages):
            return
        keys = set()
        for index, message in enumerate(conversation.messages):
            role = message["role"]
            keys |= {(role, key) for key, value in message.items() if key not in _READ and _holds_something(value)}
            if role == "tool":
                keys -= {(role, key) for key in _LINKS}
            elif role == "assistant":
                keys -= {(role, key) for key in REASONING_KEYS}
                self._check_reasoning(conversation, index, text, learned, location)
        if not keys or (key_set := frozenset(keys)) in self._key_sets:
            return
        self._key_sets.add(key_set)
        for role, key in sorted(keys - self._known_keys):
            without = [
                _without(message, key) if message["role"] == role else message for message in conversation.messages
            ]
            if self._writes(without, conversation.tools, location, answering=learned is None) == text:
                self._omissions.keys.setdefault(key, location)
            else:
                self._known_keys.add((role, key))

    def _check_reasoning(
        self, conversation: Conversation, index: int, text: str, learned: Mapping[int, str] | None, location: str
    ) -> None:
        message = conversation.messages[index]
        held = {key: message[key] for key in REASONING_KEYS if _holds_something(message.get(key))}
        if not held:
            return
        is_learned = learned is not None and index in learned
        messages = conversation.messages[: index + 1] if is_learned else conversation.messages
        expected = learned[index] if learned is not None and is_learned else text
        written = []
        for key, value in held.items():
            without = [*messages[:index], _without(message, key), *messages[index + 1 :]]
            if self._writes(without, conversation.tools, location, answering=learned is None) != expected:
                written.append(value)
        dropped = next((key for key, value in held.items() if value not in written), None)
        if dropped is None:
            return
        if is_learned or index >= conversation.last_round:
            raise _left_out(f"the chat template does not write the {dropped!r} of message {index + 1}")
        self._omissions.reasoning.add(location)

    def _writes(
        self, messages: Sequence[Message], tools: Sequence[Any], location: str, *, answering: bool = False
    ) -> str | None:
        """Return what the template writes; None where it refuses the messages."""
        try:
            with _refusals():
                return self._renderer.text(self._spelled(messages), tools, location, answering=answering)
        except Unusable:
            return None

    def _check_rendered(self, conversation: Conversation, text: str) -> None:
        for index, message in enumerate(conversation.messages):
            if message["role"] not in ("system", "user"):
                continue
            if any(each.strip() not in text for each in strings_of(message)):
                raise Unusable(
                    "left out by the template",
                    f"message {index + 1}, the {message['role']}'s, is not in the rendered text",
                )


def _holds_something(value: object) -> bool:
    """Return whether a value is one that leaving out can lose: no empty string, list or object, 0 or false."""
    return value is not None and value not in ("", 0, [], {}, ())


def _without(message: Message, key: str) -> Message:
    return {name: value for name, value in message.items() if name != key}


def _left_out(what: str) -> Unusable:
    return Unusable("left out by the template", f"{what}; another template is given by --model.chat_template FILE")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn whatever a template raises about a conversation into a reason why it cannot be used."""
    try:
        yield
    except (SwiftError, Unusable):
        raise
    except (TemplateError, TypeError) as error:  # TypeError: an operation on what this conversation lacks
        raise Unusable("refused by the chat template", str(error)) from error
    except Exception as error:
        raise Unusable("refused by the chat template", f"{type(error).__name__}: {error}") from error


def special_tokens(tokenizer: Any) -> set[str]:
    """Return the texts of all tokens that are never part of what somebody says."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return added | set(tokenizer.all_special_tokens)


def _not_prefix_stable(prompt: str, text: str, location: str) -> DataError:
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, text, strict=False)))
    return DataError(
        f"{location}: the chat template is not prefix-stable, so training text differs from the prompts at inference: "
        f"with the generation prompt the text continues with {prompt[at : at + 40]!r}, with the completion "
        f"{text[at : at + 40]!r}, both after {text[max(0, at - 40) : at]!r}.",
        hint="Give a template that only ever appends (--model.chat_template FILE), or change its arguments "
        "(--data.template_kwargs).",
    )
