"""Models that score, exported and served by vLLM, and asked as their users ask; compared with transformers."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from served import READY, Served, serving
from tiny_runs import run_training, write_jsonl
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from swift.cli.main import run
from swift.config.sections import ExportOptions
from swift.export.objective import add_files_of_objective
from swift.export.run import export_checkpoint
from swift.models.sentence_files import write_sentence_files
from swift_testing.subjects import write_model

pytestmark = pytest.mark.usefixtures("imported")

TEXTS = ["colour?", "What else is there, in a longer text?", "x", "It ends.<|im_end|>"]
QUERY, DOCUMENTS = "colour?", ["blue", "forty-two", "A colour is blue, or it is not."]
CLOSE = 1e-4
"""vLLM and transformers compute in fp32, on a CPU."""


def folder_of(small: Path, folder: Path, model: Any, *, verify: str = "transformers") -> Path:
    """A folder as others publish it, exported for vLLM."""
    model.save_pretrained(folder / "model")
    for file in [*small.glob("tokenizer*"), *small.glob("*.jinja")]:
        shutil.copy(file, folder / "model")
    if type(model).__name__.endswith("Model"):
        write_sentence_files(folder / "model", size=model.config.hidden_size, pooling="mean")
    out = folder / "exported"
    options = ExportOptions(out=out, verify=verify)
    export_checkpoint(folder / "model", to="vllm", options=options, say=lambda _: None)
    return out


def classifier(small: Path, labels: int) -> Any:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(small, num_labels=labels, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight, std=0.3)
    model.config.pad_token_id = AutoTokenizer.from_pretrained(small).pad_token_id
    return model


@torch.no_grad()
def logits(folder: Path, texts: list[str]) -> torch.Tensor:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return torch.cat([model(torch.tensor([tokenizer(text)["input_ids"]])).logits for text in texts])


def ask(server: Served, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        server.url.removesuffix("/v1") + path,
        json.dumps({"model": "exported", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@pytest.mark.full
def test_served_embeddings_match_transformers(small: Path, tmp_path: Path) -> None:
    """Vectors are those of transformers pooled as the folder says."""
    folder = folder_of(small, tmp_path, AutoModel.from_pretrained(small, dtype=torch.float32), verify="all")
    asked = json.loads((folder / "verification.json").read_text())["vllm"]
    assert asked["compared"] is True
    assert asked["outputs"]["largest_difference"] < CLOSE
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        means = [model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0) for text in TEXTS]
    expected = torch.nn.functional.normalize(torch.stack(means), dim=1)
    with serving(tmp_path, str(folder)) as served:
        served.until(READY)
        server = Served(served)
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        answer = client.embeddings.create(model="exported", input=TEXTS, encoding_format="float")
        found = torch.tensor([each.embedding for each in answer.data])
        torch.testing.assert_close(found, expected, atol=CLOSE, rtol=0)
        scored = ask(server, "/score", text_1=TEXTS[0], text_2=TEXTS[1:])
        assert [each["score"] for each in scored["data"]] == pytest.approx(
            (expected[1:] @ expected[0]).tolist(), abs=CLOSE
        )
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="exported", messages=[{"role": "user", "content": "colour?"}])
        assert "/v1/embeddings" in server.curl_line


@pytest.mark.full
def test_served_encoder_embeds_like_transformers(tmp_path: Path) -> None:
    """A BERT is served by vLLM's pooling runner, and `swift infer` returns the same vectors."""
    sizes = {"hidden_size": 128, "head_dim": 32, "num_key_value_heads": 4}  # a width that vLLM has on the CPU
    small = write_model(tmp_path / "small", architecture="Bert", **sizes)
    folder = folder_of(small, tmp_path, AutoModel.from_pretrained(small, dtype=torch.float32))
    data, found = write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS]), tmp_path / "found.jsonl"
    assert run(["infer", str(folder), "--dataset", str(data), "--result_path", str(found)]) == 0
    expected = torch.tensor([json.loads(line)["vector"] for line in found.read_text().splitlines()])
    with serving(tmp_path, str(folder)) as served:
        served.until(READY)
        client = openai.OpenAI(base_url=Served(served).url, api_key="none", max_retries=0)
        answer = client.embeddings.create(model="exported", input=TEXTS, encoding_format="float")
    torch.testing.assert_close(torch.tensor([each.embedding for each in answer.data]), expected, atol=CLOSE, rtol=0)


@pytest.mark.full
def test_classes_have_the_scores_of_transformers(small: Path, tmp_path: Path) -> None:
    """By the export's own check; the next test asks a server."""
    folder = folder_of(small, tmp_path, classifier(small, 3), verify="all")
    asked = json.loads((folder / "verification.json").read_text())["vllm"]["outputs"]
    assert asked["values"] == 3 * asked["prompts"]
    assert asked["largest_difference"] < CLOSE


@pytest.mark.full
def test_documents_are_ranked_by_the_scores_of_transformers(small: Path, tmp_path: Path) -> None:
    folder = folder_of(small, tmp_path, classifier(small, 1))
    add_files_of_objective(folder, {"name": "reranker", "instruction": "Find the colour"}, model=None)
    end = AutoTokenizer.from_pretrained(folder).eos_token
    start = f"<Instruct>: Find the colour\n<Query>: {QUERY}\n<Document>: "
    expected = logits(folder, [f"{start}{document}{end}" for document in DOCUMENTS])[:, 0]
    with serving(tmp_path, str(folder)) as served:
        served.until(READY)
        server = Served(served)
        scored = ask(server, "/score", text_1=QUERY, text_2=DOCUMENTS)
        assert [each["score"] for each in scored["data"]] == pytest.approx(expected.tolist(), abs=CLOSE)
        check_ranking(ask(server, "/rerank", query=QUERY, documents=DOCUMENTS)["results"], expected)
        raw = ask(server, "/classify", input=TEXTS, use_activation=False)
        found = torch.tensor([each["probs"] for each in raw["data"]])
        torch.testing.assert_close(found, logits(folder, TEXTS), atol=1e-3, rtol=0)
        assert "/rerank" in server.curl_line


def check_ranking(ranked: list[dict[str, Any]], expected: torch.Tensor) -> None:
    assert [each["index"] for each in ranked] == expected.argsort(descending=True).tolist()
    best_first = expected.sort(descending=True).values.tolist()
    assert [each["relevance_score"] for each in ranked] == pytest.approx(best_first, abs=CLOSE)


@pytest.mark.full
def test_documents_are_ranked_by_yes_and_no(small: Path, tmp_path: Path) -> None:
    """Documents are ranked by the yes and no of a language model."""
    rows = [{"query": QUERY, "positive": DOCUMENTS[0], "negative": DOCUMENTS[1:]}] * 4
    changes = {
        "objective.name": "generative_reranker",
        "objective.instruction": "Find the colour",
        "objective.positive_token": "y",
        "objective.negative_token": "n",
        "data.system": "Answer y or n.",
        "train.max_steps": 2,
        "checkpoint.save_last": True,
        "logging.run_name": "run",
    }
    run_folder = run_training(small, tmp_path, rows, changes).folder
    scored = tmp_path / "scored.jsonl"
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [{"query": QUERY, "document": each} for each in DOCUMENTS])
    assert run(["infer", str(run_folder), "--dataset", str(pairs), "--result_path", str(scored)]) == 0
    logits_apart = torch.tensor([json.loads(line)["score"] for line in scored.read_text().splitlines()])
    expected = logits_apart.sigmoid()
    with serving(tmp_path, str(run_folder), "--name", "exported") as served:
        served.until(READY)
        server = Served(served)
        check_ranking(ask(server, "/rerank", query=QUERY, documents=DOCUMENTS)["results"], expected)
        raw = ask(server, "/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False)
        assert [each["score"] for each in raw["data"]] == pytest.approx(logits_apart.tolist(), abs=1e-3)
        assert "/rerank" in server.curl_line
