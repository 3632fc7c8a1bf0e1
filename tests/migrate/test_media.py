"""Recipes whose models read images, video or audio."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from commands import typed

from swift_migrate.imports.media import reads_media

MEDIA = (
    "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2-Audio-7B", "Qwen/Qwen2.5-Omni-7B", "OpenGVLab/InternVL3-8B",
    "llava-hf/llava-1.5-7b-hf", "openbmb/MiniCPM-V-2_6", "openbmb/MiniCPM-o-2_6", "deepseek-ai/deepseek-vl2",
    "zai-org/glm-4v-9b", "zai-org/GLM-4.1V-9B-Thinking", "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "mistralai/Pixtral-12B-2409", "AIDC-AI/Ovis2-8B", "stepfun-ai/GOT-OCR2_0",
)  # fmt: skip
TEXT = (
    "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct", "mistralai/Mistral-7B-v0.1", "openbmb/MiniCPM-2B",
    "zai-org/glm-4-9b", "OpenGVLab/internlm2_5-7b", "deepseek-ai/DeepSeek-V3", "./novel/supervised", "google/gemma-2b",
)  # fmt: skip


def test_multimodal_model_is_detected_by_name() -> None:
    assert [name for name in (*MEDIA, *TEXT) if reads_media(name)] == list(MEDIA)


def test_multimodal_model_is_detected_by_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "vision_config": {}}))
    assert reads_media(str(tmp_path))
    (tmp_path / "my-vl").mkdir()
    (tmp_path / "my-vl" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert not reads_media(str(tmp_path / "my-vl"))


def test_import_reports_image_and_video_handling(tmp_path: Path) -> None:
    script = "MAX_PIXELS=1003520 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --dataset d --freeze_vit true"
    ended = typed(["config", "import", script, "--out", "run.yaml"], tmp_path)
    assert ended.code == 0
    text = (tmp_path / "run.yaml").read_text()
    assert "the model reads more than text" in text
    settings = yaml.safe_load(text)
    assert settings["data"]["max_pixels"] == 1003520
    assert str(settings["tuner"]["freeze_vit"]).lower() == "true"
