"""Objectives of models that score, against transformers' own loss and TRL's formula, in value and gradient."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_up_batches import muted, pairs, segment
from torch.nn.functional import cross_entropy, logsigmoid

from swift.config.sections import ModelSection
from swift.contracts import LossSums, ModelView
from swift.data.batch import collate
from swift.data.samples import Encoded
from swift.errors import ConfigError
from swift_objectives.classification import SeqCls, SeqClsOptions
from swift_objectives.reward import RewardModel, RewardModelOptions

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


def scores_for(segments: int, labels: int) -> torch.Tensor:
    made = torch.randn(segments, labels, generator=torch.Generator().manual_seed(1))
    return made.requires_grad_()


def texts(labels: torch.Tensor) -> list[Encoded]:
    """Texts whose labels are these rows."""
    random = np.random.default_rng(0)
    names = ["label"] if labels.shape[1] == 1 else [f"label_{index}" for index in range(labels.shape[1])]
    return [
        Encoded(number, (segment(random, 0, 3 + number),), dict(zip(names, row, strict=True)))
        for number, row in enumerate(labels.tolist())
    ]


def seq_cls(labels: int, problem_type: str | None = None, **options: object) -> SeqCls:
    section = ModelSection(task="seq_cls", num_labels=labels, problem_type=problem_type)
    return SeqCls(SeqClsOptions(**options)).for_model(section)


def mean(objective: SeqCls | RewardModel, samples: list[Encoded], scores: torch.Tensor) -> torch.Tensor:
    """Return the loss of the batch, divided as backends do."""
    sums = objective.loss(ModelView(scores=scores), collate(samples, flat=True))
    return sums.loss / objective.row_weight(samples)


def same_as(ours: torch.Tensor, theirs: torch.Tensor, scores: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, scores)[0], torch.autograd.grad(theirs, scores)[0])


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        (SINGLE, torch.tensor([[0.0], [2.0], [1.0], [2.0], [0.0]])),
        (MULTI, torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1]])),
        (REGRESSION, torch.tensor([[0.3], [-2.0], [1.5], [2.0], [0.0]])),
        (REGRESSION, torch.tensor([[0.3, 1], [-2.0, 0], [1.5, 1], [2.0, 3], [0.0, 4]])),
    ],
)
def test_loss_and_gradient_are_those_of_transformers(problem_type: str, labels: torch.Tensor) -> None:
    from transformers.loss.loss_utils import ForSequenceClassificationLoss

    count = 3 if problem_type == SINGLE else labels.shape[1]
    scores = scores_for(len(labels), count)
    config = SimpleNamespace(problem_type=problem_type, num_labels=count)
    given = labels[:, 0].long() if problem_type == SINGLE else labels
    theirs = ForSequenceClassificationLoss(given, scores, config)
    same_as(mean(seq_cls(count, problem_type), texts(labels), scores), theirs, scores)


def test_class_weights_and_smoothing_match_cross_entropy() -> None:
    """Class weights and smoothing are those of torch's cross-entropy."""
    labels = torch.tensor([[0.0], [2.0], [1.0], [2.0], [0.0]])
    scores, weights = scores_for(5, 3), (0.5, 3.0, 1.0)
    theirs = cross_entropy(scores, labels[:, 0].long(), weight=torch.tensor(weights), label_smoothing=0.1)
    same_as(mean(seq_cls(3, class_weights=weights, label_smoothing=0.1), texts(labels), scores), theirs, scores)


def test_weights_of_several_labels_are_torchs_pos_weight() -> None:
    labels = torch.tensor([[0.0, 1], [1, 1], [0, 0]])
    scores = scores_for(3, 2)
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 0.5]))(scores, labels)
    same_as(mean(seq_cls(2, MULTI, class_weights=(2.0, 0.5)), texts(labels), scores), theirs, scores)


def test_label_metrics_add_up_over_micro_batches() -> None:
    """Metrics of labels are sums that add up over micro-batches."""
    labels = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1]])
    scores, samples, objective = scores_for(5, 3), texts(labels), seq_cls(3, MULTI)
    parts = [
        objective.loss(ModelView(scores=scores[part]), collate(samples[part], flat=False)).metrics
        for part in (slice(0, 2), slice(2, 5))
    ]

    def total(name: str) -> float:
        sums = [part[name] for part in parts]
        return float(sum(value for value, _ in sums) / sum(weight for _, weight in sums))

    said, true = scores > 0, labels > 0
    precision, recall = (said & true).sum() / said.sum(), (said & true).sum() / true.sum()
    assert total("micro_f1") == pytest.approx(float(2 * precision * recall / (precision + recall)))
    assert total("label_accuracy") == pytest.approx(float((said == true).float().mean()))


def test_accuracy_and_errors_are_means_over_texts() -> None:
    labels = torch.tensor([[0.0], [2.0], [1.0]])
    scores = torch.tensor([[2.0, 1, 0], [0, 1, 0], [0, 3, 1]], requires_grad=True)
    sums = seq_cls(3).loss(ModelView(scores=scores), collate(texts(labels), flat=False))
    assert float(sums.metrics["accuracy"][0] / sums.metrics["accuracy"][1]) == pytest.approx(2 / 3)
    sums = seq_cls(1).loss(ModelView(scores=scores[:, :1]), collate(texts(labels), flat=False))
    assert float(sums.metrics["mse"][0] / sums.metrics["mse"][1]) == pytest.approx((4 + 4 + 1) / 3)
    assert float(sums.metrics["mae"][0] / sums.metrics["mae"][1]) == pytest.approx((2 + 2 + 1) / 3)


@pytest.mark.parametrize("centering", [0.0, 0.05])
@pytest.mark.parametrize("margins", [None, (0.5, 0.0, 2.0, 1.0), (0.5, None, None, 1.0)])
def test_reward_models_learn_by_the_formula_of_bradley_and_terry(centering: float, margins: tuple | None) -> None:
    samples = [replace(sample, reference_logps=None, values={}) for sample in pairs(4)]
    if margins is not None:  # tokenised data holds NaN where a row has no margin and others have
        samples = [
            replace(sample, values={"margin": float("nan") if margin is None else margin})
            for sample, margin in zip(samples, margins, strict=True)
        ]
    scores = scores_for(8, 1)
    chosen, rejected = scores[0::2, 0], scores[1::2, 0]
    gap = chosen - rejected - torch.tensor([margin or 0.0 for margin in margins or (0.0,) * 4])
    theirs = (-logsigmoid(gap)).mean() + centering * ((chosen + rejected) ** 2).mean()
    objective = RewardModel(RewardModelOptions(center_rewards_coefficient=centering))
    same_as(mean(objective, samples, scores), theirs, scores)
    metrics = objective.loss(ModelView(scores=scores), collate(samples, flat=True)).metrics
    assert float(metrics["reward_accuracy"][0]) == int((chosen > rejected).sum())
    torch.testing.assert_close(metrics["reward_margin"][0] / 4, (chosen - rejected).mean().detach())


@pytest.mark.parametrize("which", [SINGLE, MULTI, REGRESSION, "rm"])
def test_dummy_rows_count_for_nothing(which: str) -> None:
    objective: SeqCls | RewardModel = RewardModel(RewardModelOptions(center_rewards_coefficient=1.0))
    samples = [replace(sample, reference_logps=None) for sample in pairs(1)]
    if which != "rm":
        objective = seq_cls(2, which)
        samples = texts(torch.tensor([[1.0]] if which == SINGLE else [[1.0, 0.0]]))
    batch = muted(samples)
    scores = scores_for(batch.segments, 1 if which == "rm" else 2)
    sums: LossSums = objective.loss(ModelView(scores=scores), batch)
    assert float(sums.loss.detach()) == 0
    assert not torch.autograd.grad(sums.loss, scores)[0].any()
    assert all(float(value) == float(weight) == 0 for value, weight in sums.metrics.values())
    dummy = replace(samples[0], segments=tuple(replace(each, weights=each.weights * 0) for each in samples[0].segments))
    assert objective.row_weight([dummy]) == 0


@pytest.mark.parametrize(
    ("labels", "problem_type", "options", "named"),
    [
        (None, None, {}, "--num_labels N"),
        (1, SINGLE, {}, "--problem_type regression"),
        (3, None, {"class_weights": (1.0, 2.0)}, "for 3 labels"),
        (1, None, {"class_weights": (1.0,)}, "regression"),
        (3, MULTI, {"label_smoothing": 0.1}, SINGLE),
        (1000, MULTI, {}, "at most 256 labels"),
        (1, None, {"class_weights": "balanced"}, "regression"),
    ],
)
def test_options_that_do_not_fit_the_labels_are_refused(
    labels: int | None, problem_type: str | None, options: dict, named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        seq_cls(labels, problem_type, **options)
    assert named in f"{refused.value} {refused.value.hint}"


def test_labels_of_a_stream_cannot_be_balanced() -> None:
    with pytest.raises(ConfigError, match="which streaming does not provide") as refused:
        seq_cls(3, class_weights="balanced").for_training_set(None, print)
    assert "--streaming" in str(refused.value.hint)
    with pytest.raises(ValueError, match="balanced or one number per label"):
        SeqClsOptions(class_weights=("balanced", 2.0))
