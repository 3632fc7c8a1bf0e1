"""A language model as a reranker on a server: it is asked there what it was asked in training, word for word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from swift.checkpoint.weights_location import WeightsLocation
from swift.config.sections import DataSection, ModelSection
from swift.contracts import TOKEN_SCORES
from swift.errors import ModelError, UsageError
from swift.export.objective import add_files_of_objective
from swift_infer.scoring import RowScores, scoring_objective
from swift_infer.serving.options import ServeOptions
from swift_infer.serving.request import serve_request
from swift_infer.serving.scores import served_scores
from swift_testing.subjects import write_model

RERANKER = "generative_reranker"
OBJECTIVE = {
    "name": RERANKER, "positive_token": "y", "negative_token": "n", "instruction": 'Find "it"\n{{ here }}'
}  # fmt: skip
TASKS = ("causal_lm", "seq_cls", TOKEN_SCORES)
PAIR = [{"role": "query", "content": "colour?"}, {"role": "document", "content": 'blue, {{ or }} "not"'}]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base")


def trained_on(folder: Path, objective: dict[str, Any], system: str | None) -> list[int]:
    """The tokens of a pair up to the answer, as infer, eval and training make them."""
    source: Any = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(folder), processor=None)
    scoring = scoring_objective(WeightsLocation(ModelSection(), objective=objective), None)
    assert scoring is not None
    asked = RowScores(scoring, source, DataSection(system=system, max_length=4096))
    return list(asked.segment([message["content"] for message in PAIR], "a row").input_ids)[:-1]


def rendered(folder: Path, template: Path) -> list[int]:
    """The tokens of the pair as a server renders it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(PAIR, chat_template=template.read_text(), tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("system", [None, "Answer y or n.\tNothing else."])
def test_reranker_pair_renders_as_training(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str | None
) -> None:
    """A pair is rendered as in training and scored by the yes and no tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = WeightsLocation(ModelSection(path=str(base)), system=system, objective=OBJECTIVE)
    scoring = scoring_objective(place, None)
    assert scoring is not None
    template, tokens = served_scores(scoring, place, base, say=print)
    assert tokens == ("y", "n")
    assert rendered(base, template) == trained_on(base, OBJECTIVE, system)


def test_exported_reranker_declares_its_prompt(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "exported"
    shutil.copytree(base, folder)
    conversation = [{"role": "user", "content": "colour?"}]
    before = AutoTokenizer.from_pretrained(folder).apply_chat_template(conversation, tokenize=False)
    add_files_of_objective(folder, OBJECTIVE, model=None, system="Answer.")
    assert AutoTokenizer.from_pretrained(folder).apply_chat_template(conversation, tokenize=False) == before
    assert json.loads((folder / "config.json").read_text())["classifier_from_token"] == ["n", "y"]
    request = serve_request(ServeOptions(model=str(folder)), tasks=TASKS, say=print)
    assert (request.task, request.decision_tokens) == (TOKEN_SCORES, ("y", "n"))
    assert request.chat_template is not None
    assert rendered(folder, request.chat_template) == trained_on(base, OBJECTIVE, "Answer.")
    plain = serve_request(ServeOptions(model=str(folder), task_type="causal_lm"), tasks=TASKS, say=print)
    assert (plain.task, plain.decision_tokens) == ("causal_lm", None)


def test_model_with_head_is_refused_as_yes_no_reranker(base: Path, tmp_path: Path) -> None:
    def served(folder: Path, tasks: tuple[str, ...] = TASKS) -> None:
        serve_request(ServeOptions(model=str(folder), task_type=RERANKER), tasks=tasks, say=print)

    with pytest.raises(UsageError, match=f"cannot serve a {RERANKER}"):
        served(base, ("causal_lm",))
    headed = tmp_path / "headed"
    shutil.copytree(base, headed)
    config = json.loads((headed / "config.json").read_text())
    (headed / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForSequenceClassification"]}))
    with pytest.raises(ModelError, match="needs a language model, but"):
        served(headed)
