"""Scores of documents with images for queries with images, beside plain transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from image_runs import ALL, FLAT, SETTINGS, image_folder
from image_vectors import GROUPS, Groups, Text, files, rows_of
from tiny_images import image_model, processor_of
from tiny_runs import Trained, run_training, write_jsonl
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForImageTextToText

from swift.models.heads import initial_head

Score = Callable[[Text, Text], torch.Tensor]
RANKED: Groups = [
    (query, positives, [*negatives, ("a dog", ()), ("", (3,))] if number < 4 else [*negatives, ("a dog", ())])
    for number, (query, positives, negatives) in enumerate(GROUPS)
]
"""Every query has documents that do not answer it; the second half has no image at all."""
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
HEAD: dict[str, Any] = {"objective.name": "reranker", "model.task": "reward"}
GENERATIVE: dict[str, Any] = {
    "objective.name": "generative_reranker", "objective.positive_token": "y", "objective.negative_token": "n",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: image_model(tmp_path_factory.mktemp(kind), kind) for kind in ("llava", "qwen2_5_vl")}


def trained(model: Path, folder: Path, name: str, changes: dict[str, Any]) -> Trained:
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "logging.run_name": name}
    settings = {**SETTINGS, **ALL, **paths, "train.max_steps": 2, "train.micro_batch": 4, "data.packing": False}
    return run_training(model, folder / "runs", rows_of(RANKED), {**settings, **changes})


def said(text: Text, before: str) -> list[dict[str, Any]]:
    """Return the parts of a message: what stands before a text, its images, and the text."""
    shown: list[dict[str, Any]] = [{"type": "image"} for _ in text[1]]
    return [{"type": "text", "text": before}, *shown, *([{"type": "text", "text": text[0]}] * bool(text[0]))]


def inputs_of(kind: str, folder: Path, messages: list[dict[str, Any]], images: list[str]) -> Any:
    from PIL import Image

    processor = processor_of(kind)
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    images = [Image.open(folder / name) for name in images] or None
    return processor(text=[prompt], images=images, return_tensors="pt", add_special_tokens=False)


def by_head(kind: str, whole: Any, head: torch.Tensor, folder: Path) -> Score:
    """Return what scores a document by a linear layer on the state of the last token."""

    def score(query: Text, document: Text) -> torch.Tensor:
        if not query[1] and not document[1]:
            tokenizer = processor_of(kind).tokenizer
            inputs = tokenizer(f"<Query>: {query[0]}\n<Document>: {document[0]}<|im_end|>", return_tensors="pt")
        else:
            parts = [*said(query, "<Query>: "), *said(document, "\n<Document>: ")]
            inputs = inputs_of(kind, folder, [{"role": "user", "content": parts}], files(query) + files(document))
        return (whole.base_model(**inputs, use_cache=False).last_hidden_state[0, -1] @ head.T)[0]

    return score


def by_yes(kind: str, whole: Any, _: torch.Tensor, folder: Path) -> Score:
    """Return what scores a document by how much rather the model says yes than no."""
    yes, no = processor_of(kind).tokenizer.convert_tokens_to_ids(["y", "n"])
    judge = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "y" or "n".'
    )

    def score(query: Text, document: Text) -> torch.Tensor:
        parts = [*said(query, f"<Instruct>: {INSTRUCTION}\n<Query>: "), *said(document, "\n<Document>: ")]
        messages = [{"role": "system", "content": judge}, {"role": "user", "content": parts}]
        logits = whole(**inputs_of(kind, folder, messages, files(query) + files(document))).logits[0, -1]
        return logits[yes] - logits[no]

    return score


def plain(
    kind: str, path: Path, folder: Path, scorer: Callable[..., Score]
) -> tuple[list[float], list[float], list[list[float]]]:
    """Losses and gradient norms of a loop in which every document is asked about alone; and the scores after it."""
    whole: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    head = torch.nn.Parameter(initial_head((1, 32), seed=42))
    trains = [*whole.base_model.parameters(), head] if scorer is by_head else [*whole.parameters()]
    optimizer = torch.optim.AdamW(trains, 1e-3, (0.9, 0.95), eps=1e-6, weight_decay=0.0)
    score = scorer(kind, whole, head, folder)
    losses, norms = [], []
    for step in range(2):
        for each in trains:
            each.grad = torch.zeros_like(each)
        found, right = [], []
        for query, positives, negatives in RANKED[4 * step : 4 * step + 4]:
            found += [score(query, document) for document in (*positives, *negatives)]
            right += [1.0] * len(positives) + [0.0] * len(negatives)
        loss = binary_cross_entropy_with_logits(torch.stack(found), torch.tensor(right))
        loss.backward()
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in trains])))
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        scores = [[score(query, each).item() for each in (*right, *wrong)] for query, right, wrong in RANKED[:4]]
    return losses, norms, scores


def assert_asked_for_scores(run: Trained, folder: Path, expected: list[list[float]]) -> None:
    """Compare what `swift infer` says of queries with documents, and how `swift eval` ranks them."""
    pairs = [
        {"query": written(query), "document": written(document), "images": files(query) + files(document)}
        for query, right, wrong in RANKED[:4]
        for document in (*right, *wrong)
    ]
    data = {"pairs": write_jsonl(folder / "pairs.jsonl", pairs), "ranked": folder / "ranked.jsonl"}
    write_jsonl(data["ranked"], rows_of(RANKED[:4]))
    asked = typed(["infer", str(run.folder), "--dataset", str(data["pairs"])], folder)
    assert asked.code == 0, asked.output
    lines = [json.loads(line) for line in asked.output.splitlines() if line.startswith("{")]
    assert [line["score"] for line in lines] == pytest.approx([each for held in expected for each in held], abs=1e-5)
    judged = typed(["eval", str(run.folder), "--dataset", str(data["ranked"])], folder)
    assert judged.code == 0, judged.output
    (metrics,) = [json.loads(line) for line in judged.output.splitlines() if line.startswith("{")]
    first = [
        1 + min(sorted(scores, reverse=True).index(each) for each in scores[: len(right)])
        for scores, (_, right, _) in zip(expected, RANKED, strict=False)
    ]
    assert metrics["queries"] == 4
    assert metrics["mrr"] == pytest.approx(sum(1 / each for each in first) / 4)


def written(text: Text) -> str:
    return "<image>" * len(text[1]) + text[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "settings", "scorer"),
    [("llava", {**HEAD, **FLAT}, by_head), ("qwen2_5_vl", GENERATIVE, by_yes)],
)
def test_image_rerankers_match_transformers(
    models: dict[str, Path], folder: Path, kind: str, settings: dict[str, Any], scorer: Callable[..., Score]
) -> None:
    """Rerankers of images are learned as by plain transformers."""
    run = trained(models[kind], folder, f"{kind}-{scorer.__name__}", {**settings, "checkpoint.save_last": True})
    losses, norms, scores = plain(kind, models[kind], folder, scorer)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-4)
    assert_asked_for_scores(run, folder, scores)
