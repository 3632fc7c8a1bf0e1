"""Tests of ms-swift's environment variables that set options of an objective."""

from __future__ import annotations

import pytest

from swift.errors import ConfigError
from swift.parsing import Parsed, parse

EMBEDDING = "sft --task_type embedding --model m --dataset d"


def parsed(line: str) -> Parsed:
    command, *words = line.split()
    return parse(words, command, complete=False)


@pytest.mark.parametrize(
    ("task", "variables"),
    [
        (
            "embedding",
            {
                "INFONCE_TEMPERATURE": ("0.05", "temperature", 0.05),
                "INFONCE_HARD_NEGATIVES": ("3", "hard_negatives", 3),
                "INFONCE_MASK_FAKE_NEGATIVE": ("1", "mask_false_negatives", True),
                "INFONCE_FAKE_NEG_MARGIN": ("0.2", "false_negative_margin", 0.2),
                "INFONCE_INCLUDE_QQ": ("true", "include_qq", True),
                "INFONCE_INCLUDE_DD": ("yes", "include_dd", True),
            },
        ),
        ("embedding", {"INFONCE_USE_BATCH": ("False", "in_batch_negatives", False)}),
        (
            "generative_reranker",
            {
                "LISTWISE_RERANKER_TEMPERATURE": ("0.5", "temperature", 0.5),
                "MAX_POSITIVE_SAMPLES": ("2", "max_positives", 2),
                "MAX_NEGATIVE_SAMPLES": ("7", "max_negatives", 7),
                "GENERATIVE_RERANKER_POSITIVE_TOKEN": ("Y", "positive_token", "Y"),
                "GENERATIVE_RERANKER_NEGATIVE_TOKEN": ("N", "negative_token", "N"),
            },
        ),
    ],
)
def test_variables_set_options_and_name_flags(
    monkeypatch: pytest.MonkeyPatch, task: str, variables: dict[str, tuple[str, str, object]]
) -> None:
    for variable, (typed, _, _) in variables.items():
        monkeypatch.setenv(variable, typed)
    run = parsed(f"sft --task_type {task} --model m --dataset d")
    for variable, (typed, option, value) in variables.items():
        assert getattr(run.objective.options, option) == value
        (note,) = [note for note in run.notes if variable in note]
        assert f"--objective.{option} {typed}" in note


def test_video_variables_are_read_or_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"FPS": "1.5", "FPS_MAX_FRAMES": "12", "VIDEO_MAX_PIXELS": "50176", "NFRAMES": "4"}.items():
        monkeypatch.setenv(variable, value)
    run = parsed("sft --model m --dataset d")
    assert run.config.data.video_fps == 1.5
    assert run.config.data.video_max_frames == 12
    for variable, flag in {"VIDEO_MAX_PIXELS": "--max_pixels", "NFRAMES": "--video_fps"}.items():
        (note,) = [note for note in run.notes if note.startswith(f"{variable} has no effect")]
        assert flag in note


def test_flag_overrides_variable_with_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFONCE_TEMPERATURE", "0.05")
    run = parsed(f"{EMBEDDING} --objective.temperature 0.2")
    assert run.config.objective.model_dump()["temperature"] == 0.2
    assert any("INFONCE_TEMPERATURE has no effect" in note for note in run.notes)


def test_variable_applies_to_its_objective_and_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFONCE_TEMPERATURE", "0.05")
    assert not parsed("sft --model m --dataset d").notes
    run = parsed(f"{EMBEDDING} --loss_type contrastive")
    assert run.notes == ["INFONCE_TEMPERATURE has no effect: the loss is contrastive."]


def test_invalid_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFONCE_TEMPERATURE", "warm")
    with pytest.raises(ConfigError, match="INFONCE_TEMPERATURE"):
        parsed(EMBEDDING)


def test_other_reranker_group_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTWISE_RERANKER_MIN_GROUP_SIZE", "2")
    parsed("sft --task_type reranker --model m --dataset d")
    monkeypatch.setenv("LISTWISE_RERANKER_MIN_GROUP_SIZE", "4")
    parsed("sft --model m --dataset d")
    with pytest.raises(ConfigError, match="LISTWISE_RERANKER_MIN_GROUP_SIZE 4 is not supported"):
        parsed("sft --task_type reranker --model m --dataset d")
