"""Images and audio of a micro-batch as inputs of the encoders, with the positions that its tokens have."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from swift.config.media import KINDS, NAMES
from swift.config.sections import DataSection
from swift.contracts import ModelSource
from swift.data.batch import Batch, MicroBatch, collate
from swift.data.media import Media, MediaRef, number_of
from swift.data.samples import Encoded, Segment
from swift.errors import DataError
from swift.models.decoding import MediaDecoder
from swift.models.media_processor import MediaProcessor


class ProcessorReader:
    """Implements `swift.data.batch.MediaReader` by the processor that comes with a model."""

    def __init__(
        self,
        images: MediaProcessor,
        rope_index: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None,
        label: Callable[[int], str] = "sample {}".format,
        decoder: MediaDecoder | None = None,
        kinds: frozenset[str] = frozenset({"image"}),
    ) -> None:
        """Take a model's processor, its own computation of positions with three rows, and how rows are named.

        A `decoder` makes inputs ahead of those micro-batches that are announced to it. `kinds` of media are those
        that the samples of the run hold.
        """
        self.kinds = kinds
        self._images = images
        self._rope_index = rope_index
        self._label = label
        self.decoder = decoder

    @classmethod
    def of(
        cls,
        source: ModelSource,
        images: MediaProcessor,
        section: DataSection | None = None,
        kinds: frozenset[str] = frozenset({"image"}),
    ) -> ProcessorReader:
        """Return the reader for the model of a source; it decodes ahead as the section says, where there is one."""
        skeleton: Any = source.build(dtype=torch.float32, weights=False)
        decoder = None
        if section is not None:
            threads, megabytes = section.decode_threads, section.decode_ahead_mb
            decoder = MediaDecoder(images, threads=threads, megabytes=megabytes)
        return cls(images, getattr(skeleton.base_model, "get_rope_index", None), decoder=decoder, kinds=kinds)

    def naming(self, label: Callable[[int], str]) -> ProcessorReader:
        """Return the same reader, which names a sample in errors by where its row stands."""
        return ProcessorReader(self._images, self._rope_index, label, self.decoder, self.kinds)

    def announce(self, batches: Iterable[Batch]) -> None:
        """Begin to decode the images of batches that will be asked for next."""
        if self.decoder is not None:
            self.decoder.announce(each for batch in batches for each in batch.media_references())

    def __call__(self, batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]) -> Media | None:
        """Return the media of a micro-batch; None where it has none."""
        if not any(references):
            return None
        began = time.monotonic()
        inputs = None if self.decoder is None else self.decoder.take([each for held in references for each in held])
        if inputs is None:
            contents = [
                (each.kind, self._read(each, batch, index)) for index, held in enumerate(references) for each in held
            ]
            inputs = self._images.inputs(contents)
        if self.decoder is not None:
            self.decoder.waited(began)
        kinds = torch.zeros(batch.input_ids.shape, dtype=torch.int8)
        for row, start, _, held in _segments(batch, references):
            for each in held:
                kinds[row, start + each.start : start + each.start + each.length] = KINDS[each.kind]
        kinds[~torch.isin(batch.input_ids, self._placeholders)] = 0
        counts = {**Counter(each.kind for held in references for each in held), "tokens": int((kinds > 0).sum())}
        numbers = torch.tensor([number_of(held) for held in references])
        return Media(inputs, kinds, self._positions(batch, references, kinds, inputs), counts, numbers)

    def close(self) -> None:
        """End the threads that decode ahead."""
        if self.decoder is not None:
            self.decoder.close()

    def stand_in(self, kinds: Collection[str]) -> Segment:
        """Return a segment of something small and blank of each kind, which counts for nothing."""
        return self._blank_segment([self._images.smallest(kind) for kind in sorted(kinds)], ())

    def probe(self, images: Sequence[tuple[int, int]]) -> Encoded:
        """Return a sample of one segment to check a model with: some text, and blank media of the run's kinds.

        There are as many of each kind as `images`, which are the sizes of those.
        """
        media = []
        for number, (width, height) in enumerate(images):
            for kind in sorted(self.kinds):
                small = self._images.smallest(kind)
                if kind == "image":
                    media.append(replace(small, width=width, height=height))
                else:
                    media.append(replace(small, frames=small.frames * (1 + number)))
        segment = self._blank_segment(media, ("Look: ", "What is it?"))
        weights = np.ones(len(segment), dtype=np.float32)
        weights[0] = 0.0
        return Encoded(0, (replace(segment, weights=weights),))

    def _blank_segment(self, media: Sequence[MediaRef], prompts: Sequence[str]) -> Segment:
        """Return a segment of these media, with the first text before each of them and the last after all."""
        parts: list[list[int]] = []
        placed = []

        def add(text: str) -> list[int]:
            ids: list[int] = self._images.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            parts.append(ids)
            return ids

        for each in media:
            before, shown, after = self._images.written(each)
            add(f"{prompts[0] if prompts else ''}{before}")
            start = sum(map(len, parts))
            placed.append(replace(each, start=start, length=len(add(shown))))
            add(after)
        if prompts:
            add(prompts[-1])
        array = np.array([token for part in parts for token in part], dtype=np.int32)
        return Segment(array, np.zeros(len(array), dtype=np.float32), media=tuple(placed))

    def collated(self, samples: Sequence[Encoded], *, flat: bool) -> MicroBatch:
        """Return samples as a micro-batch with its media."""
        batch = collate(samples, flat=flat)
        return replace(batch, media=self(batch, [segment.media for each in samples for segment in each.segments]))

    def alone(self, sample: Encoded) -> MicroBatch:
        """Return one sample as a micro-batch whose positions are left to the model."""
        batch = self.collated([sample], flat=False)
        assert batch.media is not None
        return replace(batch, media=replace(batch.media, positions=None))

    def of_prompts(self, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return what the encoders are given for prompts whose ends are aligned, and which tokens stand for what."""
        longest = max(map(len, prompts))
        contents = []
        kinds = torch.zeros((len(prompts), longest), dtype=torch.int64)
        ids = torch.full_like(kinds, -1)
        for row, prompt in enumerate(prompts):
            start = longest - len(prompt)
            ids[row, start:] = torch.tensor(prompt)
            for each in getattr(prompt, "media", ()):
                contents.append((each.kind, self._images.read(each)))
                kinds[row, start + each.start : start + each.start + each.length] = KINDS[each.kind]
        kinds[~torch.isin(ids, self._placeholders)] = 0
        return {**(self._images.inputs(contents) if contents else {}), "mm_token_type_ids": kinds}

    @property
    def _placeholders(self) -> torch.Tensor:
        return torch.tensor(self._images.ids)

    def _positions(
        self,
        batch: MicroBatch,
        references: Sequence[tuple[MediaRef, ...]],
        kinds: torch.Tensor,
        inputs: dict[str, torch.Tensor],
    ) -> torch.Tensor | None:
        """Return positions with three rows, as the model computes them for each segment by itself."""
        if self._rope_index is None:
            return None
        positions = batch.position_ids.expand(3, *batch.position_ids.shape).clone()
        spans = [
            (row, slice(start, start + length)) for row, start, length, held in _segments(batch, references) if held
        ]
        rows = {
            "input_ids": [batch.input_ids[span] for span in spans],
            "mm_token_type_ids": [kinds[span].int() for span in spans],
            "attention_mask": [torch.ones_like(batch.input_ids[span]) for span in spans],
        }
        given = {name: pad_sequence(each, batch_first=True) for name, each in rows.items()} | inputs
        if (heard := inputs.get("feature_attention_mask")) is not None:
            given["audio_seqlens"] = heard.sum(-1)
        named = inspect.signature(self._rope_index).parameters
        own, _ = self._rope_index(**{name: each for name, each in given.items() if name in named})
        for number, (row, where) in enumerate(spans):
            positions[:, row, where] = own[:, number, : where.stop - where.start]
        return positions

    def _read(self, reference: MediaRef, batch: MicroBatch, segment: int) -> Any:
        """Return an image or sound; an error names the row that it belongs to."""
        try:
            return self._images.read(reference)
        except (OSError, SyntaxError, ValueError) as error:
            ends = torch.cumsum(batch.sample_segments, 0)
            sample = batch.sample_ids[int((ends <= segment).sum())]
            raise DataError(
                f"{self._label(sample)}: the {NAMES[reference.kind]} {reference.source} cannot be read: {error}",
                hint="Fix the file and resume. To find broken files before training, use --data.media_check decode.",
            ) from None


def _segments(
    batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]
) -> Iterator[tuple[int, int, int, tuple[MediaRef, ...]]]:
    """Yield row, first position, length and images of each segment."""
    if batch.boundaries is not None:
        edges = batch.boundaries.tolist()
        for held, start, end in zip(references, edges, edges[1:], strict=False):
            yield 0, start, end - start, held
        return
    lengths = (batch.segment_ids >= 0).sum(1).tolist()
    for row, (held, length) in enumerate(zip(references, lengths, strict=True)):
        yield row, 0, length, held
