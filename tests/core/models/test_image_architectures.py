"""What the list of architectures that read images says is what is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_architectures
import torch
import transformers
from image_architectures import trained_on
from tiny_architectures import ARCHITECTURES, NEED_TORCHVISION, proven, rows_are_read
from transformers.utils import is_torchvision_available

from swift.errors import ModelError
from swift.models.media import ProcessorReader
from swift.models.media_processor import load_processor

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "image-architectures.md"
LISTED = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") and (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] != "`model_type`"
}


def test_the_list_holds_what_is_compared() -> None:
    assert list(LISTED) == list(ARCHITECTURES)
    assert {"equal", "refused"} >= {cell for cells in LISTED.values() for cell in cells[:4]}
    assert {kind: cells[4] for kind, cells in LISTED.items()} == {kind: trained_on(kind) for kind in LISTED}


WITHOUT_TORCHVISION = pytest.mark.skipif(
    not is_torchvision_available(), reason="needs torchvision: test_with_torchvision.py runs it where that is"
)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=WITHOUT_TORCHVISION if kind in NEED_TORCHVISION else ()) for kind in ARCHITECTURES],
)
def test_rows_and_layouts_of_an_architecture_are_as_listed(kind: str) -> None:
    rows, *layouts, _, _ = LISTED[kind]
    assert rows_are_read(kind) == (rows == "equal")
    found = proven(kind)
    assert [found.padded, found.padding_free, found.packed] == layouts


def test_positions_that_go_on_over_samples_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of a packed row without those of the model are not what the comparison calls equal."""
    monkeypatch.setattr(ProcessorReader, "_positions", lambda *_: None)
    assert proven("qwen2_5_vl").packed == "refused"


def test_sample_mixing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of a run samples that mix would be noticed."""
    monkeypatch.setattr(tiny_architectures.ViewModule, "check_images", lambda *_: None)
    with pytest.raises(AssertionError, match="not close"):
        proven("gemma3")


@pytest.mark.skipif(is_torchvision_available(), reason="needs an environment without torchvision")
def test_a_processor_that_needs_another_package_names_it(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text("{}")
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=r"PixtralProcessor.*torchvision"):
        load_processor(tmp_path, transformers.Mistral3Config(), None)
