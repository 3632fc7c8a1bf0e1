"""Flags that plugins add (`swift.vocabularies`). Importing this module imports nothing of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.contracts import FlagTopic


def flag_topics() -> tuple[FlagTopic, ...]:
    """Return the flags of all vocabularies."""
    from swift.plugins import vocabularies

    return vocabularies.flag_topics()
