"""The tokens of a conversation of several turns: completions stay as sampled, and only what follows is rendered."""

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
    """A chat template that changes earlier completions."""


@dataclass(frozen=True)
class Rendering:
    """A conversation up to where the model speaks."""

    text: str
    """As the template writes it."""
    token_ids: list[int]
    """What is new in it, as tokens."""


class TurnRenderer:
    """Renders what follows a completion with the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any], *, keep: bool) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "An environment takes several turns, and the tokenizer has no chat template.",
                hint="Pass one with --model.chat_template FILE.",
            )
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer, arguments)
        self._keep = keep

    def check(self) -> None:
        """Refuse a template that cannot continue a plain conversation, or one with reasoning where it knows of any."""
        question, source = [{"role": "user", "content": "?"}], "Before the first episode"
        before = self.first(question, (), source)
        reasoned = (
            [f"<think>\n{_PROBE}\n</think>\n\n{_PROBE}"] if "</think>" in str(self._tokenizer.chat_template) else []
        )
        for completion in (_PROBE, *reasoned):
            self.following(before.text, question, completion, [{"role": "user", "content": "!"}], (), source)

    def first(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], source: str) -> Rendering:
        """Return a conversation that an episode begins with."""
        text = self._text(messages, tools, source)
        return Rendering(text, self._ids(text))

    def following(
        self,
        before: str,
        messages: Sequence[Mapping[str, Any]],
        completion: str,
        observed: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        source: str,
        *,
        ended: int | None = None,
    ) -> Rendering:
        """Return what follows a completion to `messages`, which the template wrote as `before`.

        `ended` is the token that ended the completion, which is there already.
        """
        whole = self._text([*messages, {"role": "assistant", "content": completion}, *observed], tools, source)
        rest = _after(whole, before, completion)
        if rest is None:
            if not self._keep:
                raise _drift(whole, before + completion, source)
            probed = self._text([*messages, {"role": "assistant", "content": _PROBE}, *observed], tools, source)
            rest = probed.rpartition(_PROBE)[2]
        end = "" if ended is None else str(self._tokenizer.decode([ended]))
        return Rendering(whole, self._ids(rest.removeprefix(end) if end else rest))

    def _text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], source: str) -> str:
        with self._renderer.limits():
            try:
                return self._renderer.text([dict(each) for each in messages], tools, source, answering=True)
            except DataError:
                raise
            except Exception as problem:  # templates raise any exception, for example for unknown roles
                raise DataError(
                    f"{source}: the chat template refuses the conversation: {problem}",
                    hint="Return messages with roles that the template knows.",
                ) from None

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _after(whole: str, before: str, completion: str) -> str | None:
    """Return what comes after the completion; None where it is written otherwise, but for spaces around it."""
    if whole.startswith(before + completion):
        return whole[len(before) + len(completion) :]
    if not whole.startswith(before.rstrip()):
        return None
    written = whole[len(before.rstrip()) :].lstrip()
    return written[len(completion.strip()) :] if written.startswith(completion.strip()) else None


def _drift(whole: str, expected: str, source: str) -> TemplateDrift:
    apart = next(
        (at for at, (one, other) in enumerate(zip(whole, expected, strict=False)) if one != other),
        min(len(whole), len(expected)),
    )
    return TemplateDrift(
        f"{source}: the chat template changes an earlier completion: "
        f"{whole[apart : apart + _SHOWN]!r} instead of {expected[apart : apart + _SHOWN]!r}. Later turns "
        "would not begin with the sampled tokens.",
        hint="Pass a template that keeps earlier completions unchanged (--model.chat_template FILE), or keep the "
        "sampled tokens with --template_drift keep.",
    )
