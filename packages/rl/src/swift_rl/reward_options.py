"""Options of rewards."""

from __future__ import annotations

from swift.config.sections import Section


class RewardOptions(Section):
    """Which rewards score the answers, and within which limits they work."""
