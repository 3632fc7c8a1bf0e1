"""The objectives of rerankers against plain torch, and what they report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from swift.contracts import LossSums, ModelView
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift.errors import ConfigError
from swift_objectives.reranker import (
    GenerativeReranker,
    GenerativeRerankerOptions,
    Reranker,
    RerankerOptions,
)


def group(number: int, positives: int, documents: int, weight: float = 1.0) -> Encoded:
    segments = tuple(
        Segment(np.arange(3, dtype=np.int32), np.array([0, 0, weight], np.float32)) for _ in range(documents)
    )
    return Encoded(number, segments, {"positives": float(positives), "documents": float(documents)})


def sums(objective: Reranker, groups: list[Encoded], scores: torch.Tensor, *, flat: bool = True) -> LossSums:
    return objective.loss(ModelView(scores=scores[:, None]), batch_of(groups, flat))


def batch_of(groups: list[Encoded], flat: bool = True) -> MicroBatch:
    return collate(groups, flat=flat)


GROUPS = [group(0, 1, 4), group(1, 1, 2), group(2, 1, 8)]
SCORES = torch.randn(14, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("flat", [True, False])
def test_listwise_loss_is_cross_entropy_of_positive(flat: bool) -> None:
    """Listwise is the cross-entropy of the right document of each query."""
    scores = SCORES.clone().requires_grad_()
    objective = Reranker(RerankerOptions(loss="listwise", temperature=0.5))
    found = sums(objective, GROUPS, scores, flat=flat).loss
    target = torch.tensor([0])
    expected = sum(cross_entropy(part[None] / 0.5, target) for part in scores.split([4, 2, 8]))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(each, scores)[0] for each in (found, expected)))
    assert objective.row_weight(GROUPS) == 3


def test_pointwise_is_the_binary_cross_entropy_of_each_document() -> None:
    groups = [group(0, 2, 4), group(1, 0, 2), group(2, 8, 8)]
    labels = torch.tensor([1, 1, 0, 0, 0, 0, *[1] * 8]).float()
    scores = SCORES.clone().requires_grad_()
    objective = Reranker(RerankerOptions())
    found = sums(objective, groups, scores).loss
    expected = binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(*(torch.autograd.grad(each, scores)[0] for each in (found, expected)))
    assert objective.row_weight(groups) == 14


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
def test_the_score_of_a_language_model_is_what_yes_leads_no_by(loss: str) -> None:
    logits = torch.randn(14, 20, generator=torch.Generator().manual_seed(1))
    batch = batch_of(GROUPS, flat=False)
    logps = torch.zeros(14, 3, 2).index_fill_(1, torch.tensor([0, 2]), 9.0)  # positions that are not asked about
    logps[:, 1] = logits.log_softmax(-1)[:, [7, 3]]
    objective = GenerativeReranker(GenerativeRerankerOptions(loss=loss), (7, 3))
    found = objective.loss(ModelView(candidate_logps=logps), batch)
    expected = sums(Reranker(RerankerOptions(loss=loss)), GROUPS, logits[:, 7] - logits[:, 3])
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    if loss == "pointwise":  # the cross entropy between the two answers
        wrong = torch.tensor([0, 1, 1, 1, 0, 1, 0, *[1] * 7])
        assert found.loss.item() == pytest.approx(
            cross_entropy(logits[:, [7, 3]], wrong, reduction="sum").item(), rel=1e-5
        )


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
def test_sums_do_not_depend_on_how_queries_are_divided(loss: str) -> None:
    objective = Reranker(RerankerOptions(loss=loss))
    whole = sums(objective, GROUPS, SCORES)
    parts = [sums(objective, [each], part) for each, part in zip(GROUPS, SCORES.split([4, 2, 8]), strict=True)]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-6)
    for name, (total, weight) in whole.metrics.items():
        assert sum(float(part.metrics[name][0]) for part in parts) == pytest.approx(float(total), rel=1e-6)
        assert sum(float(part.metrics[name][1]) for part in parts) == float(weight)


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
def test_a_stand_in_sample_has_no_loss_no_gradient_and_no_weight(loss: str) -> None:
    objective = Reranker(RerankerOptions(loss=loss))
    dummy = group(3, 1, 5, weight=0.0)
    scores = torch.cat([SCORES, torch.randn(5)]).requires_grad_()
    found = sums(objective, [*GROUPS, dummy], scores)
    expected = sums(objective, GROUPS, SCORES)
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    assert not torch.autograd.grad(found.loss, scores)[0][14:].any()
    assert {name: (float(a), float(b)) for name, (a, b) in found.metrics.items()} == {
        name: (float(a), float(b)) for name, (a, b) in expected.metrics.items()
    }
    assert objective.row_weight([dummy]) == 0


def test_metrics_say_how_high_the_first_right_document_stands() -> None:
    groups = [group(0, 1, 4), group(1, 2, 4), group(2, 1, 2), group(3, 1, 1), group(4, 0, 2)]
    scores = torch.tensor([0.5, 2, -1, 1, 3, -1, 2, 0, 1, 1, -5, -1, -1])
    metrics = sums(Reranker(RerankerOptions()), groups, scores).metrics
    # third; first; a tie for the first place; and two groups in which nothing is to be ranked
    assert [float(value) for value in metrics["mrr"]] == pytest.approx([1 / 3 + 1 + 1 / 1.5, 3])
    assert [float(value) for value in metrics["accuracy"]] == [1, 3]
    right = [1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1]  # whether the sign of each score says what the label says
    right[7] = 1  # a score of 0 says no
    assert [float(value) for value in metrics["document_accuracy"]] == [sum(right), 13]


class _Tokens:
    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]


def test_multi_token_label_is_refused() -> None:
    options = GenerativeRerankerOptions(positive_token="y", negative_token="n")
    assert GenerativeReranker(options).for_tokenizer(_Tokens()).candidates == (ord("y"), ord("n"))
    with pytest.raises(ConfigError, match="'yes', which is 3 tokens") as refusal:
        GenerativeReranker(GenerativeRerankerOptions()).for_tokenizer(_Tokens())
    assert "--objective.positive_token" in str(refusal.value.hint)
    with pytest.raises(ConfigError, match="both 'y'"):
        GenerativeReranker(GenerativeRerankerOptions(positive_token="y", negative_token="y")).for_tokenizer(_Tokens())
