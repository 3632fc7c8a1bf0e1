"""Decoding with the caches of transformers, in batches that shrink as completions end.

`generate` of transformers computes the prompt of every row, equal or not, and goes on with rows that have ended until
the longest completion does. Here equal prompts are computed once, and rows leave when their completions are over.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import torch

from swift.contracts import Completion, Sampling
from swift.models import cache_argument
from swift.planning import row_bytes, rows_at_once

if TYPE_CHECKING:
    from swift_infer.sampling import Sampler

Tokens = Sequence[int]
_TAKEN = ("input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep")
_IDLE = 8
"""Rows leave when one in so many has ended: leaving copies the cache, staying wastes computation."""


@dataclass(frozen=True)
class Ending:
    """When a completion is over."""

    sampling: Sampling
    tokens: frozenset[int]
    """Tokens that end a completion."""

    def reason(self, ids: list[int]) -> str | None:
        """Return the finish reason of a completion of these tokens; None if it goes on."""
        is_over = self.sampling.is_over
        if ids[-1] in self.tokens or (is_over is not None and is_over(ids)):
            return "stop"
        return "length" if len(ids) >= self.sampling.max_new_tokens else None


def decodes(model: Any) -> bool:
    """Return whether a model's forward can be called step by step by `DecodingBatch`.

    A model that prepares its inputs in its own way (state-space models, Phi-3 with its two ranges of positions) or
    comes with code of its own is left to its `generate`.
    """
    from transformers import GenerationMixin

    kind = type(model)
    return (
        kind.__module__.startswith("transformers.")
        and not model.config.is_encoder_decoder
        and getattr(kind, "prepare_inputs_for_generation", None) is GenerationMixin.prepare_inputs_for_generation
        and model._supports_default_dynamic_cache()
        and {*_TAKEN, cache_argument(model)} <= set(inspect.signature(model.forward).parameters)
    )


class DecodingBatch:
    """Prompts that are completed together, one token of each per step."""

    def __init__(self, model: Any, prompts: Sequence[Tokens], sampler: Sampler) -> None:
        from swift_infer.growing_cache import growing_cache

        self._model = model
        self._sampler = sampler
        self._rows = list(range(len(prompts)))
        """The prompt of each row that is in the batch."""
        self._cache: Any = growing_cache(model)
        self._cache_argument = cache_argument(model)
        self._chosen = torch.zeros(0, dtype=torch.long)
        self._mask: torch.Tensor | None = None
        self._position = torch.zeros(0, dtype=torch.long)
        """Position of the next token of each row."""
        self._logits: torch.Tensor | None = self._prefilled(prompts)

    def step(self) -> list[tuple[int, int, float]]:
        """Return (prompt, token, log-probability) of every row's next token."""
        if self._logits is None:
            self._logits = self._forward(self._chosen[:, None], self._position[:, None])
        self._chosen, logps = self._sampler.choose(self._logits)
        self._logits = None
        self._position += 1
        return list(zip(self._rows, self._chosen.tolist(), logps.tolist(), strict=True))

    def keep(self, prompts: Collection[int]) -> None:
        """Remove the rows of all other prompts, once they are one in `_IDLE`."""
        kept = [row for row, prompt in enumerate(self._rows) if prompt in prompts]
        if (len(self._rows) - len(kept)) * _IDLE < len(self._rows) or not kept:
            return
        index = torch.tensor(kept, device=self._chosen.device)
        self._cache.reorder_cache(index)
        self._sampler.keep(index)
        self._chosen, self._position = self._chosen[index], self._position[index]
        if self._mask is not None:
            self._mask = self._mask[index]
        self._rows = [self._rows[row] for row in kept]

    def _prefilled(self, prompts: Sequence[Tokens]) -> torch.Tensor:
        """Return the logits after each prompt, with the cache of equal prompts computed once."""
        rows: dict[tuple[int, ...], int] = {}
        row_of = [rows.setdefault(tuple(prompt), len(rows)) for prompt in prompts]
        longest = max(map(len, rows))
        device = self._model.device
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for prompt, row in rows.items():
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
        # Without padding no mask is needed, and attention is fastest.
        self._mask = None if bool(mask.all()) else mask.to(device)
        logits = self._forward(ids.to(device), positions, first=True)
        self._position = positions[:, -1]
        if len(rows) < len(prompts):
            index = torch.tensor(row_of, device=device)
            self._cache.reorder_cache(index)
            logits, self._position = logits[index], self._position[index]
            self._mask = None if self._mask is None else self._mask[index]
        return logits

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, *, first: bool = False) -> torch.Tensor:
        """Return the logits after the last of these tokens, in fp32."""
        if self._mask is not None and not first:
            self._mask = torch.cat([self._mask, self._mask.new_ones((len(ids), 1))], dim=1)
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        # Some models make a cache of their own.
        self._cache = getattr(output, self._cache_argument)
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


@torch.no_grad()
def completions(
    model: Any, prompts: Sequence[Tokens], sampler: Sampler, ending: Ending
) -> Iterator[tuple[int, Completion]]:
    """Yield (index of the prompt, its completion), each when it is over."""
    batch = DecodingBatch(model, prompts, sampler)
    made: dict[int, tuple[list[int], list[float]]] = {index: ([], []) for index in range(len(prompts))}
    while made:
        for index, token, logp in batch.step():
            if index not in made:
                continue
            ids, logps = made[index]
            ids.append(token)
            logps.append(logp)
            if (reason := ending.reason(ids)) is not None:
                del made[index]
                yield index, Completion(ids, logps, reason)
        batch.keep(made)


@torch.no_grad()
def stream_tokens(model: Any, prompt: Tokens, sampler: Sampler, ending: Ending) -> Iterator[int]:
    """Yield the tokens of one completion, while it is generated."""
    batch = DecodingBatch(model, [prompt], sampler)
    ids: list[int] = []
    while not ids or ending.reason(ids) is None:
        ((_, token, _),) = batch.step()
        ids.append(token)
        yield token


class Room:
    """How many prompts of some length fit into part of the device's memory, by the measured size of their cache."""

    def __init__(self, model: Any) -> None:
        self._device = _memory(model.device)
        self._vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
        with torch.no_grad():
            ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
            output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
            cache = getattr(output, cache_argument(model))
        kept = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
        self._of_token = sum(held.nbytes for held in kept if isinstance(held, torch.Tensor))

    def batches(self, prompts: Sequence[Tokens], steps: int) -> Iterator[list[int]]:
        """Yield indices of prompts in batches of similar length, equal prompts side by side."""
        batch: list[int] = []
        for index in sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), tuple(prompts[index]))):
            row = row_bytes(self._vocabulary, self._of_token, len(prompts[index]) + steps)
            if len(batch) >= rows_at_once(self._device, row):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def _memory(device: torch.device) -> int:
    """Return the bytes of a device: all of them, so that batches do not depend on what is free at the moment."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
