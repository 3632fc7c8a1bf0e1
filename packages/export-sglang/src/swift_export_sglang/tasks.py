"""Tasks of the models that SGLang serves."""

from __future__ import annotations

GENERATES = "causal_lm"
EMBEDDING = "embedding"
TASKS = frozenset({GENERATES, EMBEDDING})
"""Values of `model.task`."""
