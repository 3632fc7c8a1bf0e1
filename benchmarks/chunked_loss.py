"""Memory and time of the chunked token log-probabilities against plain logits and cross entropy.

Three questions, each answered by a ratio of two things measured in this run:
- memory: how the peak grows with the number of tokens at a vocabulary of 152k (each case in a process of its own);
- time of loss and gradients at that vocabulary (the chunked way computes the logits twice);
- time of a whole training step of a 5M-parameter model with a vocabulary of 8k.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.commands import call, environment
from benchmarks.facts import Figure

VOCABULARY, WIDTH = 152_000, 64
TOKENS = (256, 1024)


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")


def chunked(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from swift.models.logps import token_logps

    return -token_logps(hidden, weight, targets).logps.sum()


WAYS: dict[str, Callable[..., torch.Tensor]] = {"plain": plain, "chunked": chunked}


def one_case(way: str, tokens: int) -> dict[str, float]:
    """Loss and gradients once; peak memory above what was there before, in MiB, and seconds."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (tokens,))
    WAYS[way](hidden[:2], weight, targets[:2]).backward()  # imports and allocations of a first call
    before = _status("VmRSS")
    start = time.perf_counter()
    WAYS[way](hidden, weight, targets).backward()
    return {"mib": (_status("VmHWM") - before) / 1024, "seconds": time.perf_counter() - start}


def _status(field: str) -> int:
    """Return a field of the kernel's account of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def in_own_process(way: str, tokens: int) -> dict[str, float]:
    return dict(json.loads(call([sys.executable, "-m", "benchmarks.chunked_loss", way, str(tokens)], environment())))


def training_steps(rounds: int) -> dict[str, float]:
    """Median seconds of a step of a small model, the two ways taking turns on the same padded batch."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from swift.contracts import Need
    from swift.data.batch import collate
    from swift.models.attention import choose_attention
    from swift.models.view import ViewModule

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=8192, hidden_size=256, intermediate_size=640, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    viewed = ViewModule(model, attention=choose_attention("sdpa", config, flat=False, device="cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = collate(_conversations(), flat=False)
    labels = batch.targets.masked_fill(batch.weights == 0, -100)

    def plain_loss() -> torch.Tensor:
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")

    def chunked_loss() -> torch.Tensor:
        logps = viewed(batch, {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT}).token_logps
        assert logps is not None
        return -(logps * batch.weights).sum()

    def step(loss: Callable[[], torch.Tensor]) -> float:
        start = time.perf_counter()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    for way in (plain_loss, chunked_loss):
        step(way)
    pairs = [(step(plain_loss), step(chunked_loss)) for _ in range(rounds)]
    return {
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "plain_seconds": statistics.median(a for a, _ in pairs),
        "chunked_seconds": statistics.median(b for _, b in pairs),
        "speed_ratio": statistics.median(a / b for a, b in pairs),
    }


def _conversations() -> list[Any]:
    import numpy as np

    from swift.data.samples import Encoded, Segment

    random = np.random.default_rng(0)
    samples = []
    for n in range(8):
        prompt, answer = (int(x) for x in random.integers(10, 60, 2))
        weights = np.concatenate([np.zeros(prompt), np.ones(answer)]).astype(np.float32)
        ids = random.integers(1, 8192, prompt + answer).astype(np.int32)
        samples.append(Encoded(n, (Segment(ids, weights),)))
    return samples


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    cases = {tokens: {way: in_own_process(way, tokens) for way in WAYS} for tokens in TOKENS}
    few, many = (cases[tokens] for tokens in TOKENS)
    growth = {way: many[way]["mib"] / few[way]["mib"] for way in WAYS}
    steps = training_steps(5 if quick else 15)
    times = TOKENS[1] // TOKENS[0]
    figures = [
        Figure(f"{times} times the tokens: chunked peak grows to", growth["chunked"], at_most=1.2),
        Figure(f"{times} times the tokens: plain peak grows to", growth["plain"]),
        *(
            Figure(f"{tokens} tokens: chunked peak over plain", case["chunked"]["mib"] / case["plain"]["mib"])
            for tokens, case in cases.items()
        ),
        *(
            Figure(f"{tokens} tokens: chunked time over plain", case["chunked"]["seconds"] / case["plain"]["seconds"])
            for tokens, case in cases.items()
        ),
        Figure("steps/s of a 5M-parameter model, vocabulary 8k, over plain", steps["speed_ratio"]),
    ]
    return figures, {"vocabulary": VOCABULARY, "width": WIDTH, "cases": cases, "training_step": steps}


if __name__ == "__main__":
    print(json.dumps(one_case(sys.argv[1], int(sys.argv[2]))))
