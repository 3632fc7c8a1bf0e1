"""The tokens of a conversation that goes on: answers stay as they were drawn, and only what follows is rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.data.rendering import Renderer
from swift.errors import ConfigError, DataError

_PROBE = "0123456789"
_SHOWN = 60
"""Characters of a differing piece in a message."""


class TemplateDrift(DataError):
    """A chat template that writes earlier answers otherwise than they were drawn."""


@dataclass(frozen=True)
class Rendering:
    """A conversation up to where the model speaks."""

    text: str
    """As the template writes it."""
    token_ids: list[int]
    """What is new in it, as tokens."""


class TurnRenderer:
    """Renders what follows an answer with the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any], *, keep: bool) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "An environment takes several turns, and the tokenizer has no chat template.",
                hint="Give one with --model.chat_template FILE",
            )
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer, arguments)
        self._keep = keep

    def check(self) -> None:
        """Refuse a template that cannot continue a plain conversation, or one with reasoning where it knows of any."""
        asked, place = [{"role": "user", "content": "?"}], "Before the first episode"
        before = self.first(asked, (), place)
        reasoned = (
            [f"<think>\n{_PROBE}\n</think>\n\n{_PROBE}"] if "</think>" in str(self._tokenizer.chat_template) else []
        )
        for answer in (_PROBE, *reasoned):
            self.following(before.text, asked, answer, [{"role": "user", "content": "!"}], (), place)

    def first(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], place: str) -> Rendering:
        """Return a conversation that an episode begins with."""
        text = self._text(messages, tools, place)
        return Rendering(text, self._ids(text))

    def following(
        self,
        before: str,
        messages: Sequence[Mapping[str, Any]],
        answer: str,
        observed: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        place: str,
        *,
        ended: int | None = None,
    ) -> Rendering:
        """Return what follows an answer to `messages`, which the template wrote as `before`.

        `ended` is the token that ended the answer, which is there already.
        """
        whole = self._text([*messages, {"role": "assistant", "content": answer}, *observed], tools, place)
        rest = _after(whole, before, answer)
        if rest is None:
            if not self._keep:
                raise _drift(whole, before + answer, place)
            probed = self._text([*messages, {"role": "assistant", "content": _PROBE}, *observed], tools, place)
            rest = probed.rpartition(_PROBE)[2]
        end = "" if ended is None else str(self._tokenizer.decode([ended]))
        return Rendering(whole, self._ids(rest.removeprefix(end) if end else rest))

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], place: str) -> str:
        with self._renderer.limits():
            try:
                return self._renderer.text([dict(each) for each in messages], tools, place, answering=True)
            except DataError:
                raise
            except Exception as problem:  # templates raise what they like, about roles that they do not know, say
                raise DataError(
                    f"{place}: the chat template refuses the conversation: {problem}",
                    hint="An environment says what follows as messages of the roles that the template knows.",
                ) from None

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _after(whole: str, before: str, answer: str) -> str | None:
    """Return what comes after the answer; None where it is written otherwise, but for spaces around it."""
    if whole.startswith(before + answer):
        return whole[len(before) + len(answer) :]
    if not whole.startswith(before.rstrip()):
        return None
    written = whole[len(before.rstrip()) :].lstrip()
    return written[len(answer.strip()) :] if written.startswith(answer.strip()) else None


def _drift(whole: str, expected: str, place: str) -> TemplateDrift:
    apart = next(
        (at for at, (one, other) in enumerate(zip(whole, expected, strict=False)) if one != other),
        min(len(whole), len(expected)),
    )
    return TemplateDrift(
        f"{place}: the chat template writes an earlier answer otherwise than the model did: "
        f"{whole[apart : apart + _SHOWN]!r} instead of {expected[apart : apart + _SHOWN]!r}. What a later turn "
        "begins with would not be what was drawn.",
        hint="Give a template that leaves earlier answers as they are (--model.chat_template FILE), or go on with the "
        "tokens that were drawn: --template_drift keep",
    )
