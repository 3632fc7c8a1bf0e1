"""Models for another task than the next token: their classes, where their heads start, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import encoded
from transformers import AutoModelForSequenceClassification, Qwen3Config, Qwen3ForCausalLM

from swift.config.sections import ModelSection
from swift.contracts import Need
from swift.data.batch import collate
from swift.errors import ModelError
from swift.models.attention import choose_attention
from swift.models.heads import HEAD
from swift.models.source import HfSource, open_source
from swift.models.view import ViewModule
from swift_testing.subjects import write_model

DECODERS: dict[str, dict[str, Any]] = {
    "Qwen3": {"tie_word_embeddings": True},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "Granite": {},  # transformers has no class for it
    "ModernBertDecoder": dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id"), 1),
}
"""transformers' class of the last has a head of another name."""
LENGTHS = (5, 9, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "qwen3")


def source_of(folder: Path, task: str = "reward", *, seed: int = 42, **options: Any) -> HfSource:
    return open_source(ModelSection(path=str(folder), task=task, **options), say=lambda _: None, seed=seed)  # type: ignore[arg-type]


def samples() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randint(3, 200, (1, length)) for length in LENGTHS]


def view_of(source: HfSource, model: torch.nn.Module, *, flat: bool) -> ViewModule:
    attention = choose_attention("sdpa", source.config, flat=flat, device="cpu", dtype=torch.float32)
    return ViewModule(model, attention=attention)


def batch_of(rows: list[torch.Tensor], *, flat: bool) -> Any:
    return collate(encoded([row[0] for row in rows]), flat=flat, pad_to_multiple=8)


@pytest.mark.parametrize("architecture", DECODERS)
def test_any_decoder_takes_head_and_scores_last_token(architecture: str, tmp_path: Path) -> None:
    """Any decoder takes a head and scores the last token of each text."""
    folder = write_model(tmp_path / "model", architecture=architecture, **DECODERS[architecture])
    source = source_of(folder, "seq_cls", num_labels=3)
    model: Any = source.build(dtype=torch.float32).eval()
    assert source.names().count(HEAD) == 1
    assert not any("lm_head" in name for name in source.names())
    rows = samples()
    expected = torch.cat([model.score(model.get_decoder()(row).last_hidden_state)[:, -1] for row in rows])
    for flat in (False, True):
        scores = view_of(source, model, flat=flat)(batch_of(rows, flat=flat), {Need.SCORES}).scores
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_embedding_ignores_neighbors_and_padding(pooling: str, model: Path) -> None:
    """The vector of a text owes nothing to its neighbours or to padding."""
    source = source_of(model, "embedding")
    built: Any = source.build(dtype=torch.float32).eval()
    rows = samples()
    whole = [built(row).last_hidden_state[0] for row in rows]
    expected = torch.stack([{"last": each[-1], "cls": each[0], "mean": each.mean(0)}[pooling] for each in whole])
    for flat in (False, True):
        view = view_of(source, built, flat=flat)
        view.pooling = pooling
        vectors = view(batch_of(rows, flat=flat), {Need.POOLED}).pooled
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-4)


def test_a_fresh_head_depends_on_the_seed_alone(model: Path) -> None:
    head = source_of(model).read(HEAD)
    torch.manual_seed(7)
    built: Any = source_of(model).build(dtype=torch.float32)
    assert torch.equal(head, built.score.weight)
    assert not torch.equal(head, source_of(model, seed=1).read(HEAD))
    wide = source_of(model, "seq_cls", num_labels=500).read(HEAD)
    assert float(wide.std()) == pytest.approx(1 / math.sqrt(65), rel=0.02)  # the model is 64 wide
    assert abs(float(wide.mean())) < 0.01


def test_fresh_head_does_not_advance_generator(model: Path) -> None:
    """Loading a model whose head is fresh leaves the generator alone."""
    torch.manual_seed(7)
    source_of(model).build(dtype=torch.float32)
    after = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(3))


@pytest.fixture(scope="module")
def with_head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers wrote of a classifier with four labels."""
    folder = tmp_path_factory.mktemp("classifier")
    AutoModelForSequenceClassification.from_pretrained(model, num_labels=4).save_pretrained(folder)
    for file in model.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_stored_head_is_loaded(with_head: Path) -> None:
    """A head that is in the folder is what training starts from."""
    stored = load_file(with_head / "model.safetensors")[HEAD]
    source = source_of(with_head, "seq_cls")
    assert source.config.num_labels == 4
    assert torch.equal(source.read(HEAD), stored)
    built: Any = source.build(dtype=torch.float32)
    assert torch.equal(built.score.weight, stored)


@pytest.mark.parametrize(("task", "labels"), [("seq_cls", 3), ("reward", None)])
def test_a_head_with_another_number_of_labels_is_refused(task: str, labels: int | None, with_head: Path) -> None:
    with pytest.raises(ModelError, match="a head with 4 labels") as refusal:
        source_of(with_head, task, num_labels=labels)
    assert "--model.task seq_cls --model.num_labels 4" in str(refusal.value)


def test_unembedding_is_dropped_silently_others_are_named(model: Path, tmp_path: Path) -> None:
    """The unembedding is dropped silently, and other unknown weights are named."""
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    section = ModelSection(path=str(tmp_path), task="reward")
    assert open_source(section, say=print).unused_names == []
    save_file({**weights, "stranger": torch.ones(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = open_source(section, say=print)
    assert source.unused_names == ["stranger"]
    assert source.extra_names() == []


def test_checkpoint_identity_includes_task(model: Path) -> None:
    """The task is part of what a checkpoint knows the model by."""
    plain = open_source(ModelSection(path=str(model)), say=lambda _: None).fingerprint
    told = {plain, *(source_of(model, task).fingerprint for task in ("reward", "value", "seq_cls", "embedding"))}
    assert len(told) == 5
    assert source_of(model).fingerprint != source_of(model, seed=1).fingerprint


def test_an_architecture_that_is_not_of_transformers_is_refused(tmp_path: Path) -> None:
    class Own(Qwen3Config):
        model_type = "own"

    from swift.models.heads import class_of_task

    with pytest.raises(ModelError, match="the installed transformers has no architecture"):
        class_of_task(Own(), "reward")
    assert issubclass(class_of_task(Qwen3Config(), "reward"), Qwen3ForCausalLM.__mro__[1])
