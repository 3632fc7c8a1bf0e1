"""Tasks of the models that vLLM serves, and how it is asked for each."""

from __future__ import annotations

from swift.contracts import TOKEN_SCORES

GENERATES = "causal_lm"
EMBEDDING = "embedding"
TASKS = frozenset({GENERATES, EMBEDDING, "seq_cls", "reward"})
"""Values of `model.task`; no endpoint returns a value of every token."""
SERVED = TASKS | {TOKEN_SCORES}
"""What `swift serve` offers: of two rows of the unembedding, vLLM makes the head of a reranker."""
