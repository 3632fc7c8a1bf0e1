"""What a run leaves can be loaded by others, and is what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from peft import PeftModel
from plain_torch import conversation_tokens, response_logp
from tiny_runs import Trained, conversations, run_training, write_model
from transformers import AutoTokenizer

from swift.errors import UsageError

ROWS = conversations(12)
HELD_OUT = conversations(4, seed=3)
SAVED = {"train.max_steps": 4, "checkpoint.save_last": True}
LORA = {"tuner.kind": "lora", "optim.lr": 1e-2}


def check_loss(model: torch.nn.Module, folder: Path, trained: Trained) -> None:
    """The model gives the loss that the training state gave after its last step."""
    samples = conversation_tokens(folder, HELD_OUT)
    with torch.no_grad():
        total = -sum(float(response_logp(model.eval(), tokens)) for tokens in samples)
    expected = trained.lines[max(trained.lines)]["eval_loss"]
    assert total / sum(len(answer) for _, answer in samples) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("ties", [False, True])
def test_a_checkpoint_is_a_folder_that_transformers_loads(tmp_path: Path, ties: bool) -> None:
    model = write_model(tmp_path / "model", tie_word_embeddings=ties)
    trained = run_training(model, tmp_path, ROWS, SAVED, validation=HELD_OUT)
    folder = trained.folder / "checkpoint-4"
    check_loss(plain_torch.load_model(folder), folder, trained)
    assert AutoTokenizer.from_pretrained(folder).chat_template == AutoTokenizer.from_pretrained(model).chat_template


@pytest.mark.parametrize(
    "changes", [{}, {"tuner.dora": True}, {"tuner.rslora": True}, {"tuner.modules_to_save": ["lm_head"]}]
)
def test_a_checkpoint_of_adapters_is_a_folder_that_peft_loads(
    tiny: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    trained = run_training(tiny, tmp_path, ROWS, {**SAVED, **LORA, **changes}, validation=HELD_OUT)
    folder = trained.folder / "checkpoint-4"
    check_loss(PeftModel.from_pretrained(plain_torch.load_model(tiny), folder), tiny, trained)
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_a_run_may_end_with_an_export_that_was_checked(tied: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = {"train.max_steps": 4, "export.to": "hf", "export.out": str(tmp_path / "model"), **changes}
    trained = run_training(tied, tmp_path, ROWS, settings, validation=HELD_OUT)
    check_loss(plain_torch.load_model(tmp_path / "model"), tmp_path / "model", trained)
    verification = json.loads((tmp_path / "model" / "verification.json").read_text())
    assert verification["weights"]["equal"] == "bit for bit"


def test_overwriting_export_is_refused_before_training(tiny: Path, tmp_path: Path) -> None:
    """An export that would overwrite another is refused before training."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious.txt").write_text("mine")
    settings = {"train.max_steps": 2, "export.to": "hf", "export.out": str(tmp_path / "model")}
    with pytest.raises(UsageError, match=r"already exists[\s\S]*--export.out"):
        run_training(tiny, tmp_path, ROWS, settings)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["precious.txt"]


def test_third_party_wrapper_sees_steps_and_changes_results(tiny: Path, tmp_path: Path, recorder: list[str]) -> None:
    """A third party's wrapper sees every step and the run sees its result."""
    trained = run_training(tiny, tmp_path, ROWS, {"train.max_steps": 5, "logging.report_to": recorder})
    assert trained.samples() == {
        0: [0, 1, 2, 3],
        1: [4, 5, 6, 7],
        2: [8, 9, 10, 11],
        3: [0, 1, 2, 3],
        4: [4, 5, 6, 7],
    }
    args = json.loads((trained.folder / "args.json").read_text())
    assert "noting-recorder 1.0" in json.dumps(args["plugins"])
