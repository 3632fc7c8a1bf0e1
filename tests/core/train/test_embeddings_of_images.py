"""Vectors of texts with images: InfoNCE beside plain transformers, on several processes, and after the export."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from image_runs import FLAT, LORA, image_folder
from image_vectors import EMBEDDING, GROUPS, Groups, Text, files, trained_on_vectors
from processes import on_processes, succeeded
from tiny_images import image_model, processor_of
from tiny_runs import Trained, run_training, write_jsonl
from torch.nn.functional import normalize
from transformers import AutoModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: image_model(tmp_path_factory.mktemp(kind), kind) for kind in ("llava", "qwen2_5_vl")}


def vector_of(kind: str, model: Any, folder: Path) -> Callable[[Text], torch.Tensor]:
    """Return what makes the vector of a text by transformers: the state after its last token, at unit length."""
    from PIL import Image

    processor = processor_of(kind)

    def vector(text: Text) -> torch.Tensor:
        if not text[1]:
            inputs = processor.tokenizer(text[0], return_tensors="pt")
            return normalize(model(**inputs, use_cache=False).last_hidden_state[0, -1], dim=0)
        said: list[dict[str, Any]] = [{"type": "image"} for _ in text[1]]
        said += [{"type": "text", "text": text[0]}] * bool(text[0])
        asked = processor.apply_chat_template(
            [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
        )
        images = [Image.open(folder / name) for name in files(text)]
        inputs = processor(text=[asked], images=images, return_tensors="pt", add_special_tokens=False)
        return normalize(model(**inputs, use_cache=False).last_hidden_state[0, -1], dim=0)

    return vector


def infonce(groups: Groups, vector: Callable[[Text], torch.Tensor]) -> torch.Tensor:
    """Return the loss of rows that are all compared with each other; what is a row's own positive is no negative."""
    losses = []
    for query, positives, negatives in groups:
        others = [
            each for group in groups if group[0] != query for each in (*group[1], *group[2]) if each not in positives
        ]
        for positive in positives:
            compared = torch.stack([vector(each) for each in (positive, *negatives, *others)])
            logits = compared @ vector(query) / 0.1
            losses.append((logits.logsumexp(0) - logits[0]) / len(positives))
    return torch.stack(losses).sum() / len(groups)


def plain(kind: str, path: Path, folder: Path) -> tuple[list[float], list[float], torch.Tensor]:
    """Losses and gradient norms of a loop in plain transformers, over all parameters; and some vectors after it."""
    model = AutoModel.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses, norms = [], []
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # where a step has no image, the encoder goes on as it went
        loss = infonce(GROUPS[4 * step : 4 * step + 4], vector_of(kind, model, folder))
        loss.backward()
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        optimizer.step()
        losses.append(loss.item())
    vector = vector_of(kind, model, folder)
    return losses, norms, torch.stack([vector(query) for query, _, _ in GROUPS[:4]]).detach()


def assert_asked_for_vectors(run: Trained, folder: Path, expected: torch.Tensor) -> None:
    """Compare what `swift infer` says of the first queries, one by one and from a data set."""
    query, *_ = GROUPS[0]
    words = ["infer", str(run.folder), "--prompt", f"<image>{query[0]}", "--image", str(folder / files(query)[0])]
    said = [typed(words, folder)]
    rows = [{"query": "<image>" * len(each[1]) + each[0], "images": files(each)} for each, _, _ in GROUPS[:4]]
    said.append(
        typed(["infer", str(run.folder), "--dataset", str(write_jsonl(folder / "queries.jsonl", rows))], folder)
    )
    assert [each.code for each in said] == [0, 0], said
    lines = [json.loads(line) for each in said for line in each.output.splitlines() if line.startswith("{")]
    vectors = torch.tensor([line["vector"] for line in lines])
    torch.testing.assert_close(vectors, torch.cat([expected[:1], expected]), atol=1e-5, rtol=1e-4)
    assert lines[1]["text"][0] == {"type": "image", "path": str(folder / files(query)[0])}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("llava", {"train.micro_batch": 2}),
        pytest.param("qwen2_5_vl", {}, marks=pytest.mark.full),
        pytest.param("qwen2_5_vl", {**FLAT, "train.micro_batch": 1}, marks=pytest.mark.full),
    ],
)
def test_image_embeddings_match_transformers(
    models: dict[str, Path], folder: Path, kind: str, layout: dict[str, Any]
) -> None:
    """Vectors of texts with images are learned as by plain transformers."""
    run = trained_on_vectors(models[kind], folder, f"{kind}-{len(layout)}", {**layout, "export.to": "hf"})
    losses, norms, vectors = plain(kind, models[kind], folder)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-4)
    assert_asked_for_vectors(run, folder, vectors)
    (exported,) = {path.parent for path in run.folder.rglob("modules.json") if "checkpoint" not in path.parent.name}
    vector = vector_of(kind, AutoModel.from_pretrained(exported, dtype=torch.float32), folder)
    torch.testing.assert_close(
        torch.stack([vector(query) for query, _, _ in GROUPS[:4]]), vectors, atol=1e-5, rtol=1e-4
    )


@pytest.mark.full
def test_two_ranks_match_one_with_image_free_step(models: dict[str, Path], folder: Path) -> None:
    """Two processes learn vectors as one where a step has no image."""
    cases = {"full": {"train.micro_batch": 1}, "lora": {**LORA, **FLAT, "train.micro_batch": 2}}
    for name, settings in cases.items():
        two = partial(trained_on_vectors, models["qwen2_5_vl"], folder, f"two-{name}", settings)
        ((first, *_),) = [succeeded(answers) for answers in on_processes(2, two)]
        one = trained_on_vectors(models["qwen2_5_vl"], folder, f"one-{name}", settings)
        assert first.losses == pytest.approx(one.losses, rel=1e-5)
        assert first.grad_norms == pytest.approx(one.grad_norms, rel=1e-4)


PAIRS: list[tuple[Text, Text]] = [
    (("a cat", (0,)), ("", (1,))),
    (("", (2,)), ("a dog", ())),
    (("", (0, 1)), ("two", (3,))),
    (("red", ()), ("blue", ())),
    (("a fox", ()), ("it", (2,))),
    (("he", (1,)), ("she", (0,))),
    (("old", ()), ("new", ())),
    (("", (3,)), ("green", ())),
]
LABELS = [0.9, -0.2, 0.5, 0.0, 1.0, 0.3, -1.0, 0.1]


@pytest.mark.full
def test_labeled_image_pairs_match_transformers(models: dict[str, Path], folder: Path) -> None:
    """Labelled pairs with images are learned as by plain transformers."""
    rows = [
        {
            "sentence1": "<image>" * len(one[1]) + one[0],
            "sentence2": "<image>" * len(other[1]) + other[0],
            "images": files(one) + files(other),
            "label": label,
        }
        for (one, other), label in zip(PAIRS, LABELS, strict=True)
    ]
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "logging.run_name": "pairs"}
    settings = {**EMBEDDING, **paths, "objective.loss": "cosine_similarity"}
    run = run_training(models["llava"], folder / "runs", rows, settings)
    model = AutoModel.from_pretrained(models["llava"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), eps=1e-6, weight_decay=0.0)
    vector = vector_of("llava", model, folder)
    for step in range(2):
        optimizer.zero_grad()
        chosen = slice(4 * step, 4 * step + 4)
        similar = torch.stack([vector(one) @ vector(other) for one, other in PAIRS[chosen]])
        expected = (similar - torch.tensor(LABELS[chosen])).square().mean()
        expected.backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])
        optimizer.step()
        assert run.losses[step] == pytest.approx(expected.item(), rel=1e-5)
        assert expected > 0
        assert run.grad_norms[step] == pytest.approx(norm.item(), rel=1e-4)
