"""`swift eval` of models that return scores or vectors: what it prints, beside transformers and numpy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from swift.models.sentence_files import write_prompts, write_sentence_files
from swift_testing.subjects import write_jsonl, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scores")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return write_model(folder / "base", num_hidden_layers=1, initializer_range=0.2)


def published(base: Path, name: str, model: Any) -> Path:
    """A folder of a model with a head, or of one of vectors, as others publish it."""
    to = base.with_name(name)
    model.save_pretrained(to)
    for file in [*base.glob("tokenizer*"), *base.glob("*.jinja")]:
        shutil.copy(file, to)
    return to


def with_head(base: Path, name: str, labels: int, **settings: Any) -> Path:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    torch.nn.init.normal_(model.score.weight)
    for setting, value in settings.items():
        setattr(model.config, setting, value)
    return published(base, name, model)


def evaluated(folder: Path, model: Path, rows: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    data = write_jsonl(folder / "rows.jsonl", rows)
    ended = typed(["eval", str(model), "--dataset", str(data), *words], folder)
    assert ended.code == 0, ended.output
    said: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    return said


@torch.no_grad()
def scores(model: Path, tokens: list[list[int]]) -> np.ndarray:
    head = AutoModelForSequenceClassification.from_pretrained(model).eval()
    return np.stack([head(torch.tensor([each])).logits[0].numpy() for each in tokens])


def test_a_reward_model_is_measured_by_the_pairs_that_it_ranks(folder: Path, base: Path) -> None:
    model = with_head(base, "reward", 1, problem_type="regression")
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [{"query": f"{n}?", "chosen": f"{n * 7}", "rejected": f"{n * 5 + 1}"} for n in range(1, 13)]

    def talk(row: dict[str, Any], side: str) -> list[int]:
        messages = [{"role": "user", "content": row["query"]}, {"role": "assistant", "content": row[side]}]
        return list(tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"])

    sides = [scores(model, [talk(row, side) for row in rows])[:, 0] for side in ("chosen", "rejected")]
    gaps = sides[0] - sides[1]
    said = evaluated(folder, model, rows)
    assert 0 < said["accuracy"] < 1, "a model that is always right would prove nothing"
    assert said == {
        "accuracy": pytest.approx((gaps > 0).mean()),
        "margin": pytest.approx(gaps.mean(), abs=1e-4),
        "pairs": 12,
    }


def test_embeddings_are_measured_by_retrieval(folder: Path, base: Path) -> None:
    """Vectors are measured by what they retrieve from all documents."""
    model = published(base, "vectors", AutoModel.from_pretrained(base))
    write_sentence_files(model, size=64, pooling="mean")
    write_prompts(model, {"query": "Q: "})
    rows = [{"anchor": f"{n}", "positive": f"{n} {n + 1}"} for n in range(20, 34)]
    rows.append({"anchor": "20 again", "positive": "20 21"})  # one document of two queries
    encoder, tokenizer = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)

    def vector(text: str) -> np.ndarray:
        with torch.no_grad():
            mean = encoder(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0)
        return np.asarray(mean / mean.norm())

    documents = list(dict.fromkeys(row["positive"] for row in rows))
    corpus = np.stack([vector(text) for text in documents])
    places = []
    for row in rows:
        order = np.argsort(-(corpus @ vector(f"Q: {row['anchor']}")))
        places.append(1 + order.tolist().index(documents.index(row["positive"])))
    said = evaluated(folder, model, rows)
    assert said["queries"] == 15
    assert said["mrr"] == pytest.approx(np.mean([1 / place for place in places]))
    assert 0 < said["mrr"] < 1
    assert said["recall@5"] == pytest.approx(np.mean([place <= 5 for place in places]))
    labelled = [{"sentence1": "a b", "sentence2": f"a {n}", "score": n / 8} for n in range(8)]
    write_prompts(model, {})
    similar = [float(vector("a b") @ vector(row["sentence2"])) for row in labelled]
    found = evaluated(folder, model, labelled)
    assert found["pearson"] == pytest.approx(np.corrcoef(similar, [row["score"] for row in labelled])[0, 1], abs=1e-4)
    assert found["pairs"] == 8


def test_what_is_for_text_is_refused_before_anything_is_loaded(folder: Path, base: Path) -> None:
    model = with_head(base, "refused", 1)
    for words, sentence in (
        (["--temperature", "1"], "--temperature applies to models that generate text"),
        (["--result_path", "out.jsonl"], "swift infer MODEL --dataset FILE"),
        (["--engine", "vllm"], "swift serve MODEL"),
    ):
        ended = typed(["eval", str(model), "--dataset", "none.jsonl", *words], folder)
        assert ended.code == 2
        assert sentence in ended.output


def test_infer_writes_scores_and_resumes(folder: Path, base: Path) -> None:
    """Infer writes the scores and labels of texts and conversations and goes on where it stopped."""
    model = with_head(base, "classes", 3, id2label={0: "red", 1: "green", 2: "blue"})
    tokenizer = AutoTokenizer.from_pretrained(model)
    talk = [{"role": "user", "content": "colour?"}, {"role": "assistant", "content": "blue"}]
    rows = [{"text": "a b c", "id": 7, "label": "red"}, {"messages": talk}]
    data, result = write_jsonl(folder / "texts.jsonl", rows), folder / "scored.jsonl"
    words = ["infer", str(model), "--dataset", str(data), "--result_path", str(result)]
    ended = typed(words, folder)
    assert ended.code == 0, ended.output
    rendered = tokenizer.apply_chat_template(talk, return_dict=True)["input_ids"]
    expected = scores(model, [tokenizer("a b c")["input_ids"], list(rendered)])
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    np.testing.assert_allclose([line["scores"] for line in lines], expected, atol=1e-5)
    assert [line["label"] for line in lines] == [["red", "green", "blue"][each] for each in expected.argmax(1)]
    assert lines[0]["id"] == 7
    assert [line.get("expected") for line in lines] == ["red", None], "the row's own label is kept"
    assert lines[0]["text"] == "a b c"
    assert lines[1]["messages"] == talk
    result.write_text(result.read_text().splitlines(keepends=True)[0])
    again = typed(words, folder)
    assert "already has 1 of 2 lines" in again.output
    whole = [json.loads(line) for line in result.read_text().splitlines()]
    assert whole[0] == lines[0]
    assert whole[1]["scores"] == pytest.approx(lines[1]["scores"], abs=1e-5)
    write_jsonl(data, [{"text": "a b c"}, {"text": ""}])
    empty = typed(["infer", str(model), "--dataset", str(data)], folder)
    assert empty.code == 2
    assert "texts.jsonl:2: the text is empty" in empty.output
    write_jsonl(data, [{"query": "colour?", "positive": ["blue"], "negative": ["red"]}])
    ranked = typed(["infer", str(model), "--dataset", str(data)], folder)
    assert ranked.code == 2
    assert "texts.jsonl:1: the column 'positive' is not scored" in ranked.output


def test_infer_prints_vectors_of_length_1(folder: Path, base: Path) -> None:
    model = published(base, "printed", AutoModel.from_pretrained(base))
    ended = typed(["infer", str(model), "--prompt", "colour?"], folder)
    line = json.loads(ended.output.splitlines()[-1])
    tokens = torch.tensor([AutoTokenizer.from_pretrained(model)("colour?")["input_ids"]])
    with torch.no_grad():
        last = AutoModel.from_pretrained(model).eval()(tokens).last_hidden_state[0, -1]
    np.testing.assert_allclose(line["vector"], (last / last.norm()).numpy(), atol=1e-5)


def test_infer_prepends_query_and_document_prompts(folder: Path, base: Path) -> None:
    """Infer puts the prompts of the model before queries and documents."""
    model = published(base, "prompted", AutoModel.from_pretrained(base))
    write_sentence_files(model, size=64, pooling="last")
    write_prompts(model, {"query": "Q: ", "document": "D: "})
    rows = [{column: "blue"} for column in ("query", "document", "text")]
    rows += [{"text": f"{prompt}blue"} for prompt in ("Q: ", "D: ")]
    data = write_jsonl(folder / "prompted.jsonl", rows)
    ended = typed(["infer", str(model), "--dataset", str(data)], folder)
    lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert [line["text"] for line in lines] == ["blue", "blue", "blue", "Q: blue", "D: blue"]
    query, document, text, *spelled_out = (np.array(line["vector"]) for line in lines)
    np.testing.assert_allclose([query, document], spelled_out, atol=1e-6)
    assert abs(query - document).max() > 0.01
    assert abs(query - text).max() > 0.01


def test_classes_and_rankings_have_their_metrics(folder: Path, base: Path) -> None:
    model = with_head(base, "labelled", 3, id2label={0: "red", 1: "green", 2: "blue"})
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [f"{n} is a colour" for n in range(12)]
    rows = [{"text": text, "label": ("red", "green", "blue")[n % 3]} for n, text in enumerate(texts)]
    likeliest = scores(model, [tokenizer(text)["input_ids"] for text in texts]).argmax(1)
    said = evaluated(folder, model, rows)
    assert said["accuracy"] == pytest.approx(np.mean(likeliest == np.arange(12) % 3))
    assert {"f1_micro", "f1_macro", "auc", "texts"} <= said.keys()

    ranker = with_head(base, "ranker", 1)
    queries = [{"query": f"{n}?", "positive": [f"{n}"], "negative": [f"{n + 1}", f"{n + 2}"]} for n in range(20, 30)]

    def score(query: str, document: str) -> float:
        text = f"<Query>: {query}\n<Document>: {document}{tokenizer.eos_token}"
        return float(scores(ranker, [tokenizer(text)["input_ids"]])[0, 0])

    places = []
    for row in queries:
        right, *wrong = (score(str(row["query"]), text) for text in (*row["positive"], *row["negative"]))
        places.append(1 + sum(each >= right for each in wrong))
    found = evaluated(folder, ranker, queries)
    assert found["mrr"] == pytest.approx(np.mean([1 / place for place in places]))
    assert 0 < found["recall@1"] < 1
    assert found["queries"] == 10


def test_several_labels_and_numbers_have_their_metrics(folder: Path, base: Path) -> None:
    texts = [f"{n} is a text" for n in range(12)]
    names = ["red", "green", "blue"]
    several = with_head(base, "several", 3, problem_type="multi_label_classification", id2label=dict(enumerate(names)))
    tokens = [AutoTokenizer.from_pretrained(several)(text)["input_ids"] for text in texts]
    true = np.array([[n % 2, n % 3 == 0, n < 5] for n in range(12)], dtype=bool)
    rows = [
        {"text": text, "label": [names[at] for at in np.flatnonzero(row)]}
        for text, row in zip(texts, true, strict=True)
    ]
    positive = scores(several, tokens) > 0
    assert positive.any(0).any(), "a model that says no to everything would prove little"
    said = evaluated(folder, several, rows)
    assert said["accuracy"] == pytest.approx((positive == true).all(1).mean())
    assert said["label_accuracy"] == pytest.approx((positive == true).mean())
    assert said["f1_micro"] == pytest.approx(2 * (positive & true).sum() / (positive.sum() + true.sum()))
    assert said["texts"] == 12

    number = with_head(base, "number", 1, problem_type="regression")
    wanted = np.array([(n * 7 % 12) / 3 for n in range(12)])
    found = scores(number, tokens)[:, 0].astype(np.float64)
    places = [np.argsort(np.argsort(each)) for each in (found, wanted)]
    measured = evaluated(
        folder, number, [{"text": text, "label": value} for text, value in zip(texts, wanted, strict=True)]
    )
    assert measured == {
        "mse": pytest.approx(((found - wanted) ** 2).mean(), rel=1e-4),
        "mae": pytest.approx(abs(found - wanted).mean(), rel=1e-4),
        "pearson": pytest.approx(np.corrcoef(found, wanted)[0, 1], abs=1e-4),
        "spearman": pytest.approx(np.corrcoef(*places)[0, 1]),
        "texts": 12,
    }
