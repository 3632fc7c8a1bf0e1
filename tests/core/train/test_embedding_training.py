"""Embeddings have the same numbers however the global batch is divided, and those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Trained, run_training

from swift.errors import ConfigError
from swift_testing.subjects import write_model as write_tiny

ROWS = [
    {"query": f"find {number}", "pos": [f"here is {number}"] * 1 + [f"or {number}"] * (number % 3 == 0),
     "neg": [f"not {number + index}" for index in range(1, 1 + number % 3)]}
    for number in range(100, 122)
]  # fmt: skip
"""Two batches of eight and one of six, with one or two positives and none to two negatives."""
SETTINGS: dict[str, Any] = {
    "objective.name": "embedding", "data.packing": False, "train.global_batch": 8, "train.max_steps": 4,
    "optim.lr": 1e-3, "optim.eps": 1e-6, "train.eval_steps": 4,
}  # fmt: skip
LOSSES: dict[str, dict[str, Any]] = {
    "infonce": {"objective.include_qq": True, "objective.mask_false_negatives": True, "objective.symmetric": True},
    "online contrastive": {"objective.loss": "online_contrastive"},
    "contrastive": {"objective.loss": "contrastive"},
    "in the row": {"objective.in_batch_negatives": False, "objective.hard_negatives": 2},
}


def trained(model: Path, out: Path, changes: dict[str, Any], micro: int, name: str = "run") -> Trained:
    rows = [row for row in ROWS if row["neg"] or changes.get("objective.in_batch_negatives", True)]
    settings = {**SETTINGS, **changes, "train.micro_batch": micro, "logging.run_name": name}
    return run_training(model, out, rows, settings, validation=rows[:5])


def same(one: Trained, other: Trained, tolerance: float = 1e-5) -> bool:
    facts = [[*run.losses, *run.grad_norms, run.lines[4]["eval_loss"]] for run in (one, other)]
    return facts[0] == pytest.approx(facts[1], rel=tolerance)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize(
    "loss", [pytest.param(name, marks=pytest.mark.full) for name in LOSSES if name != "infonce"] + ["infonce"]
)
def test_accumulation_has_the_numbers_of_one_micro_batch(model: Path, tmp_path: Path, loss: str) -> None:
    whole, accumulated = (trained(model, tmp_path / str(micro), LOSSES[loss], micro) for micro in (8, 2))
    assert same(whole, accumulated)
    assert whole.losses[-1] < whole.losses[0]


def test_embedding_step_loss_matches_infonce(model: Path, tmp_path: Path) -> None:
    """The loss of a step is InfoNCE of the vectors that transformers computes."""
    from transformers import AutoModel, AutoTokenizer

    run = run_training(
        model, tmp_path, ROWS[:6], {**SETTINGS, "train.global_batch": 6, "train.micro_batch": 4, "train.max_steps": 1}
    )
    reference, tokenizer = AutoModel.from_pretrained(model), AutoTokenizer.from_pretrained(model)

    def vector(text: str) -> torch.Tensor:
        hidden = reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
        return hidden / hidden.norm()

    with torch.no_grad():
        groups = [
            [[vector(text) for text in texts] for texts in ([row["query"]], row["pos"], row["neg"])] for row in ROWS[:6]
        ]
    losses = []
    for (query,), positives, negatives in groups:
        others = [each for group in groups if group[0][0] is not query for each in (*group[1], *group[2])]
        for positive in positives:
            logits = torch.stack([query @ each for each in (positive, *negatives, *others)]) / 0.1
            losses.append((logits.logsumexp(0) - logits[0]) / len(positives))
    assert run.losses == pytest.approx([float(sum(losses)) / 6], rel=1e-5)


def test_batch_of_one_without_negatives_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row per step is refused where there is nothing to compare it with."""
    alone = {**SETTINGS, "train.global_batch": 1, "train.micro_batch": 1, "train.max_steps": 1}
    pairs = [row for row in ROWS if not row["neg"]]
    for changes in ({}, {"objective.loss": "online_contrastive"}):
        with pytest.raises(ConfigError, match="compares the rows of a step with each other") as refused:
            run_training(model, tmp_path, pairs, {**alone, **changes})
        assert "--per_device_train_batch_size 32" in str(refused.value.hint)
    run = run_training(model, tmp_path, [row for row in ROWS if row["neg"]], alone)
    assert run.losses[0] > 0
    assert "only with its own negatives" in capsys.readouterr().out


def test_texts_are_padded_only_when_needed(model: Path, tmp_path: Path) -> None:
    """Texts are padded only on request or where packed texts would mix."""

    def run(name: str, **changes: Any) -> Trained:
        return trained(model, tmp_path, {"train.max_steps": 2, "train.eval_steps": None, **changes}, 8, name)

    plain, padded = run("plain"), run("padded", **{"data.padding_free": False})
    masked = run("masked", **{"model.attention": "eager"})
    assert [each.lines[2]["padding_fraction"] > 0 for each in (plain, padded, masked)] == [False, True, True]
    assert plain.losses == pytest.approx(padded.losses, rel=1e-5)
    assert plain.grad_norms == pytest.approx(padded.grad_norms, rel=1e-5)


def test_too_many_dimensions_are_refused_before_loading(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More dimensions than the model has are refused before it is loaded."""
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(ConfigError, match="matryoshka_dims has 4096, but the model's embeddings have"):
        run_training(model, tmp_path, ROWS, {**SETTINGS, "objective.matryoshka_dims": [4096]})
