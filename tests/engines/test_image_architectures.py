"""The page of model types holds what is found of types that read images: a selection covers every mechanism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from image_cells import ImageSubject
from tiers import tiered
from tiny_image_types import NOT_MADE, types
from transformers.utils import is_torchvision_available
from type_cells import Cell, Verdict

from swift.models.view import ViewModule

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "architectures.json"
LISTED: dict[str, dict[str, Any]] = json.loads(PAGE.read_text(encoding="utf-8"))["images"]["types"]
SELECTED = {
    "gemma3": "images that are read in both directions",
    "idefics3": "tiles, with a number of them of each sample",
    "qwen2_5_vl": "patches in one row, positions in three rows, windows",
    "qwen3_vl": "features added to deeper layers",
}
"""Types, and the mechanism that each stands for. `make architectures` tries all."""
QUICK = ("qwen3_vl",)
WITH_TORCHVISION = {
    "cohere2_vision": "a line break for each tile",
    "cosmos3_edge": "positions that repeat, which need a mask",
    "gemma4": "positions of patches, padded",
    "internvl": "tiles, and patches shuffled into channels",
    "janus": "features of an encoder that the class itself does not name",
    "lfm2_vl": "patches that are padded, of tiles of several sizes",
    "llava_next": "tiles of which the padding is left out",
    "minicpmv4_6": "a number before each image of a text",
    "minicpmv4_7": "positions that depend on tiles",
    "minimax_m3_vl": "an encoder that attends across the images of a batch: one row in each",
    "mistral3": "a list of images of several sizes",
    "qianfan_ocr": "matrices that are one on disk",
    "smolvlm": "a processor with its part for videos",
}
"""Further types, whose processors need torchvision."""


def test_page_lists_every_type_that_reads_images() -> None:
    """A newer transformers, or a number that was wrong, shows."""
    assert set(LISTED) == set(types()) - set(NOT_MADE)
    results = {verdict["result"] for cells in LISTED.values() for verdict in cells.values()}
    assert results == {"equal", "refused"}


@pytest.mark.parametrize("name", tiered(SELECTED, QUICK))
@pytest.mark.skipif(is_torchvision_available(), reason="is compared where torchvision is not")
def test_type_with_images_trains_as_listed(name: str, tmp_path: Path) -> None:
    """Padded, padding-free, packed, with LoRA, exported; with processors for Pillow."""
    _assert_as_listed(name, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_TORCHVISION)
@pytest.mark.skipif(not is_torchvision_available(), reason="needs torchvision: test_with_torchvision.py runs it")
def test_type_with_torchvision_trains_as_listed(name: str, tmp_path: Path) -> None:
    _assert_as_listed(name, tmp_path)


def _assert_as_listed(name: str, folder: Path) -> None:
    found = ImageSubject(name, folder).on_torch()
    assert "wrong" not in {verdict.result for verdict in found.values()}, _notes(found)
    listed = {cell: verdict["result"] for cell, verdict in LISTED[name].items() if cell in found}
    assert {cell: found[cell].result for cell in listed} == listed, _notes(found)


@pytest.mark.skipif(is_torchvision_available(), reason="is compared where torchvision is not")
def test_samples_that_mix_get_other_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees what the check before training would have refused."""
    subject = ImageSubject("gemma3", tmp_path)
    cell = Cell("padding-free", {"data.padding_free": True})
    assert subject.run(cell).result == "refused"
    monkeypatch.setattr(ViewModule, "check_images", lambda *_: None)
    assert subject.run(cell).result == "wrong"


def _notes(found: dict[str, Verdict]) -> str:
    return "\n".join(f"{cell}: {verdict}" for cell, verdict in found.items())
