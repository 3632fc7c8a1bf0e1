"""Options of the estimators and losses."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from swift.config.sections import Section


class AlgorithmOptions(Section):
    """How rewards become advantages, and advantages a loss."""

    num_iterations: Annotated[int, Field(ge=1)] = Field(1, description="How often each answer is learned from")
