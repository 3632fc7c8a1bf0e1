"""Exports of embedding models and rerankers, as sentence-transformers opens them and asks them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import typed
from encoder_cells import write_encoder
from tiny_runs import run_training, write_jsonl, write_model

from swift.config.sections import ExportOptions
from swift.export.run import export_checkpoint

PYTHON = Path(sys.prefix) / "sentences" / "bin" / "python"
"""Of an environment that has all of this one, and sentence-transformers."""
QUERIES = ["colour?", "What else is there, in a longer text?"]
DOCUMENTS = ["blue", "forty-two", "A colour is blue, or it is not.<|im_end|>"]
ROWS = [{"query": f"find {n}", "pos": [f"here is {n}"], "neg": [f"not {n + 1}"]} for n in range(8)]
POOLINGS = ("last", "mean", "cls")
PROMPTS = {"objective.query_prompt": "query: ", "objective.document_prompt": "passage: "}

READ = """
import json, sys
from pathlib import Path
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

asked = json.loads(Path("asked.json").read_text())
found = {}
for folder in asked["embeddings"]:
    model = SentenceTransformer(folder, device="cpu")
    vectors = [model.encode_query(asked["queries"]), model.encode_document(asked["documents"])]
    found[folder] = [vector for each in vectors for vector in each.tolist()]
model = CrossEncoder("reranker", device="cpu", activation_fn=torch.nn.Identity())
pairs = [(query, document) for query in asked["queries"] for document in asked["documents"]]
found["reranker"] = model.predict(pairs).tolist()
found["ranked"] = [each["corpus_id"] for each in model.rank(asked["queries"][0], asked["documents"])]
Path("found.json").write_text(json.dumps(found))
"""


def exported(place: Path, name: str, changes: dict[str, Any], model: str = "model") -> None:
    """A folder named so, of a run of two steps."""
    run = run_training(
        place / model,
        place / "output",
        ROWS,
        {"train.max_steps": 2, "optim.lr": 1e-2, "checkpoint.save_last": True, "logging.run_name": name, **changes},
    )
    options = ExportOptions(out=place / name, verify="transformers")
    export_checkpoint(run.folder, to="hf", options=options, say=lambda _: None)


def as_swift_infer_has_it(place: Path, folder: str, rows: list[dict[str, str]], column: str) -> list[Any]:
    write_jsonl(place / "rows.jsonl", rows)
    ended = typed(["infer", folder, "--dataset", "rows.jsonl", "--result_path", f"{folder}.jsonl"], place)
    assert ended.code == 0, ended.output
    return [json.loads(line)[column] for line in (place / f"{folder}.jsonl").read_text().splitlines()]


def read(place: Path, poolings: Sequence[str]) -> dict[str, Any]:
    """Return the vectors and scores that sentence-transformers makes with exports."""
    asked = {"embeddings": poolings, "queries": QUERIES, "documents": DOCUMENTS}
    (place / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run([PYTHON, "-c", READ], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((place / "found.json").read_text())
    return found


@pytest.mark.full
def test_sentence_transformers_matches_export(tmp_path: Path) -> None:
    """Sentence transformers makes the same vectors and scores of an export."""
    write_model(tmp_path / "model")
    for pooling in POOLINGS:
        exported(tmp_path, pooling, {"objective.name": "embedding", "model.pooling": pooling, **PROMPTS})
    exported(tmp_path, "reranker", {"objective.name": "reranker", "objective.instruction": "Find the colour"})
    found = read(tmp_path, POOLINGS)
    texts = [*({"query": each} for each in QUERIES), *({"document": each} for each in DOCUMENTS)]
    for pooling in POOLINGS:
        vectors = as_swift_infer_has_it(tmp_path, pooling, texts, "vector")
        assert len(found[pooling]) == len(texts)
        for one, other in zip(found[pooling], vectors, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(found["last"][0], found["mean"][0], strict=True)) > 1e-2
    pairs = [{"query": query, "document": document} for query in QUERIES for document in DOCUMENTS]
    scores = as_swift_infer_has_it(tmp_path, "reranker", pairs, "score")
    assert found["reranker"] == pytest.approx(scores, abs=1e-5)
    best_first = sorted(range(len(DOCUMENTS)), key=lambda place: -scores[place])
    assert found["ranked"] == best_first


@pytest.mark.full
def test_sentence_transformers_matches_encoders(tmp_path: Path) -> None:
    """Vectors of encoders, pooled in both ways, and scores of their pairs."""
    for task in ("embedding", "reranker"):
        write_encoder("bert", tmp_path / f"bert-{task}", task)
    poolings = ("mean", "cls")
    for pooling in poolings:
        settings = {"objective.name": "embedding", "model.pooling": pooling, **PROMPTS}
        exported(tmp_path, pooling, settings, "bert-embedding")
    exported(tmp_path, "reranker", {"objective.name": "reranker"}, "bert-reranker")
    found = read(tmp_path, poolings)
    texts = [*({"query": each} for each in QUERIES), *({"document": each} for each in DOCUMENTS)]
    for pooling in poolings:
        vectors = as_swift_infer_has_it(tmp_path, pooling, texts, "vector")
        assert np.array(found[pooling]) == pytest.approx(np.array(vectors), abs=1e-5)
    pairs = [{"query": query, "document": document} for query in QUERIES for document in DOCUMENTS]
    assert found["reranker"] == pytest.approx(as_swift_infer_has_it(tmp_path, "reranker", pairs, "score"), abs=1e-5)
