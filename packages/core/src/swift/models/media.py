"""Pictures of a micro-batch as inputs of a model's towers, with the positions that its tokens have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift.data.batch import collate
from swift.data.media import Media, MediaRef
from swift.data.samples import Encoded, Segment
from swift.errors import DataError
from swift.models.decoding import PictureDecoder

if TYPE_CHECKING:
    from PIL.Image import Image

    from swift.config.sections import DataSection
    from swift.contracts import ModelSource
    from swift.data.batch import Batch, MicroBatch
    from swift.models.pictures import PictureProcessor

BLANK = "blank:"
"""How the source of a picture begins that stands in where a process has none: `blank:28x28`."""
_KINDS = {"image": 1, "video": 2, "audio": 3}


class PictureReader:
    """Implements `swift.data.batch.MediaReader` by the processor that comes with a model."""

    def __init__(
        self,
        pictures: PictureProcessor,
        rope_index: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None,
        place: Callable[[int], str] = "sample {}".format,
        decoder: PictureDecoder | None = None,
    ) -> None:
        """Take a model's processor, its own computation of positions with three rows, and how rows are named.

        A `decoder` makes inputs ahead of those micro-batches that are announced to it.
        """
        self._pictures = pictures
        self._rope_index = rope_index
        self._place = place
        self.decoder = decoder

    @classmethod
    def of(cls, source: ModelSource, pictures: PictureProcessor, section: DataSection | None = None) -> PictureReader:
        """Return the reader for the model of a source; it decodes ahead as the section says, where there is one."""
        skeleton: Any = source.build(dtype=torch.float32, weights=False)
        decoder = None
        if section is not None:
            threads, megabytes = section.decode_threads, section.decode_ahead_mb
            decoder = PictureDecoder(pictures, _open, threads=threads, megabytes=megabytes)
        return cls(pictures, getattr(skeleton.base_model, "get_rope_index", None), decoder=decoder)

    def naming(self, place: Callable[[int], str]) -> PictureReader:
        """Return the same reader, which names a sample in errors by where its row stands."""
        return PictureReader(self._pictures, self._rope_index, place, self.decoder)

    def announce(self, batches: Iterable[Batch]) -> None:
        """Begin to decode the pictures of batches that will be asked for next."""
        if self.decoder is not None:
            self.decoder.announce(each for batch in batches for each in batch.media_references())

    def __call__(self, batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]) -> Media | None:
        """Return the media of a micro-batch; None where it has none."""
        if not any(references):
            return None
        began = time.monotonic()
        inputs = None if self.decoder is None else self.decoder.take([each for held in references for each in held])
        if inputs is None:
            images = [self._read(each, batch, index) for index, held in enumerate(references) for each in held]
            inputs = self._pictures.inputs(images)
        if self.decoder is not None:
            self.decoder.waited(began)
        kinds = torch.zeros(batch.input_ids.shape, dtype=torch.int8)
        for row, start, _, held in _segments(batch, references):
            for each in held:
                kinds[row, start + each.start : start + each.start + each.length] = _KINDS[each.kind]
        kinds[~torch.isin(batch.input_ids, self._placeholders)] = 0
        counts = {"image": sum(map(len, references)), "tokens": int((kinds > 0).sum())}
        return Media(inputs, kinds, self._positions(batch, references, kinds, inputs), counts)

    def close(self) -> None:
        """End the threads that decode ahead."""
        if self.decoder is not None:
            self.decoder.close()

    def stand_in(self) -> Segment:
        """Return a segment that is one small blank picture: it goes through the tower and counts for nothing."""
        width, height = self._pictures.smallest
        text = self._pictures.replacement(width, height)
        ids = self._pictures.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        reference = MediaRef("image", f"{BLANK}{width}x{height}", 0, len(ids), width, height)
        array = np.array(ids, dtype=np.int32)
        return Segment(array, np.zeros(len(array), dtype=np.float32), media=(reference,))

    def probe(self, sizes: Sequence[tuple[int, int]]) -> Encoded:
        """Return a sample of one segment with blank pictures of these sizes and some text, to check a model with."""
        parts: list[list[int]] = []
        media: list[MediaRef] = []
        tokenizer = self._pictures.processor.tokenizer
        for width, height in sizes:
            parts.append(tokenizer("Look: ", add_special_tokens=False)["input_ids"])
            ids = tokenizer(self._pictures.replacement(width, height), add_special_tokens=False)["input_ids"]
            start = sum(map(len, parts))
            media.append(MediaRef("image", f"{BLANK}{width}x{height}", start, len(ids), width, height))
            parts.append(ids)
        parts.append(tokenizer("What is it?", add_special_tokens=False)["input_ids"])
        array = np.array([token for part in parts for token in part], dtype=np.int32)
        weights = np.ones(len(array), dtype=np.float32)
        weights[0] = 0.0
        return Encoded(0, (Segment(array, weights, media=tuple(media)),))

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
        """Return what the towers are given for prompts whose ends are aligned, and which tokens stand for what."""
        longest = max(map(len, prompts))
        images = []
        kinds = torch.zeros((len(prompts), longest), dtype=torch.int64)
        ids = torch.full_like(kinds, -1)
        for row, prompt in enumerate(prompts):
            start = longest - len(prompt)
            ids[row, start:] = torch.tensor(prompt)
            for each in getattr(prompt, "media", ()):
                images.append(_open(self._pictures, each))
                kinds[row, start + each.start : start + each.start + each.length] = _KINDS[each.kind]
        kinds[~torch.isin(ids, self._placeholders)] = 0
        return {**(self._pictures.inputs(images) if images else {}), "mm_token_type_ids": kinds}

    @property
    def _placeholders(self) -> torch.Tensor:
        return torch.tensor([each for each in self._pictures.processor.image_token_ids if each is not None])

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
        grids = inputs["image_grid_thw"]
        taken = 0
        for row, start, length, held in _segments(batch, references):
            if not held:
                continue
            where = slice(start, start + length)
            own, _ = self._rope_index(
                batch.input_ids[row : row + 1, where],
                kinds[row : row + 1, where].int(),
                image_grid_thw=grids[taken : taken + len(held)],
            )
            positions[:, row, where] = own[:, 0]
            taken += len(held)
        return positions

    def _read(self, reference: MediaRef, batch: MicroBatch, segment: int) -> Image:
        """Return a picture; an error names the row that it belongs to."""
        try:
            return _open(self._pictures, reference)
        except (OSError, SyntaxError, ValueError) as error:
            ends = torch.cumsum(batch.sample_segments, 0)
            sample = batch.sample_ids[int((ends <= segment).sum())]
            raise DataError(
                f"{self._place(sample)}: the picture {reference.source} cannot be read: {error}",
                hint="Put it right and resume. --data.media_check decode finds broken pictures before training.",
            ) from None


def _open(pictures: PictureProcessor, reference: MediaRef) -> Image:
    """Return a picture; raise what Pillow raises, and `OSError` for one that has changed."""
    from PIL import Image

    if reference.source.startswith(BLANK):
        return Image.new("RGB", (reference.width, reference.height))
    if reference.size and Path(reference.source).stat().st_size != reference.size:
        raise OSError("it is not what it was when it was tokenised")
    image = pictures.open(reference.source)
    if image.size != pictures.size_of(reference.width, reference.height):
        raise OSError(f"it has {image.width}×{image.height} pixels, and its header says otherwise")
    return image


def _segments(
    batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]
) -> Iterator[tuple[int, int, int, tuple[MediaRef, ...]]]:
    """Yield row, first position, length and pictures of each segment."""
    if batch.boundaries is not None:
        edges = batch.boundaries.tolist()
        for held, start, end in zip(references, edges, edges[1:], strict=False):
            yield 0, start, end - start, held
        return
    lengths = (batch.segment_ids >= 0).sum(1).tolist()
    for row, (held, length) in enumerate(zip(references, lengths, strict=True)):
        yield row, 0, length, held
