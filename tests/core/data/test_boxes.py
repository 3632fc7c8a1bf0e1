"""Objects in images: what `<ref-object>` and `<bbox>` become, for each family of models."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_images
from encode_row import asked, encode_row, media_encoder
from tiny_image_types import tiny_image_parts
from tiny_images import image_files
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from swift.data.conversation import Unusable
from swift.errors import DataError
from swift_infer.questions import read_questions

WIDTH, HEIGHT = 90, 61


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    image_files(folder, [(WIDTH, HEIGHT), (56, 56)])
    return folder


def row(answer: str = "<bbox>", question: str = "<image>Where is <ref-object>?", **objects: Any) -> dict[str, Any]:
    images = [f"{number}.png" for number in range(question.count("<image>"))]
    return asked(question, answer, images=images, objects={"ref": ["the dot"], "bbox": [[9, 6.1, 45, 30.5]], **objects})


@cache
def processor_of(kind: str) -> Any:
    return tiny_image_parts(kind)[1] if kind == "internvl" else tiny_images.processor_of(kind)


def learned(kind: str, rows: dict[str, Any], folder: Path, **settings: Any) -> tuple[str, str]:
    """Return the whole text of a row, and what of it is learned."""
    encoder = media_encoder(processor_of(kind), folder, **settings)
    ((segment,),) = (each.segments for each in encode_row(encoder, rows, folder))
    decode = encoder.tokenizer.decode
    return decode(segment.input_ids), decode(segment.input_ids[segment.weights > 0]).removesuffix("<|im_end|>")


@pytest.mark.parametrize(
    ("kind", "name", "box"),
    [
        ("qwen2_vl", "<|object_ref_start|>the dot<|object_ref_end|>", "<|box_start|>(100,100),(500,500)<|box_end|>"),
        ("qwen3_vl", "the dot", "[100, 100, 500, 500]"),
        ("internvl", "<ref>the dot</ref>", "<box>[[100, 100, 500, 500]]</box>"),
        ("llava", "the dot", "[100, 100, 500, 500]"),
    ],
)
def test_normalized_bounding_boxes_follow_model_family(kind: str, name: str, box: str, folder: Path) -> None:
    text, answer = learned(kind, row(), folder)
    assert f"Where is {name}?" in text
    assert answer == box


def test_qwen2_5_vl_bounding_boxes_use_resized_pixels(folder: Path) -> None:
    height, width = smart_resize(HEIGHT, WIDTH, 28, 28 * 28, 112 * 112)
    assert (width, height) != (WIDTH, HEIGHT)
    expected = [round(width * 0.1), round(height * 0.1), round(width * 0.5), round(height * 0.5)]
    assert learned("qwen2_5_vl", row(), folder)[1] == str(expected)
    assert learned("qwen3_vl", row(), folder, bounding_boxes="none")[1] == str(expected)
    assert learned("qwen2_5_vl", row(), folder, bounding_boxes="norm1000")[1] == "[100, 100, 500, 500]"
    height, width = smart_resize(HEIGHT, WIDTH, 28, 28 * 28, 28 * 28)
    smaller = [round(width * 0.1), round(height * 0.1), round(width * 0.5), round(height * 0.5)]
    assert learned("qwen2_5_vl", row(), folder, max_pixels=28 * 28)[1] == str(smaller)


def test_bounding_boxes_follow_their_own_image(folder: Path) -> None:
    """Bounding boxes and points of several images are those of their images."""
    question = "<image><image>Where is <ref-object>, and <ref-object>?"
    objects = {"ref": ["a", "b"], "bbox": [[28, 14], [45, 30.5, 90, 61]], "image_id": [1, 0]}
    text, answer = learned("llava", row("<bbox> and <bbox>", question, **objects), folder)
    assert "Where is a, and b?" in text
    assert answer == "[500, 250] and [500, 500, 1000, 1000]"
    parts = row("<bbox>", bbox=[[0.1, 0.1, 0.5, 0.5]], bbox_type="norm1")
    assert learned("llava", parts, folder)[1] == "[100, 100, 500, 500]"
    thousandths = row("<bbox>", bbox=[[100, 100, 500, 500]], bbox_type="norm1000")
    assert learned("llava", thousandths, folder)[1] == "[100, 100, 500, 500]"


def test_tags_of_a_row_without_the_column_are_text(folder: Path) -> None:
    plain = row()
    del plain["objects"]
    assert learned("llava", plain, folder)[1] == "<bbox>"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (row("<bbox><bbox>"), "2 tags"),
        (row(ref=[]), "1 tags"),
        (row(bbox=[[9, 6, 91, 30]]), "bounding box outside its image"),
        (row(bbox=[[9, 6, 45]]), "the bounding box"),
        (row(bbox=[["a", 6, 45, 30]]), "the bounding box"),
        (row(bbox_type="feet"), "'bbox_type' is 'feet'"),
        (row(image_id=[3]), "images are 0 to 0"),
        (row(question="<image><image><ref-object>"), "no 'image_id'"),
        (row(size=3), "other keys"),
    ],
)
def test_unusable_bounding_boxes_report_reason(wrong: dict[str, Any], reason: str, folder: Path) -> None:
    with pytest.raises(Unusable, match=reason):
        learned("llava", wrong, folder)


def test_questions_do_not_fill_tags_and_say_so(folder: Path, tmp_path: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps(row()))
    with pytest.raises(DataError, match="supported in training only"):
        list(read_questions([str(folder / "rows.jsonl")], {}))
