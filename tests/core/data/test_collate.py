"""Micro-batches as tensors: shifted once, and the same content padded or end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from swift.data.batch import Batch, MicroBatch, check_candidates, collate
from swift.data.media import Media, MediaRef
from swift.data.samples import Encoded, Segment
from swift.errors import PluginError


def sample(number: int, *tokens: int, values: dict[str, float] | None = None) -> Encoded:
    weights = np.array([0.0, *(0.5 * (token % 3) for token in tokens[1:])], dtype=np.float32)
    return Encoded(number, (Segment(np.array(tokens, dtype=np.int32), weights),), values=values or {})


def batch_of(samples: Sequence[Encoded], *, flat: bool = False, **more: Any) -> Batch:
    return Batch(0, [(each,) for each in samples], 0, 3, 1.0, 3, 9, flat, 0, **more)


SAMPLES = [sample(4, 1, 2, 3), sample(9, 5, 7), sample(2, 11, 12, 13, 14)]


def test_labels_shift_and_last_position_of_segment_is_ignored() -> None:
    """A position predicts the next token and the last one of a segment predicts nothing."""
    batch = collate(SAMPLES, flat=False)
    assert batch.input_ids.tolist() == [[1, 2, 3, 0], [5, 7, 0, 0], [11, 12, 13, 14]]
    assert batch.targets.tolist() == [[2, 3, 0, 0], [7, 0, 0, 0], [12, 13, 14, 0]]
    assert batch.weights.tolist() == [[1, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 1, 0]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [3, 2, 4]


def test_packed_positions_restart_and_targets_stay_in_sample() -> None:
    """End to end positions restart and no target crosses a sample."""
    batch = collate(SAMPLES, flat=True, pad_to_multiple=4)
    assert batch.input_ids.tolist() == [[1, 2, 3, 5, 7, 11, 12, 13, 14, 0, 0, 0]]
    assert batch.position_ids[0, :9].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert batch.targets[0, :9].tolist() == [2, 3, 0, 7, 0, 12, 13, 14, 0]
    assert batch.boundaries is not None
    assert batch.boundaries.tolist() == [0, 3, 5, 9]
    assert batch.attention_mask is None
    assert batch.segment_ids[0, 9:].tolist() == [-1, -1, -1]


def test_both_layouts_sum_to_the_same_per_segment() -> None:
    flat, padded = collate(SAMPLES, flat=True), collate(SAMPLES, flat=False)

    def sums(batch: MicroBatch) -> list[float]:
        return [float(each) for each in batch.segment_sum(batch.weights * batch.targets)]

    expected = [float((s.segments[0].weights * s.segments[0].input_ids).sum()) for s in SAMPLES]
    assert sums(flat) == expected
    assert sums(padded) == expected


def with_candidates(number: int, *tokens: int) -> Encoded:
    """A sample with a value of 100 × its token and two candidates for each token."""
    ids = np.array(tokens, dtype=np.int32)
    segment = Segment(ids, np.ones(len(ids), dtype=np.float32), {"value": ids * np.float32(100)}, ids[:, None] * [2, 3])
    return Encoded(number, (segment,))


@pytest.mark.parametrize("flat", [True, False])
def test_token_values_and_candidates_align_with_targets(flat: bool) -> None:
    """Values and candidates of a token are where that token is the target."""
    batch = collate([with_candidates(0, 1, 2, 3), with_candidates(1, 5, 7)], flat=flat, pad_to_multiple=4)
    assert batch.candidates is not None
    assert torch.equal(batch.token_values["value"], batch.targets * 100.0)
    assert torch.equal(batch.candidates, torch.stack([batch.targets * 2, batch.targets * 3], dim=-1))
    moved = batch.map(lambda tensor: tensor + 1)
    assert torch.equal(moved.token_values["value"], batch.token_values["value"] + 1)
    assert torch.equal(moved.candidates, batch.candidates + 1)
    assert torch.equal(moved.input_ids, batch.input_ids + 1)


def test_segments_of_batch_share_value_and_candidate_counts() -> None:
    """Segments of a batch have the same values and as many candidates."""
    with pytest.raises(ValueError, match="the same token_values"):
        collate([with_candidates(0, 1, 2), sample(1, 1, 2)], flat=True)
    (segment,) = with_candidates(1, 1, 2).segments
    fewer = Encoded(1, (replace(segment, candidates=segment.candidates[:, :1]),))
    with pytest.raises(ValueError, match="as many candidates"):
        collate([with_candidates(0, 1, 2), fewer], flat=True)


def test_candidate_outside_vocabulary_names_row() -> None:
    """A candidate that is no token of the model is named with its row."""
    check_candidates([(with_candidates(0, 1, 2, 3), sample(2, 1, 2))], vocabulary=10)
    with pytest.raises(PluginError, match="Sample 7: token 1 has the candidate 15, and the model's tokens are 0 to 14"):
        check_candidates([(with_candidates(0, 1, 2),), (with_candidates(7, 1, 5),)], vocabulary=15)
    (segment,) = with_candidates(3, 1, 2).segments
    below = Encoded(3, (replace(segment, candidates=segment.candidates - 3),))
    with pytest.raises(PluginError, match="the candidate -1"):
        check_candidates([(below,)], vocabulary=15)
    unlearned = replace(segment, candidates=segment.candidates - 9, weights=segment.weights * 0)
    check_candidates([(Encoded(3, (unlearned,)),)], vocabulary=15)


def test_batch_takes_token_values_and_passes_temperature() -> None:
    """A batch takes values per token and hands its temperature on."""
    batch = batch_of(SAMPLES, flat=True, spare_row=(SAMPLES[2],), temperature=0.5)
    batch.rows = [(SAMPLES[0], SAMPLES[1]), (SAMPLES[2],)]
    values = [{"advantage": each.segments[0].input_ids * np.float32(10)} for each in SAMPLES]
    valued = batch.with_token_values(values)
    (micro_batch,) = valued.micro_batches()
    assert torch.equal(micro_batch.token_values["advantage"], micro_batch.targets * 10.0)
    assert micro_batch.temperature == 0.5
    (spare,) = replace(valued, rows=[]).micro_batches()
    assert not spare.token_values["advantage"].any()
    assert spare.temperature == 0.5
    with pytest.raises(ValueError, match="3 segments in the batch, but values for 2"):
        batch.with_token_values(values[:2])


IMAGES = (MediaRef("image", "a.png", 1, 2),)


def with_media(each: Encoded, media: tuple[MediaRef, ...]) -> Encoded:
    return replace(each, segments=tuple(replace(segment, media=media) for segment in each.segments))


class Reader:
    """Makes of every image one row of numbers, and marks the tokens that stand for it."""

    def __call__(self, batch: MicroBatch, references: Sequence[tuple[MediaRef, ...]]) -> Media:
        kinds = torch.zeros_like(batch.input_ids, dtype=torch.int8)
        for row, media in enumerate(references):
            for each in media:
                kinds[row, each.start : each.start + each.length] = 1
        images = sum(len(media) for media in references)
        positions = batch.position_ids.expand(3, -1, -1).clone()
        return Media({"pixel_values": torch.full((images, 4), 0.5)}, kinds, positions, {"images": images})


def test_media_are_loaded_per_micro_batch() -> None:
    """Media are read for each micro-batch and carried with its other tensors."""
    pictured = [SAMPLES[0], with_media(SAMPLES[2], IMAGES)]
    (batch,) = batch_of(pictured, media_reader=Reader()).micro_batches()
    assert batch.media is not None
    assert batch.media.kinds.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0]]
    assert batch.media.counts == {"images": 1}
    assert pictured[1].media == {"image": 1}
    assert SAMPLES[0].media == {}

    moved = batch.to("meta").media
    assert moved is not None
    assert {moved.kinds.device.type, moved.inputs["pixel_values"].device.type} == {"meta"}
    half = batch.map_positions(lambda tensor, _: tensor[:, :2]).media
    assert half is not None
    assert half.kinds.tolist() == [[0, 0], [0, 1]]
    assert half.positions is not None
    assert half.positions.shape == (3, 2, 2)
    assert half.inputs["pixel_values"].shape == (1, 4)


def test_media_without_reader_are_not_dropped() -> None:
    """A batch of text has no media and media without a reader are not dropped."""
    (batch,) = batch_of(SAMPLES).micro_batches()
    assert batch.media is None
    with pytest.raises(ValueError, match="no media_reader"):
        list(batch_of([with_media(SAMPLES[0], IMAGES)]).micro_batches())


def test_batch_takes_segment_values_and_segment_counts() -> None:
    """A batch takes values per segment and says how many segments each sample has."""
    three = Encoded(7, tuple(each.segments[0] for each in SAMPLES))
    batch = batch_of([three, SAMPLES[1]], spare_row=(three,))
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    valued = batch.with_segment_values({"vector": vectors})
    (micro_batch,) = valued.micro_batches()
    assert micro_batch.sample_segments.tolist() == [3, 1]
    assert torch.equal(micro_batch.segment_values["vector"], torch.from_numpy(vectors))
    assert torch.equal(micro_batch.map(lambda each: each + 1).sample_segments, torch.tensor([4, 2]))
    assert torch.equal(micro_batch.map(lambda each: each * 2).segment_values["vector"], torch.from_numpy(vectors * 2))
    (spare,) = replace(valued, rows=[]).micro_batches()
    assert torch.equal(spare.segment_values["vector"], torch.zeros(3, 2))
    with pytest.raises(ValueError, match="4 segments in the batch, but 3 values of 'vector'"):
        batch.with_segment_values({"vector": vectors[:3]})


def test_batch_candidates_need_every_position_and_valid_tokens() -> None:
    """Candidates of a batch stand at every position and must be tokens of the model."""
    batch = batch_of(SAMPLES[:2], candidates=(6, 1))
    (micro_batch,) = batch.micro_batches()
    assert micro_batch.candidates is not None
    assert micro_batch.candidates.tolist() == [[[6, 1]] * 3] * 2
    own = replace(batch, rows=[(with_candidates(0, 1, 2, 3),)])
    (micro_batch,) = own.micro_batches()
    assert micro_batch.candidates is not None
    assert torch.equal(micro_batch.candidates[..., 0], micro_batch.targets * 2)
    check_candidates(batch.rows, 7, batch.candidates)
    with pytest.raises(PluginError, match="The objective has the candidate 6, and the model's tokens are 0 to 5"):
        check_candidates(batch.rows, 6, batch.candidates)
