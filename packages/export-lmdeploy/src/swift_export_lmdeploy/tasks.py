"""Tasks of the models that LMDeploy serves."""

from __future__ import annotations

TASKS = frozenset({"causal_lm"})
"""Values of `model.task`."""
