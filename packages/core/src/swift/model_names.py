"""Short names of models, and the released model that each stands for.

Some names that people type were never released (`qwen3-7b`), or name a model whose code no longer runs with today's
transformers (the first Qwen). Those stand for the nearest one, and `resolve_name` says so. Imports no torch.
"""

from __future__ import annotations

from swift.errors import did_you_mean

_QWEN = (
    "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B",
    "Qwen2.5-0.5B-Instruct", "Qwen2.5-1.5B-Instruct", "Qwen2.5-7B-Instruct", "Qwen2.5-72B-Instruct",
    "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B", "Qwen3-235B-A22B",
)  # fmt: skip
_LLAMA = {
    "2-7b": "Llama-2-7b-hf", "2-13b": "Llama-2-13b-hf", "2-70b": "Llama-2-70b-hf", "3-8b": "Meta-Llama-3-8B",
    "3-70b": "Meta-Llama-3-70B", "3.1-8b": "Llama-3.1-8B", "3.1-70b": "Llama-3.1-70B", "3.1-405b": "Llama-3.1-405B",
    "3.2-1b": "Llama-3.2-1B", "3.2-3b": "Llama-3.2-3B",
}  # fmt: skip
"""Each has two names: `llama-3.1-8b` and `llama3.1-8b`."""
RELEASED = {
    **{name.lower(): f"Qwen/{name}" for name in _QWEN},
    **{f"llama{dash}{size}": f"meta-llama/{name}" for size, name in _LLAMA.items() for dash in ("-", "")},
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gpt2": "openai-community/gpt2",
}
"""Short name → the model of that name."""

NEAREST = {
    "qwen-1.8b": "Qwen/Qwen2.5-1.5B",
    "qwen-7b": "Qwen/Qwen2.5-7B",
    "qwen-14b": "Qwen/Qwen2.5-14B",
    "qwen-72b": "Qwen/Qwen2.5-72B",
    "qwen-7b-chat": "Qwen/Qwen2.5-7B-Instruct",
    "qwen-72b-chat": "Qwen/Qwen2.5-72B-Instruct",
    "qwen/qwen-1_8b": "Qwen/Qwen2.5-1.5B",
    "qwen/qwen-7b": "Qwen/Qwen2.5-7B",
    "qwen/qwen-14b": "Qwen/Qwen2.5-14B",
    "qwen/qwen-72b": "Qwen/Qwen2.5-72B",
    "qwen3-7b": "Qwen/Qwen3-8B",
    "qwen3-72b": "Qwen/Qwen3-32B",
    "llama-7b": "meta-llama/Llama-2-7b-hf",
    "llama-13b": "meta-llama/Llama-2-13b-hf",
    "llama-70b": "meta-llama/Llama-2-70b-hf",
    "llama3-7b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-7b": "meta-llama/Meta-Llama-3-8B",
}
"""Name of a model that transformers does not load → the nearest that it loads."""


def stand_in(name: str) -> tuple[str, str] | None:
    """Return the model used instead of one that transformers does not load, and a note; None for other names."""
    nearest = NEAREST.get(name.lower())
    if nearest is None:
        return None
    return nearest, f"this version of transformers cannot load {name!r}; using the nearest supported model, {nearest}"


def resolve_name(name: str) -> tuple[str, str | None]:
    """Return the path or hub id that `name` stands for, and a note for the user where it isn't `name` itself."""
    key = name.lower()
    if key in RELEASED:
        return RELEASED[key], f"model {name!r} is {RELEASED[key]}"
    return stand_in(name) or (name, None)


def nearest_alias(name: str) -> str:
    """`" Did you mean 'x'?"` for the nearest name of a released model, or an empty string.

    A model that was found under its name is not taken for another, and no name is suggested that stands for another.
    """
    if name in RELEASED.values():
        return ""
    return did_you_mean(name.lower(), RELEASED)
