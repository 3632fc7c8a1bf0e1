"""Tasks of the models that vLLM serves, and how it is asked for each."""

from __future__ import annotations

GENERATES = "causal_lm"
EMBEDDING = "embedding"
GENERATIVE_RERANKER = "generative_reranker"
TASKS = frozenset({GENERATES, EMBEDDING, "seq_cls", "reward"})
"""Values of `model.task`; no endpoint returns a value of every token."""
SERVED = TASKS | {GENERATIVE_RERANKER}
"""What `swift serve` offers: of the two answers of a language model, vLLM makes the head of a reranker."""
