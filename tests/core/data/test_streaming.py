"""Streaming: data that is read while training, in an order that is still the run's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.data.pipeline import prepare_data
from swift.data.samples import SampleFacts
from swift.data.schedules import BatchLayout, StreamingSchedule
from swift.errors import ConfigError, DataError
from swift_testing.tokenizer import byte_tokenizer


class TokenMean:
    """The part of an objective that schedules need."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        return sum(sample.loss_weight for sample in samples)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [{"prompt": f"q{i}", "completion": "x" * (i % 9 + 1)} for i in range(23)]
    rows.insert(5, {"prompt": "q", "completion": ""})
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def schedule(path: Path, *, encoding: str = "chat", strict: bool = False, **changes: Any) -> StreamingSchedule:
    section = DataSection(train=(str(path),), streaming=True, strict=strict)
    data = prepare_data(section, byte_tokenizer(), encoding=encoding_of(encoding), seed=1, say=print)
    assert data.train is None
    assert data.stream is not None
    layout = BatchLayout(global_rows=4, micro_rows=1, seed=1, max_length=200, max_steps=12)
    objective: Any = TokenMean()
    return StreamingSchedule(data.stream, objective, replace(layout, **changes))


def ids(batches: StreamingSchedule, steps: Iterable[int], rank: int = 0, size: int = 1) -> list[list[tuple[int, ...]]]:
    return [
        [tuple(sample.sample_id for sample in row) for row in batches.batch(step, rank, size).rows] for step in steps
    ]


@pytest.mark.parametrize("packing", [False, True])
def test_an_epoch_of_a_stream_holds_each_sample_once(path: Path, packing: bool) -> None:
    rows = [row for batch in ids(schedule(path, packing=packing), range(12)) for row in batch]
    samples = [sample for row in rows for sample in row]
    assert sorted(samples[:23]) == list(range(23))
    assert sorted(samples[23:46]) == list(range(23))
    assert samples[:23] != samples[23:46]


@pytest.mark.parametrize("packing", [False, True])
def test_processes_take_slices_of_the_same_batches(path: Path, packing: bool) -> None:
    alone = ids(schedule(path, packing=packing), range(6))
    parts = [ids(schedule(path, packing=packing), range(6), rank, 2) for rank in range(2)]
    assert [one + other for one, other in zip(*parts, strict=True)] == alone


def test_a_resumed_stream_goes_on_with_the_same_batches(path: Path) -> None:
    assert ids(schedule(path), range(7, 12)) == ids(schedule(path), range(12))[7:]
    resumed = schedule(path)
    resumed.batch(7, 0, 1)
    with pytest.raises(ValueError, match="cannot go back"):
        resumed.batch(3, 0, 1)


def test_streamed_unpaired_responses_use_next_as_kl(path: Path, tmp_path: Path) -> None:
    """Unpaired responses are set against the next ones as without streaming."""
    rows = [json.loads(line) | {"label": True} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    streamed = schedule(path, encoding="kto", shuffle=False)
    section = DataSection(train=(str(path),), cache=tmp_path / "cache")
    whole = prepare_data(section, byte_tokenizer(), encoding=encoding_of("kto"), seed=1, say=print).train
    assert whole is not None
    samples = [sample for step in range(6) for row in streamed.batch(step, 0, 1).rows for sample in row][:23]
    for index, sample in enumerate(samples):
        expected = whole.samples[index]
        assert [s.input_ids.tolist() for s in sample.segments] == [s.input_ids.tolist() for s in expected.segments]


def test_unusable_samples_of_a_stream_are_counted_or_refused(path: Path) -> None:
    section = DataSection(train=(str(path),), streaming=True)
    data = prepare_data(section, byte_tokenizer(), encoding="chat", seed=1, say=print)
    assert data.stream is not None
    assert len(list(data.stream.epoch(0))) == 23
    assert {reason: (r.count, r.location) for reason, r in data.report.rejected.items()} == {
        "empty completion": (1, f"{path}:6")
    }
    with pytest.raises(DataError, match=rf"{path}:6: empty completion"):
        schedule(path, strict=True).batch(0, 0, 1)


def test_a_stream_without_anything_to_learn_is_an_error(path: Path) -> None:
    path.write_text('{"prompt": "q", "completion": ""}\n')
    with pytest.raises(DataError, match="can be trained on"):
        schedule(path).batch(0, 0, 1)


def test_a_stream_needs_to_know_how_many_steps_to_make(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.streaming needs train.max_steps") as error:
        schedule(path, max_steps=None)
    assert "--train.max_steps" in str(error.value.hint)
