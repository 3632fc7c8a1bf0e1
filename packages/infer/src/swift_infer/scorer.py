"""A model in this process that scores sequences or embeds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swift.config.sections import DataSection
from swift.contracts import ModelView, Need
from swift.data.batch import MicroBatch, collate
from swift.data.samples import TOKEN_TYPES, Encoded, Segment
from swift.errors import DataError
from swift.models import MediaProcessor, ProcessorReader, ViewModule, attach_adapter, choose_attention, is_encoder
from swift.models.positions import check_text
from swift.parsing.tasks import EMBEDDING
from swift.terminal import waiting
from swift_infer.local import BATCH, by_length, device_of, dtype_of, media_of

if TYPE_CHECKING:
    from swift_infer.chat_engine import FoundModel
    from swift_infer.options import ModelOptions
    from swift_infer.scoring import RowScores

Outputs = npt.NDArray[np.float32]
"""Scores of a sequence, or its vector."""
Tokens = Sequence[int] | npt.NDArray[np.int32] | Segment


class Scorer:
    """Computes scores of sequences, or vectors, as training and exports do: at the last token of each, or pooled.

    A language model scores segments as its objective does (`scores`).
    """

    def __init__(
        self,
        found: FoundModel,
        options: ModelOptions,
        *,
        batch_size: int | None,
        say: Callable[[str], None],
        scores: RowScores | None = None,
    ) -> None:
        source = found.source
        self.task = source.task
        self._objective = None if scores is None else scores.objective
        self._device = torch.device(device_of(options.device))
        with waiting(f"Loading {found.name}"):
            model: Any = source.build(dtype=dtype_of(options.dtype, self._device), device=str(self._device))
            if found.location.adapter is not None:
                model = attach_adapter(model, found.location.adapter, trainable=False)
            model.eval()
        attention = choose_attention("auto", model.config, flat=False, device=self._device.type)
        self._view = ViewModule(model, attention=attention, say=say)
        self._view.pooling = source.pooling
        self._batch = batch_size or BATCH
        self._encodes = is_encoder(source.config)
        self._source, self._limits = source, options.pixels(found.location.pixels)
        self._name, self._longest = found.name, options.max_length

    def check_length(self, count: int, what: str) -> None:
        """Raise `DataError` for more tokens than --max_length, or than the model has positions."""
        if self._longest is not None and count > self._longest:
            raise DataError(
                f"{what} has {count:,} tokens, but --max_length is {self._longest:,}.",
                hint="Raise --max_length, or shorten the text.",
            )
        check_text(count, self._source.config, self._name, what)

    @torch.no_grad()
    def outputs(self, sequences: Sequence[Tokens]) -> Iterator[tuple[int, Outputs]]:
        """Yield (index, scores or vector) of sequences of tokens, in batches of similar length.

        A sequence with images is an `ImagePrompt`.
        """
        for indices in by_length(sequences, self._batch):
            samples = [Encoded(index, (self._segment(sequences[index]),)) for index in indices]
            batch = self._collated(samples)
            if self._objective is not None and self._objective.candidates and batch.candidates is None:
                candidates = torch.tensor(self._objective.candidates).repeat(*batch.targets.shape, 1)
                batch = replace(batch, candidates=candidates)
            batch = batch.to(self._device)
            found = self._read(self._view(batch, self._needs), batch)
            yield from zip(indices, found.float().cpu().numpy(), strict=True)

    @torch.no_grad()
    def values(self, segments: Sequence[Segment]) -> Iterator[tuple[int, Outputs]]:
        """Yield (index, outputs of the value head before each token with weight)."""
        for indices in by_length([segment.input_ids for segment in segments], self._batch):
            batch = collate([Encoded(index, (segments[index],)) for index in indices], flat=False).to(self._device)
            values = self._view(batch, {Need.VALUES}).values
            assert values is not None
            for index, row, weights in zip(indices, values, batch.weights, strict=True):
                yield index, row[weights > 0].float().cpu().numpy()

    def _collated(self, samples: Sequence[Encoded]) -> MicroBatch:
        with_media = any(segment.media for each in samples for segment in each.segments)
        return self._reader.collated(samples, flat=False) if with_media else collate(samples, flat=False)

    @cached_property
    def _reader(self) -> ProcessorReader:
        return ProcessorReader.of(self._source, MediaProcessor(self._source.processor, DataSection(**self._limits)))

    @property
    def _needs(self) -> frozenset[Need]:
        if self._objective is not None:
            return self._objective.needs
        return frozenset({Need.POOLED if self.task == EMBEDDING else Need.SCORES})

    def _segment(self, tokens: Tokens) -> Segment:
        if isinstance(tokens, Segment):
            return tokens
        ids = np.asarray(tokens, dtype=np.int32)
        # A batch has token types for all of its sequences, or for none.
        types = {TOKEN_TYPES: np.zeros(len(ids), dtype=np.float32)} if self._encodes else {}
        return Segment(ids, np.ones(len(ids), dtype=np.float32), types, media=media_of(tokens))

    def _read(self, view: ModelView, batch: MicroBatch) -> Tensor:
        if self._objective is not None:
            return self._objective.scores(view, batch)[:, None]
        found = view.pooled if self.task == EMBEDDING else view.scores
        assert found is not None
        return found

    def close(self) -> None:
        """Release the model."""
        del self._view
