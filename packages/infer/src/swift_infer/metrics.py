"""Metrics of scores, labels and rankings, as scikit-learn and sentence-transformers define them, on numpy alone.

scikit-learn is not a dependency: every import of transformers would import it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.floating]
Flags = npt.NDArray[np.bool_]
CUTS = (1, 5, 10)
"""Of recall@k; the last is that of nDCG too."""


def f1_scores(found: Flags, true: Flags) -> dict[str, float]:
    """Return F1 over all labels together and its mean over labels, for memberships [rows, labels]."""
    both, either = (found & true).sum(axis=0), found.sum(axis=0) + true.sum(axis=0)
    each = 2 * both / np.maximum(either, 1)
    return {"f1_micro": float(2 * both.sum() / max(either.sum(), 1)), "f1_macro": float(each[either > 0].mean())}


def auc(scores: Numbers, true: Flags) -> float | None:
    """Return the area under the ROC curve; None where there are no positives, or nothing else."""
    positives = int(true.sum())
    negatives = len(true) - positives
    if not positives or not negatives:
        return None
    above = ranks(scores)[true].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def spearman(one: Numbers, other: Numbers) -> float | None:
    """Return the correlation of ranks; None where either side is constant."""
    return pearson(ranks(one), ranks(other))


def pearson(one: Numbers, other: Numbers) -> float | None:
    """Return the linear correlation; None where either side is constant."""
    first, second = one - one.mean(), other - other.mean()
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / size) if size > 0 else None


def ranks(values: Numbers) -> Numbers:
    """Return ranks from 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared: Numbers = ((ends - counts + 1 + ends) / 2)[inverse]
    return shared


def ranking(groups: Iterable[tuple[Numbers, Flags]]) -> dict[str, float]:
    """Return means over queries of MRR, nDCG and recall; a group has the scores and relevance of documents.

    Among equal scores, relevant documents come last: a tie is no success.
    """
    found = [_of_query(scores, right) for scores, right in groups if right.any()]
    names = ("mrr", f"ndcg@{CUTS[-1]}", *(f"recall@{cut}" for cut in CUTS))
    return dict(zip(names, np.mean(found, axis=0).tolist(), strict=True)) if found else {}


def _of_query(scores: Numbers, right: Flags) -> Sequence[float]:
    ordered = right[np.lexsort((right, -scores))]
    positions = np.flatnonzero(ordered)
    gains = 1 / np.log2(np.arange(2, CUTS[-1] + 2))
    ideal = gains[: min(len(positions), CUTS[-1])].sum()
    ndcg = gains[positions[positions < CUTS[-1]]].sum() / ideal
    return [1 / (positions[0] + 1), ndcg, *((positions < cut).sum() / len(positions) for cut in CUTS)]
