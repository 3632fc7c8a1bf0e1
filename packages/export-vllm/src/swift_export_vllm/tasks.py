"""Tasks of the models that vLLM serves, and how it is asked for each."""

from __future__ import annotations

GENERATES = "causal_lm"
EMBEDDING = "embedding"
TASKS = frozenset({GENERATES, EMBEDDING, "seq_cls", "reward"})
"""Values of `model.task`; no endpoint returns a value of every token."""
