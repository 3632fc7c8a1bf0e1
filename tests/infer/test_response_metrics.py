"""Answers compared with expected ones: letter by letter and box by box."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from tiny_images import image_files, image_model

from swift.errors import DataError
from swift_infer.response_metrics import bounding_boxes_in, edits, metric_of, overlap


def by_definition(one: str, other: str) -> int:
    """Levenshtein's distance as its recursion says it."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = distance(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, same)

    return distance(len(one), len(other))


def test_edits_are_those_of_the_definition() -> None:
    draw = random.Random(0)
    for _ in range(200):
        one, other = ("".join(draw.choices("abc", k=draw.randint(0, 9))) for _ in range(2))
        assert edits(one, other) == by_definition(one, other)
    assert edits("kitten", "sitting") == 3


def test_overlaps_are_those_of_counted_pixels() -> None:
    draw = random.Random(0)
    for _ in range(200):
        masks, boxes = [], []
        for _ in range(2):
            (left, right), (top, bottom) = (sorted(draw.sample(range(12), 2)) for _ in range(2))
            mask = np.zeros((12, 12), bool)
            mask[top:bottom, left:right] = True
            masks.append(mask)
            boxes.append((float(left), float(top), float(right), float(bottom)))
        expected = (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum()
        assert overlap(boxes[0], boxes[1]) == pytest.approx(expected)


def test_bounding_boxes_are_parsed_from_completions() -> None:
    assert bounding_boxes_in("at [1, 2, 3.5, 4] and (5,6,7,8)") == [(1, 2, 3.5, 4), (5, 6, 7, 8)]
    assert bounding_boxes_in("<|box_start|>(1,2),(3,4)<|box_end|>") == [(1, 2, 3, 4)]
    assert bounding_boxes_in('{"bbox_2d": [10, 20, 30, 40], "label": "a"}') == [(10, 20, 30, 40)]
    assert bounding_boxes_in("[1, 2, 3] and 4, 5, 6, 7") == []


def test_missing_and_extra_bounding_boxes_score_zero() -> None:
    metric = metric_of("iou")
    lines = [
        metric.of_response("[0, 0, 10, 10]", "[0, 0, 10, 5]"),
        metric.of_response("none", "[0, 0, 1, 1]"),
        metric.of_response("[0, 0, 1, 1] [0, 0, 9, 9]", "[0, 0, 1, 1]"),
    ]
    assert metric.of_lines(lines) == {"iou": 1.5 / 4, "iou_over_half": 0.25, "bounding_boxes": 4}
    with pytest.raises(DataError, match="has no bounding box"):
        metric.of_response("[0, 0, 1, 1]", "left")


def test_long_texts_count_for_more_than_short_ones() -> None:
    metric = metric_of("cer")
    lines = [metric.of_response("abcdefgh", "abcdefgx"), metric.of_response("y", "xx")]
    assert metric.of_lines(lines)["cer"] == 3 / 10
    with pytest.raises(DataError, match="no valid 'edits'"):
        metric.of_lines([{"right": True}])


@pytest.mark.full
def test_four_tasks_of_page_are_trained_and_measured(tmp_path: Path) -> None:
    """The four tasks of the page are learned from and measured."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "images.md"
    rows = page.read_text(encoding="utf-8").partition("```json tasks.jsonl\n")[2].partition("```")[0].splitlines()
    assert len(rows) == 4
    image_files(tmp_path, [(56, 56)] * 4)
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    (tmp_path / "box.jsonl").write_text(rows[2])
    model = image_model(tmp_path / "tiny", "qwen2_5_vl")
    flags = ["--train_type", "full", "--max_steps", "1", "--run_name", "first", "--output_dir", "runs"]
    trained = typed(["sft", "--model", str(model), "--dataset", "tasks.jsonl", *flags], tmp_path)
    assert trained.code == 0, trained.output
    assert "4 images" in trained.output
    for metric, file, names in (("cer", "tasks", {"cer", "accuracy"}), ("iou", "box", {"iou", "bounding_boxes"})):
        asked = ["eval", str(model), "--dataset", f"{file}.jsonl", "--metric", metric, "--max_new_tokens", "4"]
        told = typed([*asked, "--result_path", f"{metric}.jsonl"], tmp_path)
        assert told.code == 0, told.output
        assert names <= set(json.loads(told.output.splitlines()[-1]))
