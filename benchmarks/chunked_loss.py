"""Compare memory and time of chunked log-probabilities with plain logits and cross entropy.

Memory: growth of the peak with the number of tokens at a vocabulary of 152k. Time: loss and gradients at that
vocabulary, for which chunks compute logits twice. Each case runs in a separate process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.commands import call, environment
from benchmarks.facts import Figure, memory_mib, peak_memory_mib

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
    before = memory_mib("VmRSS")
    start = time.perf_counter()
    WAYS[way](hidden, weight, targets).backward()
    return {"mib": peak_memory_mib() - before, "seconds": time.perf_counter() - start}


def in_own_process(way: str, tokens: int) -> dict[str, float]:
    return dict(json.loads(call([sys.executable, "-m", "benchmarks.chunked_loss", way, str(tokens)], environment())))


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    cases = {tokens: {way: in_own_process(way, tokens) for way in WAYS} for tokens in TOKENS}
    few, many = (cases[tokens] for tokens in TOKENS)
    growth = {way: many[way]["mib"] / few[way]["mib"] for way in WAYS}
    times = TOKENS[1] // TOKENS[0]
    figures = [
        Figure(f"{times} times the tokens: chunked peak grows to", growth["chunked"], at_most=1.2),
        Figure(f"{times} times the tokens: plain peak grows to", growth["plain"]),
        *(
            Figure(f"{tokens} tokens: chunked {what} over plain", case["chunked"][key] / case["plain"][key])
            for what, key in (("peak", "mib"), ("time", "seconds"))
            for tokens, case in cases.items()
        ),
    ]
    return figures, {"vocabulary": VOCABULARY, "width": WIDTH, "cases": cases}


if __name__ == "__main__":
    print(json.dumps(one_case(sys.argv[1], int(sys.argv[2]))))
