"""A loss or a gradient that is not a number stops the run before the update, and says which samples it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import on_processes
from safetensors.torch import load_file, save_file
from tiny_runs import conversations, run_training, write_jsonl, write_model

from swift.config.sections import Config
from swift.errors import TrainingError
from swift.train.failures import resume_advice
from swift_testing.tokenizer import byte_tokenizer

ROWS = conversations(12)
ROWS[9]["messages"][1]["content"] += "Z"


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (True, "Resume from the last checkpoint: --resume_from_checkpoint run/checkpoint-2"),
        (False, "Start a new run from the last: --resume_from_checkpoint run/checkpoint-2 --resume_only_model true"),
    ],
)
def test_weights_alone_are_not_offered_to_resume_from(kept: bool, said: str) -> None:
    config = Config.model_validate({"checkpoint": {"optimizer_state": kept}})
    assert resume_advice(config, Path("run/checkpoint-2")).endswith(said)
    assert resume_advice(config, None) == "No checkpoint was saved."


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that breaks at the letter Z, which a single sample has: the tenth, of the third step."""
    folder = write_model(tmp_path_factory.mktemp("models") / "poisoned")
    weights = load_file(folder / "model.safetensors")
    (letter,) = byte_tokenizer()("Z").input_ids
    weights["model.embed_tokens.weight"][letter] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(autouse=True)
def weights_that_break_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the poisoned weights in: a file with a weight that is not finite is refused when it is read."""
    monkeypatch.setattr("swift.models.source.check_finite", lambda *_: None)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_step_and_the_line_of_the_sample_are_named(poisoned: Path, tmp_path: Path, asynchronous: bool) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", ROWS)
    settings = {
        "data.train": [str(data)],
        "train.micro_batch": 1,
        "train.accumulation": 4,
        "checkpoint.save_steps": 1,
        "checkpoint.asynchronous": asynchronous,
    }
    with pytest.raises(TrainingError) as caught:
        run_training(poisoned, tmp_path, None, settings)
    assert "Step 3 gave loss nan" in caught.value.message
    assert f"these samples is not finite: {data}:10. " in caught.value.message
    assert "checkpoint-2" in (caught.value.hint or "")
    folder = tmp_path / poisoned.name / "run"
    lines = [json.loads(line) for line in (folder / "logging.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[:-1]] == [1, 2]
    assert lines[-1]["status"] == "failed"
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


def test_the_weights_are_as_they_were_before_the_step(poisoned: Path, monkeypatch: Any, tmp_path: Path) -> None:
    from swift.backends.torch import step as steps

    seen: list[dict[str, torch.Tensor]] = []
    original = steps.train_step

    def watched(run: Any, state: Any, batch: Any, objective: Any) -> Any:
        seen[:] = [{name: weight.clone() for name, weight in state.model.state_dict().items()}]
        try:
            return original(run, state, batch, objective)
        except TrainingError:
            seen.append(dict(state.model.state_dict()))
            raise

    monkeypatch.setattr(steps, "train_step", watched)
    with pytest.raises(TrainingError):
        run_training(poisoned, tmp_path, ROWS)
    before, after = seen
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0, equal_nan=True)


def test_every_process_names_the_sample_of_one(poisoned: Path, tmp_path: Path) -> None:
    def case() -> None:
        run_training(poisoned, tmp_path, ROWS, {"train.micro_batch": 1, "train.accumulation": 2})

    (answers,) = on_processes(2, case)
    for answer in answers:
        assert isinstance(answer, TrainingError)
        assert "Step 3 gave loss nan" in answer.message
        assert "train_dataset, row 10. " in answer.message


def test_gradient_overflow_differs_from_bad_sample(tmp_path: Path) -> None:
    """A gradient overflow is distinguished from a bad sample."""
    folder = write_model(tmp_path / "huge")
    weights = load_file(folder / "model.safetensors")
    # Each sample's loss stays finite, while the gradient through the head is beyond fp32.
    weights["model.norm.weight"] *= 0
    weights["lm_head.weight"] = torch.full_like(weights["lm_head.weight"], 1e38)
    weights["lm_head.weight"][::2] *= -1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingError, match="the gradient overflowed"):
        run_training(folder, tmp_path, ROWS)


def test_run_continues_past_nan_if_configured(poisoned: Path, tmp_path: Path) -> None:
    trained = run_training(poisoned, tmp_path, ROWS, {"train.detect_nan": False, "train.max_steps": 4})
    assert trained.summary.status == "completed"
    assert trained.losses[2] is None
