"""The engine `vllm`, and the tasks that it serves."""

from __future__ import annotations

from swift.contracts import HOOK_API, TOKEN_SCORES, EngineLibrary
from swift.hookspecs import lazy_hook
from swift_export_vllm.interpreter import DISTRIBUTIONS

GENERATES = "causal_lm"
EMBEDDING = "embedding"
TASKS = frozenset({GENERATES, EMBEDDING, "seq_cls", "reward"})
"""Values of `model.task`; no endpoint returns a value of every token."""


class VllmEngine:
    """`--engine vllm`: continuous batching, paged attention, adapters next to their base model, an OpenAI server."""

    HOOK_API = HOOK_API
    tasks = TASKS | {TOKEN_SCORES}
    """What `swift serve` offers: of two rows of the unembedding, vLLM makes the head of a reranker."""
    library = EngineLibrary("vllm", {name: f"swift-core[{name}]" for name in DISTRIBUTIONS})
    swift_open_engine = lazy_hook("swift_export_vllm.engine:open_engine")
    swift_serve = lazy_hook("swift_export_vllm.serve:serve")
