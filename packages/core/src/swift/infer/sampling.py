"""Sampling of the next token for the transformers engine, with the log-probability of each.

`generate` draws with one random generator for a whole batch, so that an answer would depend on its neighbours. Here
every prompt has its own, which is all that an answer depends on.
"""

from __future__ import annotations

import torch

from swift.contracts import Sampling


class Sampler:
    """A logits processor that leaves one token possible in each row, and remembers its log-probability.

    `generate` is told to take the most likely token, and keeps doing everything else: caches, masks, stopping.
    """

    def __init__(self, sampling: Sampling, places: list[int], device: torch.device) -> None:
        self.logprobs: list[torch.Tensor] = []
        """One per step: of the token in every row, under the model as it is."""
        self._sampling = sampling
        self._chance: torch.Tensor | None = None
        if sampling.temperature > 0:
            rows = [_chance(sampling.seed_of(place), sampling.max_new_tokens) for place in places]
            self._chance = torch.stack(rows).to(device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Choose the next token of every row from the model's logits, for `generate`."""
        if self._chance is None:
            chosen = scores.argmax(-1)
        else:
            # On a GPU `generate` may look a step further than it has to.
            step = min(len(self.logprobs), self._chance.shape[1] - 1)
            chosen = self._draw(scores, self._chance[:, step])
        logps = scores.float().log_softmax(-1)
        self.logprobs.append(logps.gather(-1, chosen[:, None])[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)

    def _draw(self, scores: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
        """Return the tokens whose intervals of cumulative probability contain the numbers in `chance`.

        Under `top_p` the likeliest tokens come first, and the rest is cut off.
        """
        probabilities = (scores.double() / self._sampling.temperature).softmax(-1)
        if self._sampling.top_p >= 1:
            return _fallen_on(probabilities, chance)
        probabilities, tokens = probabilities.sort(-1, descending=True)
        # The token that crosses the line is still in.
        probabilities *= probabilities.cumsum(-1) - probabilities < self._sampling.top_p
        return tokens.gather(-1, _fallen_on(probabilities, chance)[:, None])[:, 0]


def _fallen_on(widths: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """For each row the first place whose end lies beyond `chance` of the whole: one of some width."""
    ends = widths.cumsum(-1)
    return torch.searchsorted(ends, chance[:, None] * ends[:, -1:], right=True)[:, 0].clamp(max=widths.shape[-1] - 1)


def _chance(seed: int, count: int) -> torch.Tensor:
    """Return `count` random numbers from 0 to 1 that are the same on every device."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
