"""The autograd function of chunked log-probabilities: from hidden states and a head to views, and back.

A chunk of logits at a time exists, in fp32, and everything that views need is read from it before the next. What
follows speaks of z, the logits as the model's transform leaves them, and p = softmax(z):

    log p(target)           gradient to z:  1[target] - p
    mean of log p                           1/vocabulary - p
    entropy H = -Σ p log p                  -p (log p + H)
    log p(candidate)                        1[candidate] - p
    log p of every token, as candidates     its own gradients g, less p Σ g
    r = log Σ p of the others               q - p, where q is p among the others, q = p / exp(r), and 0 for candidates
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from swift.models.logits import LogitTransform, VocabularyShard

BLOCK_BYTES = 16 * 2**20
"""On a CPU, elementwise work goes through the logits in blocks: kind to its caches, large enough for its threads."""

Views = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""The fields of `TokenViews`."""


@dataclass(frozen=True)
class Settings:
    """Views to compute, and the settings of computing them."""

    transform: LogitTransform
    dtype: torch.dtype
    """Precision of the matrix products."""
    chunk: int
    """Tokens whose logits exist at a time."""
    vocabulary: int
    """Tokens in all."""
    keep: bool
    """Whether the logits of the only chunk are kept for the backward pass."""
    correct: bool
    means: bool
    entropy: bool
    everything: bool = False
    """Whether the candidates are the whole vocabulary in its order: they need no ids, and nothing is left beside them.
    """
    shard: VocabularyShard | None = None
    fused: bool = False
    """Whether kernels of `swift.kernels.logits` read the product and turn it into its gradient."""

    @property
    def factor(self) -> float:
        """Return what a product is multiplied by to be logits, where nothing else is done to it."""
        return self.transform.scale / self.transform.temperature


class HeadLogps(torch.autograd.Function):
    """hidden, weight, bias → the fields of `TokenViews`.

    With `keep`, the forward pass leaves exp(logit - largest) behind, whole (the product, where it is `fused`), and the
    backward pass overwrites it with the gradient. A second backward pass is then refused by autograd, which counts
    changes in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        candidates: torch.Tensor | None,
        settings: Settings,
    ) -> Views:
        tokens = hidden.shape[0]

        def blank(*more: int) -> torch.Tensor:
            return hidden.new_zeros((tokens, *more), dtype=torch.float32)

        logps, correct, means, normalisers, totals = (blank() for _ in range(5))
        entropy = blank() if settings.entropy else None
        compared = settings.vocabulary if settings.everything else None if candidates is None else candidates.shape[1]
        chosen = None if compared is None else hidden.new_empty((tokens, compared), dtype=torch.float32)
        rest = None if compared is None else hidden.new_full((tokens,), -torch.inf, dtype=torch.float32)
        cast_weight = weight.to(settings.dtype)
        kept = None
        for rows in chunks(tokens, settings.chunk):
            make = _product if settings.fused else _logits
            logits = make(hidden[rows], cast_weight, bias, settings)
            for piece, part in _blocks(logits, rows.start):
                if chosen is not None and settings.everything:
                    chosen[part] = piece
                look = _look_fused if settings.fused else _look if settings.shard is None else _look_together
                seen = look(piece, targets[part], None if candidates is None else candidates[part], settings)
                totals[part] = seen.total
                normalisers[part] = seen.largest + seen.total.log()
                logps[part] = seen.at_target - normalisers[part]
                if seen.hits is not None:
                    correct[part] = seen.hits
                if seen.mean is not None:
                    means[part] = seen.mean - normalisers[part]
                if entropy is not None and seen.surprise is not None:
                    entropy[part] = seen.total.log() - seen.surprise / seen.total
                if chosen is not None and settings.everything:
                    chosen[part].sub_(normalisers[part, None])
                if chosen is not None and rest is not None and seen.candidates is not None:
                    chosen[part] = seen.candidates[0] - normalisers[part, None]
                    rest[part] = (seen.candidates[1] - normalisers[part]).clamp(max=0.0)
            kept = logits if settings.keep else None
            del logits  # or the next chunk would be made next to this one
        ctx.settings = settings
        every = chosen if settings.everything and settings.transform.softcap is None and entropy is None else None
        ctx.save_for_backward(
            *(hidden, weight, bias, targets, candidates, normalisers, totals, entropy, rest, kept, every)
        )
        ctx.mark_non_differentiable(correct)
        return logps, correct, means, entropy, chosen, rest

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, candidates, normalisers, totals, entropy, rest, kept, every = ctx.saved_tensors
        settings: Settings = ctx.settings
        sums = _Gradients(hidden, weight, bias, ctx.needs_input_grad, settings.dtype)
        pull = _Pull.of(gradients, targets, candidates, (normalisers, entropy, rest), settings)
        if kept is not None and not settings.fused:
            pull.shrink = pull.shrink / totals
        for rows in chunks(hidden.shape[0], settings.chunk):
            if settings.fused:
                product = _product(hidden[rows], sums.cast_weight, bias, settings) if kept is None else kept
                pull.on_product(product, rows, settings.factor)
                sums.add(rows, product)
                del product
                continue
            if every is not None:
                logits = every[rows].exp()
            else:
                logits = _logits(hidden[rows], sums.cast_weight, bias, settings) if kept is None else kept
            for piece, part in _blocks(logits, rows.start):
                slope = settings.transform.slope(piece)
                pull.on(piece, part, are_logits=kept is None and every is None)
                if slope is not None:
                    piece.mul_(slope)
                if settings.shard is not None:
                    settings.shard.forget_padding(piece)
            sums.add(rows, logits)
            del logits
        return sums.hidden, sums.weight, sums.bias, None, None, None


@dataclass
class _Pull:
    """The gradients of the views, per token, and what turns them into those of logits."""

    shrink: torch.Tensor
    """Factor of p."""
    added: torch.Tensor
    """What is added at the target."""
    targets: torch.Tensor
    normalisers: torch.Tensor
    spread: torch.Tensor | None
    """What is added to every logit."""
    entropy: torch.Tensor | None = None
    """Factor of -p log p."""
    candidates: torch.Tensor | None = None
    here: torch.Tensor | None = None
    """Which candidates are among this process's rows; None where all are."""
    chosen: torch.Tensor | None = None
    """What is added at each candidate."""
    of_every: torch.Tensor | None = None
    """What is added to the logit of each token, where all of them are candidates."""
    others: torch.Tensor | None = None
    """Factor of q, for tokens that are not candidates."""
    rest: torch.Tensor | None = None
    """The log of the sum of exp(logit) over tokens that are not candidates, finite."""

    @classmethod
    def of(
        cls,
        gradients: tuple[torch.Tensor | None, ...],
        targets: torch.Tensor,
        candidates: torch.Tensor | None,
        found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
        settings: Settings,
    ) -> _Pull:
        """Combine the gradients of `HeadLogps`'s results, in their order, with what its forward pass computed.

        These are the normalisers, the entropy, and the log of the mass that is not among the candidates.
        """
        normalisers, entropy, rest = found
        of_logps, _, of_means, of_entropy, of_chosen, of_rest = gradients
        assert of_logps is not None
        assert of_means is not None
        shard = settings.shard
        shrink = -(of_logps + of_means)
        spread = of_means / settings.vocabulary if settings.means else None
        added = of_logps
        if shard is not None:
            targets, here = shard.local(targets)
            added = of_logps * here
        pull = cls(shrink, added, targets, normalisers, spread)
        if entropy is not None and of_entropy is not None:
            pull.shrink = pull.shrink - of_entropy * entropy
            pull.entropy = of_entropy
        if settings.everything and of_chosen is not None:
            pull.shrink = pull.shrink - of_chosen.sum(-1)
            pull.of_every = of_chosen
        if candidates is not None and rest is not None and of_chosen is not None and of_rest is not None:
            pull._take_candidates(candidates, of_chosen, of_rest, rest, shard)
        return pull

    def _take_candidates(
        self,
        candidates: torch.Tensor,
        of_chosen: torch.Tensor,
        of_rest: torch.Tensor,
        rest: torch.Tensor,
        shard: VocabularyShard | None,
    ) -> None:
        # Where the candidates are the whole vocabulary nothing is left, and nothing can move it.
        self.others = of_rest.where(rest.isfinite(), torch.zeros_like(of_rest))
        self.shrink = self.shrink - of_chosen.sum(-1) - self.others
        self.rest = rest.clamp(min=_LOWEST) + self.normalisers
        self.candidates, self.chosen = candidates, of_chosen
        if shard is not None:
            self.candidates, self.here = shard.local(candidates)
            self.chosen = of_chosen * self.here

    def on(self, piece: torch.Tensor, part: slice, *, are_logits: bool) -> None:
        """Overwrite `piece`, logits or exp(logit - largest) of the tokens `part`, with the gradient of the logits.

        Where `shrink` is not divided by the totals, it is p instead of the latter.
        """
        others = None
        if self.others is not None and self.rest is not None and self.candidates is not None:
            others = _outside(piece, self.candidates[part], None if self.here is None else self.here[part])
            others.sub_(self.rest[part, None]).exp_().mul_(self.others[part, None])
        shrink = self.shrink[part, None]
        if are_logits:
            piece.sub_(self.normalisers[part, None])
            if self.entropy is not None:
                shrink = shrink - self.entropy[part, None] * piece
            piece.exp_()
        piece.mul_(shrink).scatter_add_(-1, self.targets[part, None], self.added[part, None])
        if self.spread is not None:
            piece.add_(self.spread[part, None])
        if self.of_every is not None:
            piece.add_(self.of_every[part])
        if others is not None and self.candidates is not None and self.chosen is not None:
            piece.add_(others).scatter_add_(-1, self.candidates[part], self.chosen[part])

    def on_product(self, product: torch.Tensor, part: slice, factor: float) -> None:
        """Overwrite `product`, which times a factor is the logits of the tokens `part`, with its gradient."""
        from swift.kernels.logits import to_gradient

        def here(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values[part]

        always = (self.targets[part], factor, self.normalisers[part], self.shrink[part], self.added[part])
        to_gradient(product, *always, here(self.spread), here(self.entropy))


class _Gradients:
    """Add up the gradients of hidden, weight and bias, of those that want one, chunk by chunk in fp32."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        needed: tuple[bool, ...],
        dtype: torch.dtype,
    ) -> None:
        self.cast_weight = weight.to(dtype)
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.bias = torch.zeros_like(bias) if bias is not None and needed[2] else None
        self._input = hidden
        self._needs_weight = needed[1]
        self._weight_dtype = weight.dtype
        self._weight_sum: torch.Tensor | None = None

    def add(self, rows: slice, gradient: torch.Tensor) -> None:
        """Add what the gradient of the logits of `rows` comes to."""
        if self.bias is not None:
            self.bias += gradient.sum(0)
        gradient = gradient.to(self.cast_weight.dtype)
        if self.hidden is not None:
            self.hidden[rows] = gradient @ self.cast_weight
        if not self._needs_weight:
            return
        inputs = self._input[rows].to(gradient.dtype)
        if self._weight_sum is None:
            self._weight_sum = (gradient.t() @ inputs).float()
        elif gradient.dtype == torch.float32:
            self._weight_sum.addmm_(gradient.t(), inputs)
        else:
            self._weight_sum += gradient.t() @ inputs

    @property
    def weight(self) -> torch.Tensor | None:
        """Return the weight's gradient in the weight's precision."""
        if not self._needs_weight:
            return None
        if self._weight_sum is None:  # not a single token was looked at
            return torch.zeros_like(self.cast_weight, dtype=self._weight_dtype)
        return self._weight_sum.to(self._weight_dtype)


def _product(
    hidden: torch.Tensor, cast_weight: torch.Tensor, bias: torch.Tensor | None, settings: Settings
) -> torch.Tensor:
    assert bias is None
    return torch.nn.functional.linear(hidden.to(settings.dtype), cast_weight)


def _logits(
    hidden: torch.Tensor, cast_weight: torch.Tensor, bias: torch.Tensor | None, settings: Settings
) -> torch.Tensor:
    bias = None if bias is None else bias.to(settings.dtype)
    logits = settings.transform(torch.nn.functional.linear(hidden.to(settings.dtype), cast_weight, bias))
    if settings.shard is not None:
        settings.shard.hide_padding(logits)
    return logits


@dataclass
class _Statistics:
    """Statistics of a block of logits, for each of its tokens."""

    largest: torch.Tensor
    total: torch.Tensor
    """Sum of e = exp(logit - largest)."""
    at_target: torch.Tensor
    """The target's logit."""
    hits: torch.Tensor | None
    """Whether that is the largest."""
    mean: torch.Tensor | None
    """Mean of the logits."""
    surprise: torch.Tensor | None
    """Sum of e log e."""
    candidates: tuple[torch.Tensor, torch.Tensor] | None
    """The candidates' logits, and the log of the sum of exp(logit) over all others."""


_LOWEST = torch.finfo(torch.float32).min
"""Stands for -inf where that would be subtracted from itself."""


def _look(
    logits: torch.Tensor, targets: torch.Tensor, candidates: torch.Tensor | None, settings: Settings
) -> _Statistics:
    """Return the statistics over the vocabulary. Leaves exp(logit - largest) behind in `logits`."""
    goal = targets[:, None]
    largest = logits.amax(-1, keepdim=True)
    at_target = logits.gather(-1, goal)
    hits = _most_likely(logits, goal, at_target, largest, settings.dtype) if settings.correct else None
    mean = logits.mean(-1) if settings.means else None
    chosen = None
    if candidates is not None:
        others = _outside(logits, candidates, None)
        highest = others.amax(-1).clamp(min=_LOWEST)
        chosen = logits.gather(-1, candidates), highest + others.sub_(highest[:, None]).exp_().sum(-1).log()
    total = logits.sub_(largest).exp_().sum(-1)
    surprise = torch.xlogy(logits, logits).sum(-1) if settings.entropy else None
    return _Statistics(largest[:, 0], total, at_target[:, 0], hits, mean, surprise, chosen)


def _look_fused(
    product: torch.Tensor, targets: torch.Tensor, candidates: torch.Tensor | None, settings: Settings
) -> _Statistics:
    """Return the same by one kernel, which leaves the product alone."""
    from swift.kernels.logits import statistics

    largest, total, at_target, hits, sums, surprise = statistics(product, targets, settings.factor)
    assert candidates is None
    return _Statistics(largest, total, at_target, hits, sums / settings.vocabulary, surprise, None)


def _look_together(
    logits: torch.Tensor, targets: torch.Tensor, candidates: torch.Tensor | None, settings: Settings
) -> _Statistics:
    """Return the same where each process has some of the tokens."""
    shard = settings.shard
    assert shard is not None
    goal, here = shard.local(targets)
    largest = shard.largest(logits.amax(-1))
    at_target = logits.gather(-1, goal[:, None])[:, 0].where(here, torch.zeros_like(largest))
    sums = logits[:, : shard.size].sum(-1)
    chosen = None if candidates is None else _candidates_together(logits, candidates, shard)
    total = logits.sub_(largest[:, None]).exp_().sum(-1)
    surprise = [torch.xlogy(logits, logits).sum(-1)] if settings.entropy else []
    total, at_target, sums, *surprise = shard.add_up(total, at_target, sums, *surprise)
    hits = (at_target >= largest).float() if settings.correct else None
    mean = sums / settings.vocabulary if settings.means else None
    return _Statistics(largest, total, at_target, hits, mean, surprise[0] if surprise else None, chosen)


def _candidates_together(
    logits: torch.Tensor, candidates: torch.Tensor, shard: VocabularyShard
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, here = shard.local(candidates)
    others = _outside(logits, rows, here)
    highest = shard.largest(others.amax(-1)).clamp(min=_LOWEST)
    rest = others.sub_(highest[:, None]).exp_().sum(-1)
    at_candidates = logits.gather(-1, rows).where(here, torch.zeros_like(logits[:, :1]))
    rest, *own = shard.add_up(rest, *at_candidates.unbind(-1))
    return torch.stack(own, dim=-1), highest + rest.log()


def _outside(logits: torch.Tensor, candidates: torch.Tensor, here: torch.Tensor | None) -> torch.Tensor:
    """Return a copy of the logits with -inf at the candidates, of those that are `here`."""
    if here is None:
        return logits.scatter(-1, candidates, -torch.inf)
    ceiling = logits.new_full(candidates.shape, torch.inf).masked_fill(here, -torch.inf)
    return logits.scatter_reduce(-1, candidates, ceiling, "amin")


def _most_likely(
    logits: torch.Tensor, goal: torch.Tensor, at_target: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    if dtype == torch.float32:  # argmax is several times slower on a CPU, and differs only where two logits are equal
        return (at_target >= largest)[:, 0].float()
    return (logits.argmax(-1, keepdim=True) == goal)[:, 0].float()


def chunks(tokens: int, size: int) -> Iterator[slice]:
    """Return slices of so many tokens, up to the last."""
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def _blocks(logits: torch.Tensor, first: int) -> Iterator[tuple[torch.Tensor, slice]]:
    """Return blocks of the rows of `logits`, and the tokens that they are when the first row is token `first`."""
    rows, vocabulary = logits.shape
    size = max(1, BLOCK_BYTES // (4 * vocabulary)) if logits.device.type == "cpu" else rows
    return ((logits[block], slice(first + block.start, first + block.stop)) for block in chunks(rows, size))
