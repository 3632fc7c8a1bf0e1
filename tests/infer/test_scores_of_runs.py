"""`swift eval` and `swift infer` of runs that trained adapters of models that score, beside transformers and PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from peft import PeftModel
from tiny_runs import run_training, write_jsonl, write_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

LORA = {
    "tuner.kind": "lora", "tuner.rank": 4, "optim.lr": 0.05, "train.max_steps": 4, "checkpoint.save_last": True,
}  # fmt: skip
QUERIES = [{"query": f"{n}?", "positive": [f"{n}"], "negative": [f"{n + 1}", f"{n + 2}"]} for n in range(20, 30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return write_model(folder / "base", num_hidden_layers=1, initializer_range=0.2)


def trained(base: Path, folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    run = run_training(
        base, folder, rows, {**LORA, **{name.replace("__", "."): each for name, each in settings.items()}}
    )
    assert run.summary.last_checkpoint is not None
    return run.summary.last_checkpoint


def asked(folder: Path, command: str, model: Path, rows: list[dict[str, Any]], *words: str) -> list[dict[str, Any]]:
    """Return the lines of JSON that a command prints."""
    data = write_jsonl(folder / "rows.jsonl", rows)
    ended = typed([command, str(model), "--dataset", str(data), *words], folder)
    assert ended.code == 0, ended.output
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]


def test_a_classifier_that_is_an_adapter_scores_as_peft_loads_it(folder: Path, base: Path) -> None:
    rows = [{"text": f"{n} is a text", "label": ("odd", "even")[n % 2 == 0]} for n in range(12)]
    run = trained(
        base, folder, rows, objective__name="seq_cls", model__labels=["odd", "even"], logging__run_name="classes"
    )
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    reference = PeftModel.from_pretrained(model, run).eval()
    assert any(weight.any() for name, weight in reference.named_parameters() if "lora_B" in name)
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        scores = np.stack([reference(torch.tensor([tokenizer(row["text"])["input_ids"]])).logits[0] for row in rows])
    lines = asked(folder, "infer", run, rows)
    np.testing.assert_allclose([line["scores"] for line in lines], scores, atol=1e-4)
    (said,) = asked(folder, "eval", run, rows)
    assert said["accuracy"] == pytest.approx(np.mean(scores.argmax(1) == [row["label"] == "even" for row in rows]))


def test_a_generative_reranker_is_ranked_by_what_yes_leads_no_by(folder: Path, base: Path) -> None:
    options = {"positive_token": "y", "negative_token": "n", "instruction": "find"}
    settings = {f"objective__{name}": value for name, value in options.items()}
    run = trained(
        base, folder, QUERIES, objective__name="generative_reranker", data__system="Judge.", logging__run_name="yes",
        **settings,
    )  # fmt: skip
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run).eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    yes, no = (tokenizer.convert_tokens_to_ids(text) for text in "yn")

    def lead(query: str, document: str) -> float:
        asking = f"<Instruct>: find\n<Query>: {query}\n<Document>: {document}"
        messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": asking}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        with torch.no_grad():
            logits = reference(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
        return float(logits[yes] - logits[no])

    places = []
    for row in QUERIES:
        right, *wrong = (lead(row["query"], text) for text in (*row["positive"], *row["negative"]))
        places.append(1 + sum(each >= right for each in wrong))
    (said,) = asked(folder, "eval", run, QUERIES)
    assert 0 < said["recall@1"] < 1, "a model that is always right would prove nothing"
    assert said["mrr"] == pytest.approx(np.mean([1 / place for place in places]))
    assert said["recall@1"] == pytest.approx(np.mean([place == 1 for place in places]))
    assert said["queries"] == len(QUERIES)

    pairs = [{"query": row["query"], "document": row["negative"][0], "id": n} for n, row in enumerate(QUERIES)]
    lines = asked(folder, "infer", run, pairs)
    expected = [lead(pair["query"], pair["document"]) for pair in pairs]
    assert [line["score"] for line in lines] == pytest.approx(expected, abs=1e-4)
    assert [line["id"] for line in lines] == list(range(len(pairs)))
    refused = typed(["infer", str(run), "--prompt", "20?"], folder)
    assert refused.code == 2
    assert "with the columns query and document" in refused.output
    no_pair = typed(["infer", str(run), "--dataset", str(write_jsonl(folder / "no.jsonl", [{"text": "20"}]))], folder)
    assert no_pair.code == 2
    assert "no.jsonl:1: the objective generative_reranker needs the columns query and document" in no_pair.output


def test_task_type_selects_yes_no_reranking(folder: Path, base: Path) -> None:
    """The task type makes a language model a reranker that compares yes and no."""
    data = write_jsonl(folder / "queries.jsonl", QUERIES)
    task = ["--task_type", "generative_reranker"]
    of_bytes = typed(["eval", str(base), "--dataset", str(data), *task], folder)
    assert of_bytes.code == 2  # a tokenizer of bytes has no token for it
    assert "'yes', which is 3 tokens" in of_bytes.output
    server = typed(["eval", "--engine", "http://127.0.0.1:1", "--dataset", str(data), *task], folder)
    assert server.code == 2
    assert "--task_type does not apply to the server" in server.output
