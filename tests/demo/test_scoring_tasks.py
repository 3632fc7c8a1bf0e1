"""The tasks of models that score: their labels are right, and nothing held out is learned from."""

from typing import Any

import pytest

from swift_demo.scoring import DEMOS, class_rows, embedding_rows, one_digit_wrong, reranker_rows, reward_rows
from swift_demo.task import completion, split_numbers


def test_rejected_response_has_one_wrong_digit() -> None:
    train, test = reward_rows()
    assert (len(train), len(test)) == (1500, 100)
    for row in train + test:
        asked, said = (message["content"] for message in row["messages"])
        assert said == " ".join(asked.split()[1].rstrip("."))
        assert sum(a != b for a, b in zip(said.split(), row["rejected_response"].split(), strict=True)) == 1


def test_the_classes_are_the_largest_digit_and_equally_frequent() -> None:
    train, test = class_rows()
    for rows in (train, test):
        assert all(row["label"] == max(int(c) for c in row["text"] if c.isdigit()) for row in rows)
        assert [sum(row["label"] == k for row in rows) for k in range(10)] == [len(rows) // 10] * 10


def test_class_and_number_labels_match_digits() -> None:
    """Labels of several classes and numbers say what the digits are."""
    for kind, expected in (("present", lambda d: sorted(set(d))), ("mean", lambda d: sum(d) / 3)):
        train, test = class_rows(kind=kind)
        for row in train + test:
            assert row["label"] == expected([int(c) for c in row["text"] if c.isdigit()])


def test_query_has_one_positive_and_near_negatives() -> None:
    """A query has one right document and others that differ in a digit."""
    train, test = reranker_rows(rows=1600, negatives=3)
    assert len(train) == 1600
    for row in train + test:
        assert row["positive"] == [f"It is {row['query']}."]
        assert len(set(row["negative"])) == (3 if row in train else 7)
        for wrong in row["negative"]:
            assert sum(a != b for a, b in zip(row["positive"][0], wrong, strict=True)) == 1


@pytest.mark.parametrize("name", DEMOS)
def test_eval_questions_are_not_in_training(name: str) -> None:
    train, test = DEMOS[name].rows()
    column = {"seq_cls": "text", "embedding": "anchor", "reranker": "query", "rm": "messages"}[name]

    def asked(row: dict[str, Any]) -> str:
        return str(row[column][0]["content"] if column == "messages" else row[column])

    assert len(test) >= 100
    assert not set(map(asked, train)) & set(map(asked, test))
    assert DEMOS[name].rows() == (train, test)  # the same in every process


def test_random_labels_leave_eval_rows_unchanged() -> None:
    """Random labels leave nothing to learn and the held-out rows as they are."""
    pairs, _ = reward_rows(random_labels=True)
    texts = ([message["content"] for message in row["messages"]] for row in pairs)
    assert 600 < sum(said == " ".join(asked.split()[1].rstrip(".")) for asked, said in texts) < 900
    classes, _ = class_rows(random_labels=True)
    assert sum(row["label"] == max(int(c) for c in row["text"] if c.isdigit()) for row in classes) < 300
    texts, test = embedding_rows(random_labels=True)
    assert sum(row["positive"] == completion(int(row["anchor"])) for row in texts) < 20
    assert test == embedding_rows()[1]
    groups, _ = reranker_rows(rows=800, random_labels=True)
    assert sum(row["positive"] == [f"It is {row['query']}."] for row in groups) < 200


def test_numbers_one_digit_off_keep_three_digits() -> None:
    import random

    for number in (100, 438, 999):
        others = one_digit_wrong(number, random.Random(0), 20)
        assert len(set(others)) == 20
        assert all(100 <= other <= 999 and other != number for other in others)
    assert len(split_numbers()[0]) == 800
