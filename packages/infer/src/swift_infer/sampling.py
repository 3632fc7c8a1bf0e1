"""Sampling of the next token for the transformers engine, with the log-probability of each.

`generate` samples with one random generator for a whole batch, so that a completion would depend on its neighbours.
Here every prompt has its own generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swift.contracts import Sampling

_BLOCK = 64
"""Tokens of the vocabulary per partial sum of the search in the cumulative distribution."""


class Sampler:
    """Chooses the next token of every row of a batch, step by step, with its log-probability."""

    def __init__(
        self, sampling: Sampling, indices: Sequence[int], prompts: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        self._sampling = sampling
        self._prompts = prompts
        self._step = 0
        self._seen: torch.Tensor | None = None
        """Tokens in the prompt or completion of each row; kept only for the repetition penalty."""
        self._chance: torch.Tensor | None = None
        if sampling.temperature > 0:
            rows = [_chance(sampling.seed_of(index), sampling.max_new_tokens) for index in indices]
            self._chance = torch.stack(rows).to(device)

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next token of every row, and its log-probability as `Sampling.logprobs` defines it."""
        penalised = self._penalised(logits)
        if self._chance is None:
            chosen, logps = penalised.argmax(-1), None
        else:
            # On a GPU `generate` may call this once more than necessary.
            step = min(self._step, self._chance.shape[1] - 1)
            chosen, logps = sample_tokens(
                penalised,
                self._chance[:, step],
                temperature=self._sampling.temperature,
                top_k=self._sampling.top_k,
                top_p=self._sampling.top_p,
            )
        self._step += 1
        if self._seen is not None:
            self._seen.scatter_(-1, chosen[:, None], True)
        if self._sampling.logprobs == "sampled":
            return chosen, _logps(penalised, chosen) if logps is None else logps
        return chosen, _logps(logits, chosen)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep these rows alone."""
        if self._chance is not None:
            self._chance = self._chance[rows]
        if self._seen is not None:
            self._seen = self._seen[rows]

    def _penalised(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the logits after the repetition penalty. Padding before a prompt is ignored."""
        penalty = self._sampling.repetition_penalty
        if penalty == 1:
            return scores
        if self._seen is None:
            self._seen = torch.zeros_like(scores, dtype=torch.bool)
            for row, prompt in enumerate(self._prompts):
                self._seen[row, torch.tensor(prompt, device=scores.device)] = True
        return torch.where(self._seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


class GenerateSampler:
    """A logits processor for `generate` that leaves one token possible in each row, the one that `Sampler` chooses.

    `generate` then decodes greedily, and does everything else: caches, masks, stopping.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.logprobs: list[torch.Tensor] = []
        """One tensor per step, with the log-probability of the token of every row."""
        self._sampler = sampler

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Choose the next token of every row from the model's logits."""
        chosen, logps = self._sampler.choose(scores)
        self.logprobs.append(logps)
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)


def sample_tokens(
    scores: torch.Tensor, chance: torch.Tensor, *, temperature: float, top_k: int, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens whose intervals of cumulative probability contain the numbers in `chance`, one for each row.

    `top_k` comes before `top_p`, under which the likeliest tokens come first, and the rest is left out. With each
    token comes its log-probability after this truncation.
    """
    if 0 < top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    scores = scores.float() - scores.amax(-1, keepdim=True)
    if temperature != 1:
        scores /= temperature
    if top_p >= 1:
        return _inverse_cdf(scores.exp_(), chance)
    probabilities, tokens = scores.softmax(-1, dtype=torch.float64).sort(-1, descending=True)
    # The token that crosses `top_p` is kept.
    probabilities *= probabilities.cumsum(-1) - probabilities < top_p
    position, logps = _inverse_cdf(probabilities, chance)
    return tokens.gather(-1, position[:, None])[:, 0], logps


def _logps(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1).gather(-1, chosen[:, None])[:, 0]


def _inverse_cdf(widths: torch.Tensor, chance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each row the first position whose cumulative sum exceeds `chance`, and the log of its probability.

    Blocks are searched first, so that only one block is summed token by token. Positions of zero width are skipped.
    """
    if missing := -widths.shape[-1] % _BLOCK:
        widths = torch.nn.functional.pad(widths, (0, missing))
    blocks = widths.view(len(widths), -1, _BLOCK)
    sums = blocks.sum(-1).double()
    ends = sums.cumsum(-1)
    whole = ends[:, -1]
    # Rounding must not select a token of zero probability.
    goal = torch.minimum(chance * whole, whole.nextafter(torch.zeros_like(whole)))[:, None]
    block = torch.searchsorted(ends, goal, right=True)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].double()
    rest = (goal - (ends.gather(-1, block) - sums.gather(-1, block))).clamp(min=0)
    last = _BLOCK - 1 - (inside > 0).flip(-1).int().argmax(-1)
    position = torch.searchsorted(inside.cumsum(-1), rest, right=True)[:, 0].minimum(last)
    width = inside.gather(-1, position[:, None])[:, 0]
    return block[:, 0] * _BLOCK + position, (width / whole).log().float()


def _chance(seed: int, count: int) -> torch.Tensor:
    """Return `count` random numbers from 0 to 1 that are the same on every device."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
