"""Batches: a process's slice of one global batch, and the tensors of one micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from swift.data.media import Media, MediaRef
from swift.data.samples import Encoded, Segment
from swift.errors import PluginError


@dataclass
class MicroBatch:
    """Tensors of one micro-batch, already shifted: position t predicts `targets[t]`.

    Padded layout: one row per segment, [segments, longest]. Flat layout: all segments end to end, [1, tokens];
    `position_ids` restart at every segment and `boundaries` holds their starts and the end.

    - `targets`: Next token; 0 where there is none (`weights` is 0 there).
    - `weights`: float32: how much each target counts.
    - `segment_ids`: Index of the segment that a position belongs to; -1 is padding.
    - `attention_mask`: bool, padded layout only, and only when something is padded.
    - `boundaries`: int32 [segments + 1], flat layout only; on the CPU, wherever the rest is: layouts are planned by it.
    - `longest`: Tokens of the longest segment.
    - `values`: Per sample: 'label', 'margin', ...
    - `reference_logps`: Per segment.
    - `seed`: Seeds dropout: the same for the same rows at the same step, however many processes there are.
    - `step_seed`: The same for all micro-batches of a step: random numbers of a token are seeded with it.
    - `token_values`: Per position, [rows, width] or [rows, width, ...], laid out and shifted as `weights`: the value at
      position t belongs to the token `targets[t]`.
    - `candidates`: int64 [rows, width, K], shifted in the same way: K tokens that might stand instead of `targets[t]`.
    - `temperature`: Divisor of the logits, applied after scale and softcap.
    - `media`: Images, videos and sounds, for a backend whose `Capabilities.modalities` have them.
    - `sample_segments`: int64 [samples]: how many segments each sample has; samples and segments lie in the same order.
    - `segment_values`: Per segment, float32 [segments, ...]: what `Objective.from_first_pass` returned, or a plan of
      its own set.
    - `_learned`: The weights that were looked at, and which of them count.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    segment_ids: torch.Tensor
    segments: int
    attention_mask: torch.Tensor | None
    boundaries: torch.Tensor | None
    longest: int
    values: dict[str, torch.Tensor]
    reference_logps: torch.Tensor | None
    sample_ids: list[int]
    seed: int
    step_seed: int = 0
    token_values: dict[str, torch.Tensor] = field(default_factory=dict)
    candidates: torch.Tensor | None = None
    temperature: float = 1.0
    media: Media | None = None
    sample_segments: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    segment_values: dict[str, torch.Tensor] = field(default_factory=dict)
    _learned: tuple[torch.Tensor, torch.Tensor] | None = None

    def learned(self) -> torch.Tensor:
        """Return the indices of tokens with weight, in rows laid end to end.

        What `to` has brought to a GPU knows them already: asking the GPU would wait for all that it has to do.
        """
        if self._learned is not None and self._learned[0] is self.weights:
            return self._learned[1]
        return self.weights.flatten().nonzero()[:, 0]

    def without_last_sample(self) -> MicroBatch:
        """Return the same tensors of tokens, of which the last sample's, one segment's, belong to no sample any more.

        `boundaries` still has its end: it lies apart from the others, as padding does.
        """
        last = self.segments - 1
        return replace(
            self,
            segment_ids=torch.where(self.segment_ids == last, -1, self.segment_ids),
            segments=last,
            values={name: value[:-1] for name, value in self.values.items()},
            reference_logps=None if self.reference_logps is None else self.reference_logps[:-1],
            sample_ids=self.sample_ids[:-1],
            sample_segments=self.sample_segments[:-1],
            segment_values={name: value[:-1] for name, value in self.segment_values.items()},
        )

    def segment_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a per-position tensor over each segment; shape [segments]."""
        # Padding has an index of its own: selecting the rest would wait for the GPU to report its size.
        indexes = torch.where(self.segment_ids >= 0, self.segment_ids, self.segments)
        sums = values.new_zeros(self.segments + 1)
        return sums.index_add(0, indexes.flatten(), values.flatten())[: self.segments]

    def to(self, device: torch.device | str) -> MicroBatch:
        """Return the same micro-batch on another device, but for its boundaries."""
        moved = replace(self.map(lambda tensor: _moved(tensor, device)), boundaries=self.boundaries)
        return replace(moved, _learned=(moved.weights, _moved(self.learned(), device)))

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> MicroBatch:
        """Return a micro-batch with `function` applied to every tensor."""

        def mapped(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else function(tensor)

        return replace(
            self.map_positions(lambda tensor, _: function(tensor)),
            attention_mask=mapped(self.attention_mask),
            boundaries=mapped(self.boundaries),
            values={name: function(value) for name, value in self.values.items()},
            reference_logps=mapped(self.reference_logps),
            sample_segments=function(self.sample_segments),
            segment_values={name: function(value) for name, value in self.segment_values.items()},
            media=None if self.media is None else self.media.map(function),
        )

    def map_positions(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> MicroBatch:
        """Return a micro-batch with `function(tensor, padding)` applied to what is laid out as [rows, width, ...].

        `padding` is the value where there is no token. Everything else stays as it is.
        """
        return replace(
            self,
            input_ids=function(self.input_ids, 0),
            position_ids=function(self.position_ids, 0),
            targets=function(self.targets, 0),
            weights=function(self.weights, 0),
            segment_ids=function(self.segment_ids, -1),
            token_values={name: function(value, 0) for name, value in self.token_values.items()},
            candidates=None if self.candidates is None else function(self.candidates, 0),
            media=None if self.media is None else self.media.map_positions(function),
        )


class MediaReader(Protocol):
    """Read what references point to, and turn it into the inputs of a model."""

    def __call__(self, batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]) -> Media | None:
        """Return the media of a micro-batch, if it has any. `references` has an entry for each segment, in order."""

    @property
    def kinds(self) -> frozenset[str]:
        """Which kinds of media the samples of the run hold: 'image', 'video', 'audio'."""

    def stand_in(self, kinds: Collection[str]) -> Segment:
        """Return a segment of something small and blank of each kind, whose tokens weigh nothing."""


Row = tuple[Encoded, ...]
"""One row of a batch: a sample, or a pack of samples."""


@dataclass
class Batch:
    """A process's slice of one global batch, and facts of the whole batch.

    - `first_row`: Index of this slice's first row in the global batch.
    - `micro_rows`: Rows per micro-batch.
    - `weight`: Weight of the *global* batch under the objective: what loss sums are divided by.
    - `tokens`: Real tokens of the global batch.
    - `flat`: Layout of the micro-batches: end to end, or padded.
    - `pad_to_multiple`: Padded length (or flat length) is rounded up to a multiple of this.
    - `spare_row`: Used as a dummy, with no weight, when this process has no row of a short batch.
    - `temperature`: Divisor of the logits; 1 in evaluation and in scoring of text.
    - `media_reader`: Reads the images, videos and sounds of the samples; needed where samples have any.
    - `touch`: Kinds of media of which every micro-batch must have something: one that has none gets a stand-in, which
      belongs to no segment and counts for nothing. For a backend whose processes must run an encoder equally often:
      'image'.
    - `candidates`: Tokens that might stand instead of every token: `MicroBatch.candidates` of samples that bring none.
    - `dropout`: Whether `swift_forward` views the model with the dropout that `swift_train_step` has on the same batch:
      in training mode, and with the random numbers seeded by `MicroBatch.seed` before each micro-batch.
    """

    step: int
    rows: Sequence[Row]
    first_row: int
    micro_rows: int
    weight: float
    global_rows: int
    tokens: int
    flat: bool
    seed: int
    pad_to_multiple: int = 1
    spare_row: Row | None = None
    temperature: float = 1.0
    media_reader: MediaReader | None = None
    touch: frozenset[str] = frozenset()
    candidates: tuple[int, ...] = ()
    dropout: bool = False

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yield at least one; a process without rows gets the spare row with all weights zero."""
        if not self.rows:
            yield self.dummy()
            return
        for start in range(0, len(self.rows), self.micro_rows):
            yield self._collate(self.rows[start : start + self.micro_rows], self.first_row + start)

    def media_references(self) -> Iterator[list[MediaRef]]:
        """Yield the images, videos and sounds of each micro-batch, in order; nothing is read."""
        for start in range(0, len(self.rows), self.micro_rows):
            rows = self.rows[start : start + self.micro_rows]
            yield [each for row in rows for sample in row for segment in sample.segments for each in segment.media]

    def with_stand_ins(self) -> Batch:
        """Return the batch whose every micro-batch has something of each kind of media that the run's samples hold."""
        return replace(self, touch=frozenset() if self.media_reader is None else self.media_reader.kinds)

    def dummy(self) -> MicroBatch:
        """Return a row with all weights zero, for backends whose processes must run the model equally often."""
        row = self.rows[0] if self.rows else self.spare_row
        if row is None:
            raise ValueError("a batch without rows needs a spare row")

        def muted(segment: Segment) -> Segment:
            return replace(segment, weights=np.zeros_like(segment.weights))

        return self._collate([tuple(_changed(sample, muted) for sample in row)], self.first_row)

    def __len__(self) -> int:
        return max(1, math.ceil(len(self.rows) / self.micro_rows))

    def most_micro_batches(self, data_size: int) -> int:
        """Return how many micro-batches the process with the most rows has, when so many share the global batch."""
        return max(1, math.ceil(math.ceil(self.global_rows / data_size) / self.micro_rows))

    def with_token_values(self, segments: Sequence[Mapping[str, np.ndarray]], *, names: Collection[str] = ()) -> Batch:
        """Return the batch with more values per token: one mapping per segment of this slice, in order.

        What `ForwardResult.tokens` holds can be given here. A spare row gets zeros under the same names, and under
        `names`, for a process that has no segment to learn them from.
        """
        names = {*names, *(name for values in segments for name in values)}
        return self._with("token_values", segments, lambda each: _zeros(each, names))

    def with_segment_values(self, values: Mapping[str, np.ndarray]) -> Batch:
        """Return the batch with more values per segment: name → [segments of this slice, ...], in order.

        They become `MicroBatch.segment_values`. A spare row gets zeros of the same names and shapes.
        """
        expected = self._segments()
        for name, value in values.items():
            if len(value) != expected:
                raise ValueError(f"{expected} segments in the batch, but {len(value)} values of {name!r}")
        given = [{name: value[index] for name, value in values.items()} for index in range(expected)]
        zeros = {name: np.zeros(value.shape[1:], dtype=np.float32) for name, value in values.items()}
        return self._with("values", given, lambda _: zeros)

    def _segments(self) -> int:
        """Return how many segments this slice has."""
        return sum(len(sample.segments) for row in self.rows for sample in row)

    def _with(
        self,
        member: str,
        segments: Sequence[Mapping[str, np.ndarray]],
        spare: Callable[[Segment], Mapping[str, np.ndarray]],
    ) -> Batch:
        """Return the batch with more in a mapping of each segment, and of those of a spare row."""
        if len(segments) != (expected := self._segments()):
            raise ValueError(f"{expected} segments in the batch, but values for {len(segments)}")
        given = iter(segments)

        def changed(row: Row, of: Callable[[Segment], Mapping[str, np.ndarray]]) -> Row:
            def more(segment: Segment) -> Segment:
                changes: dict[str, Any] = {member: {**getattr(segment, member), **of(segment)}}
                return replace(segment, **changes)

            return tuple(_changed(sample, more) for sample in row)

        rows = [changed(row, lambda _: next(given)) for row in self.rows]
        return replace(self, rows=rows, spare_row=self.spare_row and changed(self.spare_row, spare))

    def _collate(self, rows: Sequence[Row], row: int) -> MicroBatch:
        samples = [sample for each in rows for sample in each]
        stands_in = self._lacks_media(samples)
        if stands_in:
            samples.append(self._stand_in(samples[0], stands_in))
        step_seed = self.seed * 1_000_003 + self.step
        seed = (step_seed * 1_000_003 + row) % 2**63
        micro_batch = collate(samples, flat=self.flat, seed=seed, pad_to_multiple=self.pad_to_multiple)
        ready = replace(
            micro_batch,
            step_seed=step_seed % 2**63,
            temperature=self.temperature,
            candidates=self._candidates(micro_batch),
            media=self._media(samples, micro_batch),
        )
        return ready.without_last_sample() if stands_in else ready

    def _lacks_media(self, samples: Sequence[Encoded]) -> frozenset[str]:
        """Return the kinds of media that must be there and are not."""
        kinds = {each.kind for sample in samples for segment in sample.segments for each in segment.media}
        return frozenset() if self.media_reader is None else self.touch - kinds

    def _stand_in(self, like: Encoded, kinds: frozenset[str]) -> Encoded:
        """Return a sample of a stand-in, with values that weigh nothing under the names that a sample has."""
        assert self.media_reader is not None
        segment, other = self.media_reader.stand_in(kinds), like.segments[0]
        segment = replace(
            segment,
            token_values=_zeros(segment, set(other.token_values)),
            values={name: np.zeros(np.shape(value), np.float32) for name, value in other.values.items()},
        )
        if other.candidates is not None:
            choices = np.zeros((len(segment), *other.candidates.shape[1:]), other.candidates.dtype)
            segment = replace(segment, candidates=choices)
        logps = None if like.reference_logps is None else np.zeros(1, np.float32)
        return Encoded(like.sample_id, (segment,), like.values, logps)

    def _candidates(self, micro_batch: MicroBatch) -> torch.Tensor | None:
        if micro_batch.candidates is not None or not self.candidates:
            return micro_batch.candidates
        # The same for every token, in the memory of one.
        return torch.tensor(self.candidates, dtype=torch.int64).expand(*micro_batch.targets.shape, -1)

    def _media(self, samples: Sequence[Encoded], micro_batch: MicroBatch) -> Media | None:
        references = [segment.media for sample in samples for segment in sample.segments]
        if self.media_reader is not None:
            return self.media_reader(micro_batch, references)
        if any(references):
            raise ValueError("the samples hold media, and the batch has no media_reader to read them")
        return None


def collate(samples: Sequence[Encoded], *, flat: bool, seed: int = 0, pad_to_multiple: int = 1) -> MicroBatch:
    """Lay samples out as tensors, shifted by one so that no consumer has to."""
    segments = [segment for sample in samples for segment in sample.segments]
    lengths = np.array([len(segment) for segment in segments], dtype=np.int64)
    longest, ends = int(lengths.max()), np.cumsum(lengths)
    width = -(-(int(ends[-1]) if flat else longest) // pad_to_multiple) * pad_to_multiple
    shape = (1 if flat else len(segments), width)
    input_ids, position_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segment_ids = np.full(shape, -1, np.int64)
    if flat:
        position_ids[0, ends[-1] :] = np.arange(width - ends[-1])
    for index, (segment, length, end) in enumerate(zip(segments, lengths.tolist(), ends.tolist(), strict=True)):
        where = (0, slice(end - length, end)) if flat else (index, slice(0, length))
        input_ids[where], position_ids[where], segment_ids[where] = segment.input_ids, np.arange(length), index
    reference = None
    if all(sample.reference_logps is not None for sample in samples):
        reference = torch.from_numpy(np.concatenate([sample.reference_logps for sample in samples]))
    token_values, candidates = _per_token(segments, shape, flat=flat)
    padded = not flat and bool((segment_ids < 0).any())
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        position_ids=torch.from_numpy(position_ids),
        targets=_laid_out([segment.input_ids for segment in segments], np.zeros(shape, np.int64), flat=flat),
        weights=_laid_out([segment.weights for segment in segments], np.zeros(shape, np.float32), flat=flat),
        segment_ids=torch.from_numpy(segment_ids),
        segments=len(segments),
        attention_mask=torch.from_numpy(segment_ids >= 0) if padded else None,
        boundaries=torch.from_numpy(np.append(0, ends).astype(np.int32)) if flat else None,
        longest=longest,
        values={
            name: torch.tensor([sample.values[name] for sample in samples], dtype=torch.float32)
            for name in sorted(samples[0].values)
        },
        reference_logps=reference,
        sample_ids=[sample.sample_id for sample in samples],
        seed=seed,
        token_values=token_values,
        candidates=candidates,
        sample_segments=torch.tensor([len(sample.segments) for sample in samples], dtype=torch.int64),
        segment_values=_per_segment(segments),
    )


def check_candidates(rows: Sequence[Row], vocabulary: int, everywhere: Sequence[int] = ()) -> None:
    """Refuse candidates of learned tokens that are no tokens of the model, naming the sample and the token.

    `everywhere` are candidates of all tokens, `Batch.candidates`.
    """
    for candidate in everywhere:
        if not 0 <= candidate < vocabulary:
            raise PluginError(
                f"The objective has the candidate {candidate}, and the model's tokens are 0 to {vocabulary - 1}.",
                hint="Take its candidates from the tokenizer of this model (Objective.for_tokenizer).",
            )
    for sample in (sample for row in rows for sample in row):
        for segment in sample.segments:
            if segment.candidates is None:
                continue
            outside = (segment.candidates < 0) | (segment.candidates >= vocabulary)
            wrong = np.argwhere(outside & (segment.weights > 0)[:, None])
            if len(wrong):
                token, which = (int(index) for index in wrong[0])
                candidate = int(segment.candidates[token, which])
                raise PluginError(
                    f"Sample {sample.sample_id}: token {token} has the candidate {candidate}, "
                    f"and the model's tokens are 0 to {vocabulary - 1}.",
                    hint="Candidates are set by the objective's plan: take them from the tokenizer of this model.",
                )


def _moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a tensor on another device; what is the same for every token keeps the memory of one."""
    if tensor.ndim > 2 and tensor.numel() and tensor.stride()[:2] == (0, 0):
        return tensor[0, 0].to(device, non_blocking=True).expand(tensor.shape)
    return tensor.to(device, non_blocking=True)


def _changed(sample: Encoded, change: Callable[[Segment], Segment]) -> Encoded:
    return replace(sample, segments=tuple(change(segment) for segment in sample.segments))


def _zeros(segment: Segment, names: set[str]) -> dict[str, np.ndarray]:
    return {name: np.zeros(len(segment), dtype=np.float32) for name in names}


def _per_token(
    segments: Sequence[Segment], shape: tuple[int, int], *, flat: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Return token values and candidates, laid out as weights are. All segments must have the same."""
    first = segments[0].candidates
    kinds = [{name: np.shape(value)[1:] for name, value in segment.token_values.items()} for segment in segments]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError("all segments of a batch must have the same token_values, in the same shapes")
    shapes = {None if segment.candidates is None else segment.candidates.shape[1:] for segment in segments}
    if len(shapes) > 1:
        raise ValueError("all segments of a batch must have as many candidates per token, or none")
    values = {
        name: _laid_out([each.token_values[name] for each in segments], np.zeros(shape + more, np.float32), flat=flat)
        for name, more in sorted(kinds[0].items())
    }
    if first is None:
        return values, None
    blank = np.zeros((*shape, *first.shape[1:]), np.int64)
    return values, _laid_out([np.asarray(segment.candidates) for segment in segments], blank, flat=flat)


def _per_segment(segments: Sequence[Segment]) -> dict[str, torch.Tensor]:
    """Return the values of segments, [segments, ...] each. All segments must have the same."""
    shapes = [{name: np.shape(value) for name, value in segment.values.items()} for segment in segments]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("all segments of a batch must have the same values, in the same shapes")
    stacked = {name: np.stack([segment.values[name] for segment in segments]) for name in sorted(shapes[0])}
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in stacked.items()}


def _laid_out(arrays: Sequence[np.ndarray], blank: np.ndarray, *, flat: bool) -> torch.Tensor:
    """Fill `blank` [rows, width, ...] with one array per segment, each shifted by one: entry 1 goes to position 0."""
    start = 0
    for index, array in enumerate(arrays):
        row, first = (0, start) if flat else (index, 0)
        shifted = array[1:]
        blank[row, first : first + len(shifted)] = shifted
        start += len(array)
    return torch.from_numpy(blank)
