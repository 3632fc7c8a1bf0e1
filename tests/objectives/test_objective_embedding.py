"""The losses of `embedding` against their formulas, written sample by sample as papers and sentence-transformers do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import Qwen3Config

from swift.data.batch import Batch, collate
from swift.data.global_segments import GlobalSegments
from swift.data.samples import Encoded, Segment
from swift.errors import ConfigError
from swift.objectives.across_rows import Compared
from swift_objectives import embedding_losses
from swift_objectives.embedding import Embedding
from swift_objectives.embedding_options import EmbeddingOptions

Group = tuple[int, int]
"""How many positives and negatives a query has."""
Parts = tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]


def made_up(groups: list[Group], size: int = 8, seed: int = 0) -> torch.Tensor:
    """Return vectors, neither orthogonal nor of length 1."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(1 + positives + negatives for positives, negatives in groups)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) + 0.5


def facts(
    groups: list[Group], labels: list[float] | None = None, dummies: int = 0, texts: list[int] | None = None
) -> GlobalSegments:
    sizes = [1 + positives + negatives for positives, negatives in groups]
    muted = sum(sizes[len(sizes) - dummies :])
    values = {"positives": torch.tensor([float(positives) for positives, _ in groups])}
    if labels is not None:
        values["label"] = torch.tensor(labels)
    counts = torch.arange(sum(sizes)) < sum(sizes) - muted
    numbers = torch.arange(sum(sizes)) if texts is None else torch.tensor(texts)
    return GlobalSegments(torch.tensor(sizes), counts, values, numbers)


def compared(vectors: torch.Tensor, samples: GlobalSegments, **options: Any) -> Compared:
    return Embedding(EmbeddingOptions(**options)).compare(vectors, samples)


def unit(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm()


def split(vectors: torch.Tensor, groups: list[Group]) -> list[Parts]:
    """Return the query, the positives and the negatives of each group."""
    rest = list(vectors)
    out = []
    for positives, negatives in groups:
        query, *documents = (rest.pop(0) for _ in range(1 + positives + negatives))
        out.append((query, documents[:positives], documents[positives:]))
    return out


def by_hand(
    vectors: torch.Tensor,
    groups: list[Group],
    *,
    temperature: float = 0.1,
    in_batch_negatives: bool = True,
    mask_false_negatives: bool = False,
    include_qq: bool = False,
    include_dd: bool = False,
    symmetric: bool = False,
    normalize: bool = True,
    hard_negatives: int | None = None,
) -> list[torch.Tensor]:
    """Return InfoNCE of each query: the mean over its positives of minus the logarithm of their share."""
    scaled = split(torch.stack([unit(each) for each in vectors]) if normalize else vectors, groups)
    if hard_negatives is not None:
        scaled = [
            (query, right, [wrong[index % len(wrong)] for index in range(hard_negatives)] if wrong else [])
            for query, right, wrong in scaled
        ]
    losses = []
    for number, (query, right, wrong) in enumerate(scaled):
        strangers = [each for other in scaled if other[0] is not query for each in (*other[1], *other[2])]
        losses_of_one = []
        for positive in right:
            found = query @ positive
            near = [query @ each for each in (*wrong, *(strangers if in_batch_negatives else ()))]
            near += [query @ other[0] for index, other in enumerate(scaled) if index != number and include_qq]
            if mask_false_negatives:
                near = [each for each in near if each <= found + 0.1]
            near += [positive @ each for each in (*wrong, *strangers) if include_dd]
            total = torch.stack([found, *near])
            loss = (total / temperature).logsumexp(0) - found / temperature
            if symmetric:
                queries = torch.stack([positive @ other[0] for other in scaled])
                loss = (loss + (queries / temperature).logsumexp(0) - found / temperature) / 2
            losses_of_one.append(loss)
        losses.append(torch.stack(losses_of_one).mean())
    return losses


PAIRS: list[Group] = [(1, 0)] * 5
UNEVEN: list[Group] = [(1, 2), (2, 0), (1, 3), (3, 1)]


@pytest.mark.parametrize("groups", [PAIRS, UNEVEN], ids=["pairs", "uneven groups"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.05},
        {"in_batch_negatives": False},
        {"mask_false_negatives": True},
        {"include_qq": True},
        {"include_dd": True},
        {"include_qq": True, "include_dd": True, "mask_false_negatives": True},
        {"symmetric": True},
        {"normalize": False, "temperature": 3.0},
        {"hard_negatives": 5},
    ],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_infonce_matches_softmax_of_candidates(groups: list[Group], options: dict[str, Any]) -> None:
    """InfoNCE is the share of the positive among all that it competes with."""
    vectors = made_up(groups).requires_grad_()
    expected = torch.stack(by_hand(vectors, groups, **options))
    found = compared(vectors, facts(groups), **options).losses
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    of_one, of_other = (torch.autograd.grad(each.sum(), vectors)[0] for each in (found, expected))
    torch.testing.assert_close(of_one, of_other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"include_dd": True}, {"include_qq": True}, {"symmetric": True}], ids=str)
def test_own_document_is_no_negative_in_other_rows(options: dict[str, Any]) -> None:
    """A text that belongs to the query is no negative of it in another row."""
    groups: list[Group] = [(1, 1), (1, 1), (1, 1)]
    texts = [0, 1, 2, 3, 1, 4, 5, 6, 1]  # the first query's positive, once more as a positive and as a negative
    vectors = made_up(groups)
    vectors[4] = vectors[8] = vectors[1]
    vectors.requires_grad_()

    def of_first(masked: bool) -> torch.Tensor:
        return compared(vectors, facts(groups, texts=texts), mask_duplicates=masked, **options).losses[0]

    unit_vectors = [unit(each) for each in vectors]
    query, positive = unit_vectors[0], unit_vectors[1]
    near = [query @ positive, *(query @ unit_vectors[at] for at in (2, 5, 7))]
    if options.get("include_dd"):
        near += [positive @ unit_vectors[at] for at in (2, 5, 7)]
    if options.get("include_qq"):
        near += [query @ unit_vectors[at] for at in (3, 6)]
    expected = torch.stack(near).div(0.1).logsumexp(0) - near[0] / 0.1
    if options.get("symmetric"):  # the second query has the same answer, so that it is no wrong one
        back = torch.stack([query @ positive, unit_vectors[6] @ positive]).div(0.1).logsumexp(0) - near[0] / 0.1
        expected = (expected + back) / 2
    torch.testing.assert_close(of_first(masked=True), expected)
    of_one, of_other = (torch.autograd.grad(each, vectors)[0] for each in (of_first(masked=True), expected))
    torch.testing.assert_close(of_one, of_other)
    assert of_first(masked=False) > expected
    found = compared(vectors, facts(groups, texts=texts)).metrics["recall_at_1"][0]
    assert (
        found.tolist()
        == compared(vectors, facts(groups, texts=texts), mask_duplicates=False).metrics["recall_at_1"][0].tolist()
    )


def test_equal_texts_are_known_from_their_tokens_in_every_layout() -> None:
    texts = [[1, 2, 3], [3, 2, 1], [1, 2, 3], [1, 2], [1, 2, 3, 3], [2, 1, 3]]
    samples = [
        Encoded(at, tuple(Segment(np.array(text, np.int32), np.ones(len(text), np.float32)) for text in pair))
        for at, pair in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    batch = Batch(0, [(each,) for each in samples], 0, 3, 1.0, 3, tokens=18, flat=True, seed=0)
    slices = GlobalSegments.of_slice(batch).hashes
    for flat in (True, False):
        assert torch.equal(GlobalSegments.of(collate(samples, flat=flat)).hashes, slices)
    assert len(slices.unique()) == 5
    assert slices[0] == slices[2]


@pytest.mark.parametrize(
    "options", [{}, {"include_qq": True, "include_dd": True, "symmetric": True, "mask_false_negatives": True}], ids=str
)
def test_large_batch_is_compared_in_blocks_with_same_gradient(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is compared block by block with the same gradient."""
    vectors = made_up(UNEVEN * 3).requires_grad_()
    groups = UNEVEN * 3
    whole = compared(vectors, facts(groups), **options)
    of_whole = torch.autograd.grad(whole.losses.sum(), vectors)[0]
    rows: list[int] = []
    one_block = embedding_losses._of_positives

    def counted(vectors: torch.Tensor, positives: torch.Tensor, *rest: Any) -> Any:
        rows.append(len(positives))
        return one_block(vectors, positives, *rest)

    monkeypatch.setattr(embedding_losses, "BLOCK", 4 * len(vectors))
    monkeypatch.setattr(embedding_losses, "_of_positives", counted)
    parts = compared(vectors, facts(groups), **options)
    assert max(rows) == 4
    assert sum(rows) == 21
    torch.testing.assert_close(parts.losses, whole.losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(parts.losses.sum(), vectors)[0], of_whole, rtol=1e-10, atol=1e-14)
    assert sum(rows) == 2 * 21, "the similarities were kept for the gradient"
    for name, (value, weight) in whole.metrics.items():
        torch.testing.assert_close(parts.metrics[name], (value, weight))


def test_false_negative_is_kept_within_margin() -> None:
    """A false negative is left out only if it is nearer than the positive by the margin."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.1], [0.65, 0.76]], dtype=torch.float64)
    masked = compared(vectors, facts([(1, 2)]), mask_false_negatives=True).losses
    torch.testing.assert_close(masked, compared(vectors[[0, 1, 3]], facts([(1, 1)])).losses)


def test_the_loss_of_shortened_vectors_is_added_with_its_weight() -> None:
    vectors = made_up(UNEVEN)
    samples = facts(UNEVEN)
    found = compared(vectors, samples, matryoshka_dims=[8, 3], matryoshka_weights=[1.0, 0.25])
    whole, short = compared(vectors, samples), compared(vectors[:, :3], samples)
    torch.testing.assert_close(found.losses, whole.losses + 0.25 * short.losses)
    assert torch.equal(found.metrics["recall_at_1"][0], whole.metrics["recall_at_1"][0])


def test_a_dummy_has_no_loss_and_is_nobodys_negative() -> None:
    for options in ({"include_qq": True, "include_dd": True}, {"symmetric": True}, {"hard_negatives": 2}):
        real = made_up(UNEVEN)
        vectors = torch.cat([real, made_up([(1, 1)], seed=1)])
        found = compared(vectors, facts([*UNEVEN, (1, 1)], dummies=1), **options)
        torch.testing.assert_close(found.losses[:-1], compared(real, facts(UNEVEN), **options).losses)
        assert found.losses[-1] == 0
        assert all(weight[-1] == 0 for _, weight in found.metrics.values())
        alone = compared(made_up([(1, 1)]).requires_grad_(), facts([(1, 1)], dummies=1), **options)
        assert alone.losses.sum() == 0
        assert alone.losses.requires_grad


def test_recall_counts_nearest_document() -> None:
    """Recall counts the queries whose nearest document of the batch is theirs."""
    vectors = torch.tensor(
        [[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.9, 0.2], [0.5, 0.5], [0.1, 0.9], [0.4, 0.6]], dtype=torch.float64
    )
    groups = [(1, 0), (1, 0), (2, 0)]  # of the second, the nearest is the third's
    value, weight = compared(vectors, facts(groups)).metrics["recall_at_1"]
    assert (value.tolist(), weight.tolist()) == ([1, 0, 1], [1, 1, 1])


LABELS = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]


def distances_of(vectors: torch.Tensor) -> list[torch.Tensor]:
    return [1 - unit(query) @ unit(positives[0]) for query, positives, _ in split(vectors, [(1, 0)] * 6)]


def test_cosine_similarity_is_the_squared_error_of_the_cosine() -> None:
    vectors, labels = made_up([(1, 0)] * 6), [0.9, -0.5, 0.0, 0.3, 1.0, -1.0]
    found = compared(vectors, facts([(1, 0)] * 6, labels), loss="cosine_similarity").losses
    expected = [
        (1 - each - torch.tensor(label)) ** 2 for each, label in zip(distances_of(vectors), labels, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected))


def test_contrastive_loss_uses_margin() -> None:
    """Contrastive loss pulls pairs together and pushes others beyond the margin."""
    vectors = made_up([(1, 0)] * 6)
    found = compared(vectors, facts([(1, 0)] * 6, LABELS), loss="contrastive", margin=0.4).losses
    expected = [
        0.5 * (each**2 if label else (0.4 - each).clamp(min=0) ** 2)
        for each, label in zip(distances_of(vectors), LABELS, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected))
    assert any(loss > 0 for loss, label in zip(expected, LABELS, strict=True) if not label)


def test_online_contrastive_loss_uses_hard_pairs() -> None:
    """Online contrastive loss takes the hard pairs of the batch alone."""
    vectors = made_up([(1, 0)] * 6, seed=29)
    distances = distances_of(vectors)
    farthest = max(each for each, label in zip(distances, LABELS, strict=True) if label)
    nearest = min(each for each, label in zip(distances, LABELS, strict=True) if not label)
    expected = [
        (each**2 * (each > nearest)) if label else ((0.5 - each).clamp(min=0) ** 2 * (each < farthest))
        for each, label in zip(distances, LABELS, strict=True)
    ]
    found = compared(vectors, facts([(1, 0)] * 6, LABELS), loss="online_contrastive").losses
    torch.testing.assert_close(found, torch.stack(expected))
    assert 0 < sum(loss > 0 for loss in expected) < 6


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 2),
        ({"loss": "online_contrastive"}, 2),
        ({"in_batch_negatives": False}, 1),
        ({"loss": "cosine_similarity"}, 1),
        ({"loss": "contrastive"}, 1),
    ],
    ids=str,
)
def test_only_losses_that_compare_samples_take_a_first_pass(options: dict[str, Any], passes: int) -> None:
    assert (Embedding(EmbeddingOptions(**options)).first_pass is not None) == (passes == 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss": "contrastive", "symmetric": True}, "symmetric needs loss infonce"),
        ({"in_batch_negatives": False, "include_qq": True}, "include_qq needs in_batch_negatives"),
        ({"matryoshka_dims": [4], "matryoshka_weights": [1.0, 2.0]}, "as many numbers"),
        ({"temperature": 0.0}, "greater than 0"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        EmbeddingOptions(**options)


def test_more_dimensions_than_the_model_has_are_refused() -> None:
    config = Qwen3Config(hidden_size=8)
    with pytest.raises(ConfigError, match="matryoshka_dims has 9, but the model's embeddings have 8"):
        Embedding(EmbeddingOptions(matryoshka_dims=[4, 9])).check_config(config)
    Embedding(EmbeddingOptions(matryoshka_dims=[4, 8])).check_config(config)


def test_a_perfect_batch_has_next_to_no_loss() -> None:
    vectors = torch.eye(4, dtype=torch.float64).repeat_interleave(2, dim=0)
    losses = compared(vectors, facts([(1, 0)] * 4), temperature=0.02).losses
    assert losses.tolist() == pytest.approx([math.log1p(3 * math.exp(-50))] * 4, abs=1e-15)
