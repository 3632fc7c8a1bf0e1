"""Learning labels of texts: one class, several classes, or numbers.

The loss is that of transformers' `...ForSequenceClassification`, as a mean over the texts of the *global* batch. A
dummy text (all weights zero) has no loss, no weight and no metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.errors import ConfigError
from swift.objectives.base import PerSampleObjective, viewed
from swift.parsing import problem_type_of
from swift_objectives.encodings.classification import MULTI_LABEL, REGRESSION, SINGLE_LABEL, ClassificationEncoding

if TYPE_CHECKING:
    import torch

    from swift.config.sections import ModelSection
    from swift.data import SampleSet
    from swift.data.batch import MicroBatch
    from swift.data.samples import SampleFacts

BALANCED = "balanced"
_SHOWN = 20
"""Weights that a line names at most."""
MOST_COLUMNS = 256
"""Labels of which each needs a number of its own in the tokenised data."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SeqClsOptions(Section):
    """Options of `seq_cls`."""

    class_weights: Annotated[tuple[PositiveFloat | Literal["balanced"], ...], BeforeValidator(_listed)] = Field(
        (),
        description="Loss weights, one per label: of the samples of a class (single-label), or of the samples that "
        "have the "
        "label (multi-label); or balanced: inversely proportional to the frequency in the training set",
    )
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="Part of the target probability that is spread over all classes (single-label only)"
    )

    @model_validator(mode="after")
    def _balanced_stands_alone(self) -> SeqClsOptions:
        if BALANCED in self.class_weights and len(self.class_weights) > 1:
            raise ValueError("class_weights must be balanced or one number per label")
        return self


class SeqCls(PerSampleObjective[SeqClsOptions]):
    """Cross entropy of one class, binary cross entropy of several, or squared error of numbers: `model.problem_type`.

    With class weights the loss of single classes is a weighted mean, as torch's cross_entropy has it; with several
    labels they are its `pos_weight`.
    """

    options_model = SeqClsOptions
    name = "seq_cls"
    command = "sft"
    needs = frozenset({Need.SCORES})
    task = "seq_cls"
    encoding: ClassificationEncoding

    def __init__(
        self,
        options: SeqClsOptions,
        problem_type: str = SINGLE_LABEL,
        names: tuple[str, ...] = ("", ""),
        weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(options)
        self._problem_type = problem_type
        self.encoding = ClassificationEncoding(problem_type, names)
        given = tuple(each for each in options.class_weights if not isinstance(each, str))
        self._weights: tuple[float, ...] = given if weights is None else weights
        """Of the labels; none until the training set is known, where they are balanced."""

    def for_model(self, section: ModelSection) -> SeqCls:
        """Return the objective for the labels that the section names."""
        labels = section.num_labels or (1 if section.task == "reward" else None)
        if labels is None:
            raise ConfigError(
                "The number of labels is not configured.",
                hint="Type --num_labels N, or their names: --labels negative,positive",
            )
        problem_type = problem_type_of(section, labels)
        self._check(problem_type, labels)
        return SeqCls(self.options, problem_type, section.labels or ("",) * labels)

    def for_training_set(self, samples: SampleSet | None, say: Callable[[str], None]) -> SeqCls:
        """Return the objective with the weights that balance the labels of these texts, and say them."""
        if BALANCED not in self.options.class_weights:
            return self
        if samples is None:
            raise ConfigError(
                "objective.class_weights balanced needs the labels of the whole training set, which streaming does "
                "not provide.",
                hint="Remove --streaming, or pass one weight per label.",
            )
        weights = balanced_weights(samples, self._problem_type, self.encoding.values, len(self.encoding.names))
        named = zip((name or str(index) for index, name in enumerate(self.encoding.names)), weights, strict=True)
        shown = [f"{name} {weight:.4g}" for name, weight in named]
        say(f"Class weights: {', '.join(shown[:_SHOWN])}{', ...' * (len(shown) > _SHOWN)}")
        return SeqCls(self.options, self._problem_type, self.encoding.names, weights)

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the number of texts, or the sum of the weights of their classes."""
        weights = self._weights
        if not weights or self._problem_type != SINGLE_LABEL:
            return super().row_weight(samples)
        return float(sum(weights[int(sample.values["label"])] for sample in samples if sample.loss_weight > 0))

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch's texts, dummies left out."""
        import torch

        scores = viewed(view.scores, Need.SCORES)
        active = (batch.segment_sum(batch.weights) > 0).float()
        labels = torch.stack([batch.values[name] for name in self.encoding.values], dim=1)
        judge = {SINGLE_LABEL: self._single, MULTI_LABEL: self._multi, REGRESSION: _regression}[self._problem_type]
        losses, metrics = judge(scores, labels, active)
        return LossSums(loss=(losses * active).sum(), metrics=metrics, segments=scores.detach())

    def _single(self, scores: torch.Tensor, labels: torch.Tensor, active: torch.Tensor) -> Judged:
        from torch.nn.functional import cross_entropy

        options = self.options
        classes = labels[:, 0].long()
        weights = scores.new_tensor(self._weights) if self._weights else None
        losses = cross_entropy(
            scores, classes, weight=weights, reduction="none", label_smoothing=options.label_smoothing
        )
        right = (scores.argmax(dim=1) == classes).float()
        return losses, {"accuracy": ((right * active).sum(), active.sum())}

    def _multi(self, scores: torch.Tensor, labels: torch.Tensor, active: torch.Tensor) -> Judged:
        from torch.nn.functional import binary_cross_entropy_with_logits

        weights = scores.new_tensor(self._weights) if self._weights else None
        losses = binary_cross_entropy_with_logits(scores, labels, pos_weight=weights, reduction="none").mean(dim=1)
        predicted, true = (scores > 0).float(), (labels > 0.5).float()
        both = ((predicted * true).sum(dim=1) * active).sum()
        either = ((predicted + true).sum(dim=1) * active).sum()
        right = ((predicted == true).float().mean(dim=1) * active).sum()
        # The quotient of these sums is the F1 of all labels together: 2 TP / (2 TP + FP + FN).
        return losses, {"label_accuracy": (right, active.sum()), "micro_f1": (2 * both, either)}

    def _check(self, problem_type: str, labels: int) -> None:
        options = self.options
        if problem_type == SINGLE_LABEL and labels == 1:
            raise ConfigError(
                "model.num_labels is 1, but classification needs at least 2 classes.",
                hint="Type --num_labels 2, or --problem_type regression (or multi_label_classification)",
            )
        if problem_type != SINGLE_LABEL and options.label_smoothing:
            raise ConfigError(
                f"objective.label_smoothing needs problem_type {SINGLE_LABEL}, not {problem_type}.",
                hint="Remove it.",
            )
        if options.class_weights and problem_type == REGRESSION:
            raise ConfigError(
                "objective.class_weights is for classification, and problem_type is regression.", hint="Remove it."
            )
        if BALANCED not in options.class_weights and len(options.class_weights) not in (0, labels):
            raise ConfigError(
                f"objective.class_weights has {len(options.class_weights)} numbers for {labels} labels.",
                hint="Pass one number per label.",
            )
        if problem_type != SINGLE_LABEL and labels > MOST_COLUMNS:
            raise ConfigError(
                f"model.num_labels is {labels}, but problem_type {problem_type} supports at most {MOST_COLUMNS} "
                "labels.",
                hint=f"Split the labels over several runs, or type --problem_type {SINGLE_LABEL}",
            )


def balanced_weights(samples: SampleSet, problem_type: str, columns: Sequence[str], labels: int) -> tuple[float, ...]:
    """Return scikit-learn's balanced weights of single classes, or for several labels without / with the label.

    A label that no text has, or that every text has, weighs 1.
    """
    with_label: npt.NDArray[Any]
    requested: npt.NDArray[Any]
    if problem_type == SINGLE_LABEL:
        with_label = np.bincount(samples.column(columns[0]).astype(np.int64), minlength=labels).astype(np.float64)
        requested = np.full(labels, len(samples) / np.count_nonzero(with_label))
    else:
        with_label = np.array([samples.column(name).sum() for name in columns])
        requested = len(samples) - with_label
    known = (with_label > 0) & (requested > 0)
    return tuple(np.divide(requested, with_label, out=np.ones(labels), where=known).tolist())


Judged = tuple["torch.Tensor", dict[str, tuple["torch.Tensor", "torch.Tensor | float"]]]
"""The loss of each text, and metrics as sums."""


def _regression(scores: torch.Tensor, labels: torch.Tensor, active: torch.Tensor) -> Judged:
    wrong = scores - labels
    losses = wrong.square().mean(dim=1)
    apart = (wrong.detach().abs().mean(dim=1) * active).sum()
    return losses, {"mse": ((losses.detach() * active).sum(), active.sum()), "mae": (apart, active.sum())}
