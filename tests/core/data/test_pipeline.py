"""From a file to encoded samples: reports, cache, held-out samples, several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.data import encode_corpus as tokenise
from swift.data import pipeline
from swift.data.encode import SampleEncoder
from swift.data.pipeline import DataPreparation, Prepared, PreparedData, prepare_data
from swift.data.samples import Encoded
from swift.data.store import ReferencedSamples
from swift.errors import ConfigError, DataError, UsageError
from swift_testing.tokenizer import byte_tokenizer

GOOD = [{"prompt": f"question {i}", "completion": "x" * (i % 7 + 1), "id": i} for i in range(20)]
BAD: list[dict[str, Any]] = [
    {"prompt": "q", "completion": ""},
    {"messages": []},
    {"prompt": "q", "completion": "x" * 90},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepare(
    *files: Path, cache: Path, encoding: str = "chat", seed: int = 1, said: list[str] | None = None, **section: Any
) -> PreparedData:
    settings = DataSection(train=tuple(map(str, files)), cache=cache, **{"max_length": 80, **section})
    say = said.append if said is not None else lambda line: None
    return prepare_data(settings, byte_tokenizer(), encoding=encoding_of(encoding), seed=seed, say=say)


def train_of(data: PreparedData) -> Prepared:
    assert data.train is not None
    return data.train


def same(one: Encoded, other: Encoded) -> bool:
    return dict(one.values) == dict(other.values) and all(
        np.array_equal(a.input_ids, b.input_ids) and np.array_equal(a.weights, b.weights)
        for a, b in zip(one.segments, other.segments, strict=True)
    )


def test_samples_come_back_from_disk_as_they_were_encoded(tmp_path: Path) -> None:
    rows = [row | {"label": i % 2 == 0} for i, row in enumerate(GOOD)]
    train = train_of(prepare(write(tmp_path / "a.jsonl", rows), cache=tmp_path / "cache", encoding="kto"))
    encoder = SampleEncoder(byte_tokenizer(), DataSection(max_length=80), encoding_of("kto"))
    understood = [encoding_of("kto").understand(row, "r") for row in rows]
    for index in range(20):
        (expected,) = encoder.encode(understood[index], "r", understood[(index + 1) % 20]).samples
        sample = train.samples[index]
        assert same(sample, expected)
        assert sample.sample_id == index
        assert train.samples.lengths[index] == sample.tokens
        assert train.samples.loss_weights[index] == sample.loss_weight
        facts = train.samples.facts(index)
        assert (facts.tokens, facts.loss_weight, facts.values) == (sample.tokens, sample.loss_weight, sample.values)


def test_report_counts_skipped_samples_by_reason(tmp_path: Path) -> None:
    """The report counts unusable samples by reason and shows the first."""
    path = write(tmp_path / "a.jsonl", [*GOOD[:3], *BAD, BAD[0]])
    report = prepare(path, cache=tmp_path / "cache").report
    assert (report.rows, report.samples, report.unusable) == (7, 3, 4)
    assert {reason: (r.count, r.location) for reason, r in report.rejected.items()} == {
        "empty completion": (2, f"{path}:4"),
        "no messages": (1, f"{path}:5"),
        "too long": (1, f"{path}:6"),
    }
    assert report.loss_tokens == sum(len(row["completion"]) + 1 for row in GOOD[:3])
    text = "\n".join(report.lines())
    assert f"2 × empty completion; first {path}:4: message 2, the assistant's, is empty" in text
    assert "4 of 7 rows cannot be used" in text
    assert "Columns that are not used: id" in text


def test_a_report_of_several_data_sets_counts_each(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a.jsonl", GOOD[:5]), write(tmp_path / "b.jsonl", [*GOOD, *BAD])
    report = prepare(Path(f"{one}#3"), other, cache=tmp_path / "cache").report
    assert [(source.rows, source.available, source.samples) for source in report.sources] == [(3, 5, 3), (23, 23, 20)]
    lines = report.lines()
    assert lines[0].startswith(f"{one}#3: 3 rows (the first of 5), 3 samples, ")
    assert lines[1].startswith(f"{other}: 23 rows, 20 samples, ")


def test_strict_raises_on_first_skipped_sample(tmp_path: Path) -> None:
    """Strict makes the first unusable sample an error cached or not."""
    path = write(tmp_path / "a.jsonl", [*GOOD, *BAD])
    for _ in range(2):
        with pytest.raises(DataError, match=rf"{path}:21: empty completion"):
            prepare(path, cache=tmp_path / "cache", strict=True)
        prepare(path, cache=tmp_path / "cache")


def test_no_trainable_sample_is_error_and_leaves_no_cache(tmp_path: Path) -> None:
    """Nothing to learn from in any sample is an error that leaves nothing behind."""
    path = write(tmp_path / "a.jsonl", [{"prompt": "q", "completion": ""}] * 3)
    with pytest.raises(DataError, match="None of the 3 rows") as error:
        prepare(path, cache=tmp_path / "cache")
    assert f"empty completion, first in {path}:1" in str(error.value.hint)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_run_without_a_data_set_shows_a_line_that_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data set") as error:
        prepare(cache=tmp_path)
    assert "--dataset" in str(error.value.hint)


def test_second_run_uses_cache_unless_settings_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run reads the cache and another setting does not."""
    path = write(tmp_path / "a.jsonl", [*GOOD, *BAD])
    first = prepare(path, cache=tmp_path / "cache")
    encoded = []
    original = tokenise.encode_rows
    monkeypatch.setattr(tokenise, "encode_rows", lambda *args: encoded.append(1) or original(*args))
    second = prepare(path, cache=tmp_path / "cache")
    assert not encoded
    assert second.report == first.report
    assert all(same(train_of(first).samples[i], train_of(second).samples[i]) for i in range(20))
    prepare(path, cache=tmp_path / "cache", system="s")
    write(path, GOOD)
    prepare(path, cache=tmp_path / "cache")
    assert len(encoded) == 2


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    prepare(path, cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    os.truncate(folder / "ids.bin", 40)
    again = train_of(prepare(path, cache=tmp_path / "cache"))
    expected = train_of(prepare(path, cache=tmp_path / "other"))
    assert all(same(again.samples[i], expected.samples[i]) for i in range(20))


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    original = pipeline.encode_corpus
    others: list[PreparedData] = []

    def while_another_runs(*args: Any, **kwargs: Any) -> Any:
        if not others:
            others.append(PreparedData(None, None, None))
            others.append(prepare(path, cache=tmp_path / "cache"))
        return original(*args, **kwargs)

    monkeypatch.setattr(pipeline, "encode_corpus", while_another_runs)
    mine = train_of(prepare(path, cache=tmp_path / "cache"))
    assert all(same(mine.samples[i], train_of(others[1]).samples[i]) for i in range(20))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_cache_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    with pytest.raises(DataError, match="cannot be written") as error:
        prepare(path, cache=path)
    assert "--data.cache" in str(error.value.hint)


def test_worker_processes_give_same_samples_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes give the same samples and the same report."""
    path = write(tmp_path / "a.jsonl", [*GOOD, *BAD] * 4)
    alone = prepare(path, cache=tmp_path / "one", workers=1)
    monkeypatch.setattr(tokenise, "CHUNK", 8)
    monkeypatch.setattr(tokenise, "_IN_PROCESS", 8)
    said: list[str] = []
    together = prepare(path, cache=tmp_path / "two", workers=2, said=said)
    assert together.report == alone.report
    assert len(train_of(together).samples) == len(train_of(alone).samples) == 80
    assert all(same(train_of(alone).samples[i], train_of(together).samples[i]) for i in range(80))
    assert said[-1] == "Tokenised 92 of 92 rows"


def test_an_error_in_a_worker_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenise, "CHUNK", 8)
    monkeypatch.setattr(tokenise, "_IN_PROCESS", 8)
    path = write(tmp_path / "a.jsonl", GOOD * 2)
    with path.open("a") as file:
        file.write("{oops\n")
    with pytest.raises(DataError, match=rf"{path}:41: malformed JSON"):
        prepare(path, cache=tmp_path / "cache", workers=2)
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_process_tokenises_and_the_others_open_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    section = DataSection(train=(str(path),), cache=tmp_path / "cache")
    events: list[str] = []
    original = pipeline.encode_corpus
    monkeypatch.setattr(pipeline, "encode_corpus", lambda *a, **k: events.append("encode") or original(*a, **k))

    def run(*, is_main: bool, barrier: Any) -> PreparedData:
        encoder = SampleEncoder(byte_tokenizer(), section, encoding_of("chat"))
        return DataPreparation(encoder, 1, events.append, barrier, is_main).prepare()

    def barrier_of_the_other() -> None:
        events.append("other waits")
        run(is_main=True, barrier=lambda: events.append("main arrives"))

    other = train_of(run(is_main=False, barrier=barrier_of_the_other))
    assert events == ["other waits", "encode", "main arrives"]
    assert len(other.samples) == 20


def test_split_depends_on_seed_only(tmp_path: Path) -> None:
    """Held-out samples depend on the seed alone and nothing is lost."""
    path = write(tmp_path / "a.jsonl", [*GOOD[:9], *BAD * 5, *GOOD[9:]])

    def split(seed: int) -> tuple[list[int], list[int]]:
        data = prepare(path, cache=tmp_path / "cache", split_ratio=0.2, seed=seed)
        assert data.validation is not None
        return train_of(data).samples.sample_ids.tolist(), data.validation.samples.sample_ids.tolist()

    train, held_out = split(1)
    assert len(held_out) == 4
    assert sorted(train + held_out) == list(range(20))
    assert split(1) == (train, held_out)
    assert split(2) != (train, held_out)
    with pytest.raises(ConfigError, match="there are only 1"):
        prepare(write(tmp_path / "b.jsonl", GOOD[:1]), cache=tmp_path / "cache", split_ratio=0.5)


def test_pieces_of_one_row_are_held_out_together(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "x" * 50} for _ in range(10)])
    data = prepare(path, cache=tmp_path / "c", encoding="text", max_length=20, truncation="split", split_ratio=0.3)
    assert data.validation is not None
    rows = [{p.location(int(i)) for i in p.samples.sample_ids} for p in (train_of(data), data.validation)]
    assert rows[0].isdisjoint(rows[1])
    assert (len(rows[0]), len(rows[1])) == (7, 3)
    data.validation.write_rows(tmp_path / "val.jsonl")
    assert (tmp_path / "val.jsonl").read_text() == ('{"text": "' + "x" * 50 + '"}\n') * 3


def test_validation_set_is_encoded_and_rows_may_be_in_memory(tmp_path: Path) -> None:
    """A validation set of its own is encoded too and rows may be in memory."""
    path = write(tmp_path / "a.jsonl", GOOD)
    data = prepare(path, cache=tmp_path / "cache", validation=(f"{path}#4",))
    assert data.validation is not None
    assert len(data.validation.samples) == 4
    section = DataSection(cache=tmp_path / "cache")
    encoder = SampleEncoder(byte_tokenizer(), section, encoding_of("chat"))
    data = DataPreparation(encoder, 1, print).prepare(GOOD, GOOD[:2])
    assert data.validation is not None
    assert (len(train_of(data).samples), len(data.validation.samples)) == (20, 2)
    assert train_of(data).location(3) == "train_dataset, row 4"


def test_reference_scores_travel_with_their_samples(tmp_path: Path) -> None:
    samples = train_of(prepare(write(tmp_path / "a.jsonl", GOOD), cache=tmp_path / "cache")).samples
    referenced = ReferencedSamples(samples)
    scored = referenced.subset([3, 7])
    assert scored[0].reference_logps is None
    referenced.fill(np.arange(20, dtype=np.float32)[:, None])
    assert [scored[i].reference_logps.tolist() for i in range(2)] == [[3.0], [7.0]]  # type: ignore[union-attr]  # set above
    assert len(scored) == 2
    with pytest.raises(ValueError, match="3 reference scores for 20 samples"):
        referenced.fill(np.zeros((3, 1)))


def test_cached_data_is_reported_under_current_name(tmp_path: Path) -> None:
    """Data from the cache is reported under the name that it has now."""
    section = DataSection(train=(str(tmp_path / "new.jsonl"),), cache=tmp_path / "cache", workers=1)
    rows = [{"query": "a", "response": "b"}, {"query": "", "response": "b"}]
    for name in ("old.jsonl", "new.jsonl"):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        named = section.model_copy(update={"train": (str(tmp_path / name),)})
        report = prepare_data(named, byte_tokenizer(), encoding="chat", seed=0, say=lambda _: None).report
        assert [source.name for source in report.sources] == [str(tmp_path / name)]
        assert [rejected.location for rejected in report.rejected.values()] == [f"{tmp_path / name}:2"]
