"""Third-party flags without a key, which vocabularies explain: for the commands that train, and for each other one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from swift.config.flags import Arity
from swift.config.meanings import Default, Meaning
from swift.parsing.plugin_flags import flag_topics

if TYPE_CHECKING:
    from swift.contracts import FlagTopic


def third_party_flags() -> dict[str, Meaning]:
    """Return flag → meaning for the commands that train."""
    return _of_topics(flag_topics(), "")


def third_party_flag(flag: str) -> Meaning | None:
    """Return the meaning of a third-party flag of the commands that train; None for an unknown one."""
    return third_party_flags().get(flag)


@lru_cache(maxsize=64)
def _of_topics(topics: tuple[FlagTopic, ...], command: str) -> dict[str, Meaning]:
    return {
        flag: meaning
        for topic in topics
        if command in topic.commands or (not command and not topic.commands)
        for flags, meaning in topic.meanings.items()
        for flag in flags
    }


@dataclass(frozen=True)
class CommandFlags:
    """Third-party flags that one command knows."""

    meanings: Mapping[str, Meaning]
    arities: Mapping[str, Arity]


def flags_of_command(command: str, *, but: Collection[str] = ()) -> CommandFlags:
    """Return the third-party flags that a command knows, without its own (`but`)."""
    known = _of_topics(flag_topics(), command) if command else {}
    meanings = {flag: meaning for flag, meaning in known.items() if flag not in but}
    return CommandFlags(meanings, {flag: _arity(flag, meaning) for flag, meaning in meanings.items()})


_SWITCHES = ("merge_lora", "load_args", "stream")


def _arity(flag: str, meaning: Meaning) -> Arity:
    """Return 'switch' where a positional argument may follow the flag: `swift infer --merge_lora MODEL`."""
    on_or_off = isinstance(meaning, Default) and bool({"true", "false"} & set(meaning.values))
    return "switch" if on_or_off or flag in _SWITCHES else "optional"
