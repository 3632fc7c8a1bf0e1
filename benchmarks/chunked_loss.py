"""Memory and time of the chunked token log-probabilities against plain logits and cross entropy.

    python benchmarks/chunked_loss.py [--out results.json]

Three questions, each answered by a ratio of two things measured in this run:
- memory: how the peak grows with the number of tokens at a vocabulary of 152k (each case in a process of its own);
- time of loss and gradients at that vocabulary (the chunked way computes the logits twice);
- time of a whole training step of a 5M-parameter model with a vocabulary of 8k.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

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
    """A field of the kernel's account of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def in_own_process(way: str, tokens: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", way, str(tokens)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(result.stdout))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--rounds", type=int, default=15, help="training steps of each kind")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(one_case(arguments.case[0], int(arguments.case[1]))))
        return
    results: dict[str, Any] = {"vocabulary": VOCABULARY, "width": WIDTH, "cases": {}}
    for tokens in TOKENS:
        case = {way: in_own_process(way, tokens) for way in WAYS}
        case["ratio"] = {key: case["chunked"][key] / case["plain"][key] for key in ("mib", "seconds")}
        results["cases"][tokens] = case
        print(
            f"vocabulary {VOCABULARY}, {tokens:5d} tokens: peak {case['plain']['mib']:6.0f} MiB plain, "
            f"{case['chunked']['mib']:5.0f} MiB chunked ({case['ratio']['mib']:.2f}x); "
            f"time {case['ratio']['seconds']:.2f}x plain's"
        )
    first, last = results["cases"][TOKENS[0]], results["cases"][TOKENS[-1]]
    results["growth"] = {way: last[way]["mib"] / first[way]["mib"] for way in WAYS}
    print(f"{TOKENS[-1] // TOKENS[0]}x the tokens: peak x{results['growth']['plain']:.2f} plain, ", end="")
    print(f"x{results['growth']['chunked']:.2f} chunked")
    results["training_step"] = steps = training_steps(arguments.rounds)
    print(f"training step, {steps['parameters'] / 1e6:.1f}M parameters, vocabulary 8192: ", end="")
    print(f"{steps['speed_ratio']:.2f}x the speed of plain logits and cross entropy")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
