"""Words that every verb understands."""

from __future__ import annotations

from collections.abc import Sequence

HELP = ("-h", "--help")


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether help is wanted instead of the verb's work."""
    return any(word in HELP for word in args)
