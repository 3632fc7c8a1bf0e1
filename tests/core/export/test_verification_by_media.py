"""Exports of models that see or hear are asked about something fixed, as training's processor prepares it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_export_run import export
from tiny_images import image_model

from swift.errors import ExportError


def edited(name: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """What changes a JSON file of an export after it was written."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return damage


@pytest.mark.parametrize(
    ("kind", "medium", "tokens"),
    [
        ("llava", "image", 27),  # a question of 11 bytes after 4×4 patches of 56×56
        pytest.param("qwen2_5_vl", "image", 25, marks=pytest.mark.full),  # 4×3 of 28×28, within 112×112, and its ends
        pytest.param("qwen2_audio", "audio", 38, marks=pytest.mark.full),  # 25 a second, and its ends
    ],
)
def test_media_export_check_uses_fixed_prompt(tmp_path: Path, kind: str, medium: str, tokens: int) -> None:
    folder = export(image_model(tmp_path / "base", kind), "hf")
    report = json.loads((folder / "verification.json").read_text())["media"]
    assert report.keys() == {medium}
    assert report[medium]["tokens"] == tokens - 1
    assert report[medium]["inputs_equal"]
    assert report[medium]["largest_difference"] < 1e-5


def test_changed_processor_or_vision_encoder_fails_export(tmp_path: Path) -> None:
    base = image_model(tmp_path / "base", "llava")
    darker = edited("processor_config.json", lambda each: each["image_processor"].update(image_mean=[0.9, 0.9, 0.9]))
    with pytest.raises(ExportError, match=r"prepares a fixed image otherwise .* pixel_values differs"):
        export(base, "hf", darker)
    encoder = edited("config.json", lambda each: each["vision_config"].update(hidden_act="relu"))
    with pytest.raises(ExportError, match="question about a fixed image are up to"):
        export(base, "hf", encoder)
    with pytest.raises(ExportError, match="no processor that takes the images of training"):
        export(base, "hf", lambda folder: (folder / "processor_config.json").unlink())
    assert not (tmp_path / "base-export-hf").exists()
