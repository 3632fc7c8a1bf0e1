"""Evaluation of models that return scores or vectors: pairs, labels, rankings and similarities.

The encoding of the objective reads the rows, so columns and unusable rows are those of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from swift.config.sections import DataSection
from swift.data import open_parts, prepare_data
from swift.data.formats import COMPLETION, POSITIVE, rename
from swift.data.media import number_of
from swift.errors import UsageError
from swift.models import MediaProcessor, is_encoder
from swift.parsing.tasks import EMBEDDING
from swift.terminal import progress
from swift_infer.metrics import auc, f1_scores, pearson, ranking, spearman
from swift_infer.score_rows import prompts_of
from swift_infer.scorer import Scorer
from swift_infer.scoring import RowScores, scoring_objective
from swift_objectives import DOCUMENT_COLUMNS, Documents, PairEncoding, PreferenceEncoding, RerankerEncoding

if TYPE_CHECKING:
    from swift.contracts import Objective
    from swift.data.encodings import Encoding
    from swift.data.samples import Encoded, Segment
    from swift_infer.chat_engine import FoundModel
    from swift_infer.commands.common import AnyTaskOptions

Outputs = npt.NDArray[np.float32]
"""Outputs of a sample: [sequences, scores] or [sequences, size of a vector]."""
Values = Mapping[str, npt.NDArray[np.float64]]
"""Column of the encoding → its value in each sample."""
_PAIRS = frozenset({"chosen", "rejected", "rejected_response", "rejected_messages"})
_RANKED = frozenset({*POSITIVE, "positive_messages", *DOCUMENT_COLUMNS} - {*COMPLETION})
_LABELLED = frozenset({"label", "score"})


@dataclass(frozen=True)
class Scored:
    """Samples with the outputs of the model."""

    outputs: Sequence[Outputs]
    values: Values
    sequences: Sequence[Sequence[int]]
    """Ids of the sequences of each sample; equal sequences have the same."""


@dataclass(frozen=True)
class Measurement:
    """An encoding of rows, and the metrics to compute."""

    encoding: str | Encoding
    measure: Callable[[Scored], dict[str, float | None]]
    of: str
    """Name of the unit that is counted."""


def evaluate_scores(found: FoundModel, options: AnyTaskOptions, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the metrics of a model that returns scores or vectors, except undefined ones."""
    limits = options.pixels(found.location.pixels)
    system = options.system or found.location.system
    section = DataSection(train=options.dataset, columns=options.columns, system=system, **limits)
    if options.max_length is not None:
        section = section.model_copy(update={"max_length": options.max_length})
    objective = scoring_objective(found.location, options.task_type)
    scores = None if objective is None else RowScores(objective, found.source, section)
    measured = measurement_of(found, section, scores)
    processor = found.source.processor
    rules = None if processor is None else MediaProcessor(processor, section)
    data = prepare_data(section, found.source.tokenizer, encoding=measured.encoding, seed=0, say=say, images=rules)
    assert data.train is not None
    for line in data.report.lines_of_rejected():
        say(line)
    samples = [data.train.samples[index] for index in range(len(data.train.samples))]
    scorer = Scorer(found, options, batch_size=options.batch_size, say=say, scores=scores)
    try:
        outputs, sequences = _outputs(scorer, samples)
    finally:
        scorer.close()
    names = samples[0].values if samples else {}
    values = {name: np.array([sample.values[name] for sample in samples], dtype=np.float64) for name in names}
    found_metrics = measured.measure(Scored(outputs, values, sequences))
    metrics = {name: value for name, value in found_metrics.items() if value is not None}
    return {**metrics, measured.of: len(samples)}


def measurement_of(found: FoundModel, section: DataSection, scores: RowScores | None = None) -> Measurement:
    """Return the measurement of a model: by the objective of its run, or else by the columns."""
    columns = _columns(section)
    if scores is not None:
        return _of_rankings(scores.objective)
    objective = str(found.location.objective.get("name"))
    if found.source.task == EMBEDDING:
        return _of_vectors(found, columns)
    if objective == "rm" or (objective != "reranker" and columns & _PAIRS):
        return Measurement(PreferenceEncoding(), _of_pairs, "pairs")
    if objective == "reranker" or columns & _RANKED:
        instruction = found.location.objective.get("instruction")
        kind = PairEncoding if is_encoder(found.source.config) else RerankerEncoding
        return _rankings(kind(Documents(listwise=False, instruction=instruction)))
    return _of_labels(found)


def _columns(section: DataSection) -> frozenset[str]:
    part = open_parts(section.train, section)[0]
    if not part.count:
        raise UsageError(f"{section.train[0]} has no rows.", hint="Pass a data set with rows.")
    return frozenset(rename(part.rows[0], part.columns, part.rows.location(0)))


def _outputs(scorer: Scorer, samples: Sequence[Encoded]) -> tuple[list[Outputs], list[list[int]]]:
    """Return the outputs and sequence ids of each sample; equal sequences are computed once."""
    numbers: dict[bytes, int] = {}
    sequences: list[Segment] = []
    ids: list[list[int]] = []
    for sample in samples:
        mine = []
        for segment in sample.segments:
            key = segment.input_ids.tobytes() + str(number_of(segment.media)).encode()
            if key not in numbers:
                numbers[key] = len(sequences)
                sequences.append(segment)
            mine.append(numbers[key])
        ids.append(mine)
    found: dict[int, Outputs] = dict(progress(scorer.outputs(sequences), "scoring", total=len(sequences)))
    return [np.stack([found[number] for number in mine]) for mine in ids], ids


def _of_pairs(scored: Scored) -> dict[str, float | None]:
    margins = np.array([each[0, 0] - each[1, 0] for each in scored.outputs])
    return {"accuracy": float((margins > 0).mean()), "margin": float(margins.mean())}


def _of_rankings(objective: Objective) -> Measurement:
    if isinstance(objective.encoding, RerankerEncoding):
        return _rankings(objective.encoding)
    raise UsageError(
        f"swift eval has no metric for the objective {objective.name}.",
        hint="Type swift infer to write the scores, and compare them with your own metric.",
    )


def _rankings(encoding: RerankerEncoding) -> Measurement:
    def measure(scored: Scored) -> dict[str, float | None]:
        counts = scored.values["positives"].astype(int)
        groups = [
            (each[:, 0], np.arange(len(each)) < count) for each, count in zip(scored.outputs, counts, strict=True)
        ]
        scores, right = (np.concatenate(side) for side in zip(*groups, strict=True))
        return {**ranking(groups), "auc": auc(scores, right)}

    return Measurement(encoding, measure, "queries")


def _of_labels(found: FoundModel) -> Measurement:
    from swift_objectives import MULTI_LABEL, REGRESSION, SINGLE_LABEL, ClassificationEncoding

    config = found.source.config
    count = int(config.num_labels)
    names = tuple(str(config.id2label[index]) for index in range(count))
    kind = found.problem_type or (REGRESSION if count == 1 else SINGLE_LABEL)
    measure = {SINGLE_LABEL: _single, MULTI_LABEL: _multi, REGRESSION: _regression}[kind]
    return Measurement(ClassificationEncoding(kind, names), measure, "texts")


def _single(scored: Scored) -> dict[str, float | None]:
    scores = np.concatenate(scored.outputs)
    true = scored.values["label"].astype(int)
    members = np.arange(scores.shape[1])
    found = scores.argmax(axis=1)
    chances = _softmax(scores)
    areas = [auc(chances[:, label], true == label) for label in (members if len(members) > 2 else members[1:])]
    return {
        "accuracy": float((found == true).mean()),
        **f1_scores(found[:, None] == members, true[:, None] == members),
        "auc": _mean(areas),
    }


def _multi(scored: Scored) -> dict[str, float | None]:
    scores = np.concatenate(scored.outputs)
    true = _table(scored.values) > 0.5
    found = scores > 0
    return {
        "accuracy": float((found == true).all(axis=1).mean()),
        "label_accuracy": float((found == true).mean()),
        **f1_scores(found, true),
        "auc": _mean([auc(scores[:, label], true[:, label]) for label in range(scores.shape[1])]),
    }


def _regression(scored: Scored) -> dict[str, float | None]:
    scores, true = np.concatenate(scored.outputs).astype(np.float64), _table(scored.values)
    flat = (scores.ravel(), true.ravel())
    apart = scores - true
    return {
        "mse": float((apart**2).mean()),
        "mae": float(abs(apart).mean()),
        "pearson": pearson(*flat),
        "spearman": spearman(*flat),
    }


def _of_vectors(found: FoundModel, columns: frozenset[str]) -> Measurement:
    from swift_objectives import EmbeddingEncoding

    objective = found.location.objective
    query, document = prompts_of(found)
    cosine = objective.get("normalize") is not False

    def compare(scored: Scored) -> dict[str, float | None]:
        scores = np.array([float(one @ other) for one, other in (_scaled(each, cosine) for each in scored.outputs)])
        labels = scored.values["label"]
        belongs = auc(scores, labels > 0.5) if set(labels.tolist()) <= {0.0, 1.0} else None
        return {"spearman": spearman(scores, labels), "pearson": pearson(scores, labels), "auc": belongs}

    def retrieve(scored: Scored) -> dict[str, float | None]:
        scaled = [_scaled(each, cosine) for each in scored.outputs]
        return dict(ranking(_retrieved(scaled, scored.sequences, scored.values["positives"].astype(int))))

    if columns & _LABELLED:
        return Measurement(
            EmbeddingEncoding("similarity", query_prompt=query, document_prompt=document), compare, "pairs"
        )
    return Measurement(EmbeddingEncoding("none", query_prompt=query, document_prompt=document), retrieve, "queries")


def _retrieved(
    samples: Sequence[Outputs], sequences: Sequence[Sequence[int]], positives: npt.NDArray[np.int_]
) -> Iterator[tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_]]]:
    """Yield for each query the scores of *all* documents of the data set, and which are relevant."""
    numbers: dict[int, int] = {}
    vectors: list[Outputs] = []
    mine = []
    for each, named in zip(samples, sequences, strict=True):
        for text, vector in zip(named[1:], each[1:], strict=True):
            if numbers.setdefault(text, len(numbers)) == len(vectors):
                vectors.append(vector)
        mine.append([numbers[text] for text in named[1:]])
    documents = np.stack(vectors)
    for each, own, count in zip(samples, mine, positives, strict=True):
        right = np.zeros(len(documents), dtype=np.bool_)
        right[own[:count]] = True
        yield documents @ each[0], right


def _scaled(vectors: Outputs, to_one: bool) -> Outputs:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if to_one else np.ones(1, dtype=np.float32)
    scaled: Outputs = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled


def _softmax(scores: Outputs) -> npt.NDArray[np.float64]:
    raised = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    chances: npt.NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
    return chances


def _table(values: Values) -> npt.NDArray[np.float64]:
    """Return the labels [rows, labels]: one column, or several numbered ones."""
    names = ["label"] if "label" in values else [f"label_{index}" for index in range(len(values))]
    return np.stack([values[name] for name in names], axis=1)


def _mean(areas: Sequence[float | None]) -> float | None:
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None
