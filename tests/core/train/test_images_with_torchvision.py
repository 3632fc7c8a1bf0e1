"""Training with images where torchvision is installed; `tests/core/models/test_with_torchvision.py` runs these."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from image_runs import ALL, image_folder, trained_on_images
from tiny_images import image_model
from transformers.utils import is_torchvision_available

from swift.cli.main import run as swift
from swift.models.media_processor import load_processor

pytestmark = pytest.mark.skipif(
    not is_torchvision_available(), reason="needs torchvision: test_with_torchvision.py runs it where that is"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))


def test_a_model_that_was_saved_without_torchvision_is_read(tmp_path: Path) -> None:
    """Its processor has no part for videos, without which transformers does not open it here."""
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    assert "video_processor" not in (model / "processor_config.json").read_text()
    with pytest.raises(OSError, match="video processor"):
        transformers.AutoProcessor.from_pretrained(model)
    config = transformers.AutoConfig.from_pretrained(model)
    assert load_processor(model, config, transformers.AutoTokenizer.from_pretrained(model)) is not None


def test_a_processor_with_its_part_for_videos_asks_and_exports(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As models are released: the part is read, kept by the export, and images are asked about."""
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    config = transformers.AutoConfig.from_pretrained(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    images = load_processor(model, config, tokenizer).image_processor
    videos = transformers.Qwen2VLVideoProcessor(patch_size=14, merge_size=2)
    template = tokenizer.chat_template
    transformers.Qwen2_5_VLProcessor(images, tokenizer, videos, chat_template=template).save_pretrained(model)
    run = trained_on_images(model, folder, "with-videos", ALL)
    checkpoint, export = str(run.summary.last_checkpoint), tmp_path / "export"
    assert swift(["infer", checkpoint, "--prompt", "What is it?", "--image", str(folder / "0.png")]) == 0
    assert swift(["export", checkpoint, "--to", "hf", "--out", str(export)]) == 0, capsys.readouterr()
    exported = transformers.AutoProcessor.from_pretrained(export)
    assert type(exported.video_processor).__name__ == "Qwen2VLVideoProcessor"
