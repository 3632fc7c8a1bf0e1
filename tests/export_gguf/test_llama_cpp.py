"""llama.cpp computes what transformers does: `pip install xllamacpp`, which no other test needs, and run this file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from test_export_gguf import MODELS, ROPE, exported, model_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift_export_gguf.write import FILE

llama_cpp = pytest.importorskip("xllamacpp")

SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    "linear": ("llama", {"rope_parameters": {"rope_theta": 10000.0, "factor": 4.0, "rope_type": "linear"}}),
    "yarn": ("qwen2", {"rope_parameters": {**ROPE, "rope_type": "yarn"}}),
    "llama3": (
        "llama", {"rope_parameters": {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    ),
}  # fmt: skip
STRINGS = (
    "The quick brown fox jumps over 384,400 dogs, doesn't it?",
    "def f(a):\n    return  a*2\n",
    "<|im_start|>user\nHi there<|im_end|>\n",
)
STEPS = 6
TOLERANCE = 5e-3
"""Of a log-probability: llama.cpp keeps keys and values in 16 bits."""


@pytest.mark.parametrize("name", SCALINGS)
def test_llama_cpp_goes_on_as_transformers_does(tmp_path: Path, name: str) -> None:
    kind, changes = SCALINGS[name]
    folder = model_of(tmp_path / "model", kind, **changes)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    compared = 0
    with served(exported(folder) / FILE) as server:
        for text in STRINGS:
            tokens = tokenizer(text)["input_ids"]
            assert tokenized(server, text) == tokens
            for _ in range(STEPS):
                with torch.no_grad():
                    expected = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1], dim=-1)
                for found in most_likely(server, tokens):
                    assert found["logprob"] == pytest.approx(float(expected[found["id"]]), abs=TOLERANCE)
                    compared += 1
                tokens = [*tokens, int(expected.argmax())]
    assert compared >= 5 * STEPS


@contextmanager
def served(file: Path) -> Iterator[Any]:
    parameters = llama_cpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 256, 1, False
    yield llama_cpp.Server(parameters)


def tokenized(server: Any, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
    request = Request(f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"})
    with urlopen(request) as response:
        found: list[int] = json.load(response)["tokens"]
    return found


def most_likely(server: Any, tokens: list[int]) -> list[dict[str, Any]]:
    """Return the five most likely next tokens; none where llama.cpp shows none, at the end of a text."""
    request = {"prompt": tokens, "n_predict": 1, "temperature": 0, "n_probs": 5, "cache_prompt": False}
    response = server.handle_completions(request)
    choice = (json.loads(response) if isinstance(response, str) else response)["choices"][0]
    shown = (choice["logprobs"] or {}).get("content")
    found: list[dict[str, Any]] = shown[0]["top_logprobs"] if shown else []
    return found
