"""Texts with labels: which columns and labels are read, and why a row cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift.config.sections import DataSection
from swift.data.batch import collate
from swift.data.pipeline import Prepared, prepare_data
from swift.errors import DataError
from swift_objectives.encodings.classification import MULTI_LABEL, REGRESSION, SINGLE_LABEL, ClassificationEncoding
from swift_testing.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()


def prepared(
    rows: Any,
    problem_type: str = SINGLE_LABEL,
    names: tuple[str, ...] = ("", "", ""),
    cache: Path | None = None,
    **data: Any,
) -> Prepared:
    section = DataSection(cache=cache, workers=1, **data)
    given = {} if data.get("train") else {"rows": rows}
    encoding = ClassificationEncoding(problem_type, names)
    train = prepare_data(section, TOKENIZER, encoding=encoding, seed=1, say=lambda _: None, **given).train
    assert train is not None
    return train


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"text": "ab <b>"}, None),
        ({"query": "q"}, [("user", "q")]),
        ({"query": "q", "response": "r"}, [("user", "q"), ("assistant", "r")]),
        ({"messages": [{"role": "user", "content": "q"}]}, [("user", "q")]),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}], "system": "s"},
            [("system", "s"), ("user", "q"), ("assistant", "r")],
        ),
    ],
)
def test_classified_text_is_one_segment(row: dict, text: list | None) -> None:
    """The whole text is one segment in the tokens of the tokenizer."""
    train = prepared([{**row, "label": 2}])
    (segment,) = train.samples[0].segments
    if text is None:
        expected = TOKENIZER(row["text"])["input_ids"]
    else:
        messages = [{"role": role, "content": content} for role, content in text]
        expected = TOKENIZER.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert segment.input_ids.tolist() == expected
    assert segment.weights.tolist() == [0.0] + [1.0] * (len(expected) - 1)
    assert train.samples[0].values["label"] == 2.0


@pytest.mark.parametrize(
    ("problem_type", "names", "label", "expected"),
    [
        (SINGLE_LABEL, ("", "", ""), 2, [2.0]),
        (SINGLE_LABEL, ("", "", ""), "2", [2.0]),
        (SINGLE_LABEL, ("", "", ""), 2.0, [2.0]),
        (SINGLE_LABEL, ("", ""), True, [1.0]),
        (SINGLE_LABEL, ("neg", "pos"), "pos", [1.0]),
        (SINGLE_LABEL, ("1", "0"), "0", [1.0]),
        (MULTI_LABEL, ("a", "b", "c"), ["c", "a"], [1.0, 0.0, 1.0]),
        (MULTI_LABEL, ("", "", ""), [0, 1], [1.0, 1.0, 0.0]),
        (MULTI_LABEL, ("", "", ""), "[0, 2]", [1.0, 0.0, 1.0]),
        (MULTI_LABEL, ("", "", ""), [], [0.0, 0.0, 0.0]),
        (MULTI_LABEL, ("", "", ""), [0.0, 1.0, 0.5], [0.0, 1.0, 0.5]),
        (MULTI_LABEL, ("", "", ""), 1, [0.0, 1.0, 0.0]),
        (REGRESSION, ("",), "-1.5", [-1.5]),
        (REGRESSION, ("", ""), [1, 2.5], [1.0, 2.5]),
    ],
)
def test_labels_are_numbers_names_or_lists(problem_type: str, names: tuple, label: Any, expected: list) -> None:
    train = prepared([{"text": "some text", "label": label}], problem_type, names)
    batch = collate([train.samples[0]], flat=True)
    columns = ClassificationEncoding(problem_type, names).values
    assert [float(batch.values[name][0]) for name in columns] == expected


@pytest.mark.parametrize(
    ("problem_type", "names", "label", "reason"),
    [
        (SINGLE_LABEL, ("", ""), None, "no label"),
        (SINGLE_LABEL, ("", ""), "", "no label"),
        (SINGLE_LABEL, ("", ""), 2, "label out of range"),
        (SINGLE_LABEL, ("", ""), -1, "label out of range"),
        (SINGLE_LABEL, ("", ""), 0.5, "malformed label"),
        (SINGLE_LABEL, ("", ""), float("nan"), "malformed label"),
        (SINGLE_LABEL, ("neg", "pos"), "neutral", "unknown label"),
        (MULTI_LABEL, ("", ""), [0, 5], "label out of range"),
        (MULTI_LABEL, ("", ""), [0.0, 1.5], "malformed label"),
        (REGRESSION, ("",), float("nan"), "malformed label"),
        (REGRESSION, ("",), "much", "malformed label"),
        (REGRESSION, ("",), [1, 2], "malformed label"),
    ],
)
def test_labels_that_cannot_be_used_are_counted_by_reason(
    problem_type: str, names: tuple, label: Any, reason: str
) -> None:
    good = 0 if problem_type == SINGLE_LABEL else [0] if problem_type == MULTI_LABEL else 0.0
    train = prepared([{"text": "good one", "label": good}, {"text": "bad", "label": label}], problem_type, names)
    assert {name: rejected.count for name, rejected in train.report.rejected.items()} == {reason: 1}
    assert len(train.samples) == 1


@pytest.mark.parametrize(
    ("label", "named"), [("pos", "--labels pos"), ([0, 1], "--problem_type multi_label_classification")]
)
def test_wrong_label_type_is_refused_with_hint(label: Any, named: str) -> None:
    """Labels of another kind than the run learns stop it with what to type."""
    with pytest.raises(DataError) as refused:
        prepared([{"text": "one", "label": label}])
    assert named in str(refused.value.hint)


def test_texts_without_anything_to_score_are_counted_by_reason() -> None:
    rows = [{"text": text, "label": 0} for text in ("fine", " ", "x" * 50)]
    train = prepared(rows, max_length=20)
    assert set(train.report.rejected) == {"empty text", "too long"}
    cut = prepared(rows, max_length=20, truncation="right")
    assert [len(cut.samples[index].segments[0]) for index in range(2)] == [len(TOKENIZER("fine")["input_ids"]), 20]


def test_csv_files_with_text_and_label_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('text,label\n"good, really",pos\nbad,neg\nneither,\n')
    train = prepared(None, names=("neg", "pos"), train=(str(file),))
    assert [train.samples[index].values["label"] for index in range(2)] == [1.0, 0.0]
    assert {name: rejected.location for name, rejected in train.report.rejected.items()} == {"no label": f"{file}:4"}


def test_tokenised_data_of_other_labels_is_not_found_again(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": "a"}]
    one = prepared(rows, names=("a", "b"), cache=tmp_path / "kept")
    other = prepared(rows, names=("b", "a"), cache=tmp_path / "kept")
    labels = [each.samples[0].values["label"] for each in (one, other)]
    assert np.array_equal(labels, [0.0, 1.0])


@pytest.mark.parametrize(
    ("problem_type", "names", "labels", "missing"),
    [
        (SINGLE_LABEL, ("", "", ""), (0, 2, 2), "1 label that no text has, which the model will not learn: 1"),
        (
            SINGLE_LABEL,
            ("bad", "so so", "good"),
            (2,),
            "2 labels that no text has, which the model will not learn: bad, so so",
        ),
        (MULTI_LABEL, ("", "", ""), ([0, 2], [0]), "1 label that no text has, which the model will not learn: 1"),
        (SINGLE_LABEL, ("", ""), (0, 1), None),
        (REGRESSION, ("",), (0.5,), None),
    ],
)
def test_labels_that_no_text_has_are_named(
    problem_type: str, names: tuple[str, ...], labels: Any, missing: Any
) -> None:
    train = prepared([{"text": f"text {at}", "label": label} for at, label in enumerate(labels)], problem_type, names)
    remarks = ClassificationEncoding(problem_type, names).remarks(train.samples)
    assert list(remarks) == ([] if missing is None else [f"The training set has {missing}"])
    halves = [train.samples.subset([at]) for at in range(len(train.samples))]
    if problem_type == SINGLE_LABEL and missing is None:
        assert [half.column("label").tolist() for half in halves] == [[0.0], [1.0]]
