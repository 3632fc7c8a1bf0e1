"""A model that is walked through a block at a time, so that one block's weights are in memory, and not the model's.

The blocks hang in the transformers model that they belong to; what surrounds them (embedding, positions, masks, the
last norm and the head) is the model's own code. To run block k the model is called: blocks before it hand on what
they are given, block k starts from the activations that were kept, and the call ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from swift.contracts import ModelSource
from swift.errors import ExportError
from swift.toolkit import check_memory, decoder_blocks, meta_model, name_map

_ROWS, _TOKENS = 16, 4096


@dataclass
class TokenBatch:
    """Texts side by side, filled up on the right: what comes after a text changes nothing in it."""

    rows: list[int]
    """Which of the sequences these are."""
    tokens: torch.Tensor
    real: torch.Tensor
    """Where there is text."""
    hidden: torch.Tensor | None = None
    """What the last block that was run made of it; kept in main memory."""


def batches(sequences: Sequence[Sequence[int]]) -> list[TokenBatch]:
    """Texts of similar length together."""
    kept = (index for index, sequence in enumerate(sequences) if sequence)
    order = sorted(kept, key=lambda index: len(sequences[index]))
    found: list[list[int]] = []
    for index in order:
        if found and len(found[-1]) < _ROWS and (len(found[-1]) + 1) * len(sequences[index]) <= _TOKENS:
            found[-1].append(index)
        else:
            found.append([index])
    return [_batch(rows, sequences) for rows in found]


def _batch(rows: list[int], sequences: Sequence[Sequence[int]]) -> TokenBatch:
    longest = max(len(sequences[row]) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    for at, row in enumerate(rows):
        tokens[at, : len(sequences[row])] = torch.tensor(sequences[row])
        real[at, : len(sequences[row])] = True
    return TokenBatch(rows, tokens, real)


class _Reached(Exception):
    """Ends a call of the model with what was wanted of it."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class Walk:
    """The model around its blocks, with the blocks' weights where they are wanted."""

    def __init__(self, source: ModelSource, device: str) -> None:
        self.source = source
        self.device = device
        self.model: Any = meta_model(source, torch.float32)
        self.model.eval().requires_grad_(False)
        self.blocks = decoder_blocks(self.model)
        self._names = name_map(self.model)
        self._paths = {id(module): name for name, module in self.model.named_modules()}
        self._forwards = [block.forward for block in self.blocks]
        self._tuples = False
        self._check()
        inside = {id(parameter) for block in self.blocks for parameter in block.parameters()}
        self._load(self.model, leave=inside)
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)

    def path(self, module: torch.nn.Module) -> str:
        """Name of a module in the model."""
        return str(self._paths[id(module)])

    def stored_name(self, module: torch.nn.Module, leaf: str) -> str:
        """Name in files of a module's parameter."""
        return self._names.pieces(f"{self.path(module)}.{leaf}")[0].name

    def walk(self) -> Iterator[tuple[int, torch.nn.Module]]:
        """Yield the blocks in order, each with its weights; they are gone when the next one comes."""
        for index, block in enumerate(self.blocks):
            self._load(block)
            yield index, block
            _empty(block)

    def outside(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Weights that belong to no block, by their names in files."""
        for name, parameter in self._outside().items():
            yield self._names.pieces(name)[0].name, parameter

    @contextmanager
    def as_written(self, dtype: torch.dtype) -> Iterator[None]:
        """While entered, weights that belong to no block have the values that a file in this precision holds."""
        outside = self._outside()
        whole = [parameter.data for parameter in outside.values()]
        for parameter in outside.values():
            parameter.data = parameter.data.to(dtype).float()
        try:
            yield
        finally:
            for parameter, values in zip(outside.values(), whole, strict=True):
                parameter.data = values

    @torch.no_grad()
    def run(self, index: int, batch: TokenBatch) -> torch.Tensor:
        """Return a block's output for the batch as the block before it left it."""
        for number, block in enumerate(self.blocks):
            block.forward = self._stand_in(number, index, batch)
        try:
            self.model(input_ids=batch.tokens.to(self.device), use_cache=False)
        except _Reached as reached:
            return reached.hidden
        finally:
            self._give_back()
        raise AssertionError(f"block {index} was not reached")

    @torch.no_grad()
    def logits(self, batch: TokenBatch) -> torch.Tensor:
        """Return the logits at every position, from the last block's output for the batch."""
        for number, block in enumerate(self.blocks):
            block.forward = self._stand_in(number, len(self.blocks), batch)
        try:
            output: torch.Tensor = self.model(input_ids=batch.tokens.to(self.device), use_cache=False).logits.float()
        finally:
            self._give_back()
        return output

    def _outside(self) -> dict[str, torch.nn.Parameter]:
        inside = {id(parameter) for block in self.blocks for parameter in block.parameters()}
        return {name: each for name, each in self.model.named_parameters() if id(each) not in inside}

    def _stand_in(self, number: int, requested: int, batch: TokenBatch) -> Any:
        def forward_call(*arguments: Any, **named: Any) -> Any:
            given = arguments[0] if arguments else named["hidden_states"]
            if number + 1 == len(self.blocks) and requested > number:
                assert batch.hidden is not None
                given = batch.hidden.to(self.device)
            return (given,) if self._tuples else given

        def start(*arguments: Any, **named: Any) -> Any:
            if batch.hidden is not None:
                hidden = batch.hidden.to(self.device)
                if arguments:
                    arguments = (hidden, *arguments[1:])
                else:
                    named["hidden_states"] = hidden
            output = self._forwards[number](*arguments, **named)
            self._tuples = isinstance(output, tuple)
            raise _Reached(output[0] if self._tuples else output)

        return start if number == requested else forward_call

    def _give_back(self) -> None:
        for block in self.blocks:
            del block.forward

    def _load(self, module: torch.nn.Module, leave: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Read weights into a module, from whatever they are held by; tied ones stay tied."""
        holders: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        names: dict[int, str] = {}
        for owner in module.modules():
            for leaf, parameter in owner._parameters.items():
                if parameter is not None and id(parameter) not in leave:
                    holders.setdefault(id(parameter), []).append((owner, leaf))
                    names.setdefault(id(parameter), f"{self.path(owner)}.{leaf}")
        for key, uses in holders.items():
            owner, leaf = uses[0]
            name = self._names.pieces(names[key])[0].name
            value = self.source.read(name).to(self.device, torch.float32)
            loaded = torch.nn.Parameter(value.clone() if value.dtype == torch.float32 else value, requires_grad=False)
            for owner, leaf in uses:
                owner._parameters[leaf] = loaded

    def _check(self) -> None:
        kind = type(self.model).__name__
        if not self.blocks:
            raise ExportError(f"{kind} is not a stack of blocks, which is what is quantised.", hint=_WHOLE)
        for name, parameter in self.blocks[0].named_parameters():
            full = f"{self.path(self.blocks[0])}.{name}"
            if parameter.dim() > 2 or len(self._names.pieces(full)) != 1:
                raise ExportError(
                    f"{kind} has experts ({full}), which are not quantised yet: samples reach each of them too seldom "
                    "to calibrate all.",
                    hint=_WHOLE,
                )
        if not any(isinstance(module, torch.nn.Linear) for module in self.blocks[0].modules()):
            raise ExportError(f"{kind} has no linear layers of the usual kind in its blocks.", hint=_WHOLE)


_WHOLE = "Export it in full precision: leave --quant out."


def _empty(block: torch.nn.Module) -> None:
    for module in block.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty_like(parameter, device="meta")
                module._parameters[leaf] = torch.nn.Parameter(empty, requires_grad=False)


def check_fits(walk_of: ModelSource, hidden_tokens: int) -> None:
    """Say before anything is read that it will not fit: one block with what is known about it, and activations."""
    model: Any = walk_of.build(dtype=torch.float32, weights=False)
    blocks = decoder_blocks(model)
    if not blocks:
        return
    of_block = sum(parameter.numel() for parameter in blocks[0].parameters())
    widest = max((m.in_features for m in blocks[0].modules() if isinstance(m, torch.nn.Linear)), default=0)
    around = sum(p.numel() for p in model.parameters()) - sum(p.numel() for b in blocks for p in b.parameters())
    hidden = hidden_tokens * model.config.get_text_config().hidden_size
    check_memory(
        4.0 * (3 * of_block + 6 * widest**2 + 2 * around + hidden),
        "Quantising goes through the model a block at a time, which",
        hint="Calibrate with fewer samples (--calibration-samples), or on a machine with more memory.",
    )
