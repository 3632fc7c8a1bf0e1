"""Metrics of scores and rankings, compared with scikit-learn and with values worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from swift_infer.metrics import auc, f1_scores, pearson, ranking, spearman

HARNESS = Path(sys.prefix) / "harness"
REFERENCE = """
import json, sys
import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, ndcg_score, roc_auc_score
asked = {name: np.array(value) for name, value in json.load(sys.stdin).items()}
found, true, scores, values = (asked[name] for name in ("found", "true", "scores", "values"))
used = np.flatnonzero((found | true).any(axis=0))
print(json.dumps({
    "f1_micro": f1_score(true, found, average="micro"),
    "f1_macro": f1_score(true, found, average="macro", labels=used.tolist()),
    "auc": roc_auc_score(true[:, 0], scores),
    "spearman": spearmanr(scores, values).statistic,
    "pearson": pearsonr(scores, values).statistic,
    "ndcg": [ndcg_score([true[at:at + 20, 1]], [values[at:at + 20]], k=10) for at in range(0, len(true), 20)],
}))
"""


def test_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    if not HARNESS.is_dir():
        pytest.skip("scikit-learn is where make setup puts lm-evaluation-harness")
    draw = np.random.default_rng(0)
    found, true = draw.random((200, 4)) > 0.6, draw.random((200, 4)) > 0.7
    found[:, 3] = true[:, 3] = False  # a label that nobody has, and nobody is given
    scores = draw.integers(0, 12, 200) / 4.0  # with ties
    values = draw.permutation(200) + scores * 20
    asked = {"found": found, "true": true, "scores": scores, "values": values}
    done = subprocess.run(
        [sys.executable, "-S", "-c", REFERENCE],
        input=json.dumps({name: value.tolist() for name, value in asked.items()}),
        env={"PYTHONPATH": f"{HARNESS}:{Path(np.__file__).parent.parent}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    assert f1_scores(found, true) == pytest.approx({name: theirs[name] for name in ("f1_micro", "f1_macro")})
    assert auc(scores, true[:, 0]) == pytest.approx(theirs["auc"])
    assert spearman(scores, values) == pytest.approx(theirs["spearman"])
    assert pearson(scores, values) == pytest.approx(theirs["pearson"])
    groups = [(values[at : at + 20], true[at : at + 20, 1]) for at in range(0, 200, 20)]
    assert all(right.any() for _, right in groups)
    assert ranking(groups)["ndcg@10"] == pytest.approx(np.mean(theirs["ndcg"]))


def test_a_ranking_by_hand() -> None:
    # Places of what answers: 2 and 6 of 6; 1 of 3.
    first = (np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.1]), np.array([False, True, False, False, False, True]))
    second = (np.array([0.3, 0.2, 0.1]), np.array([True, False, False]))
    found = ranking([first, second])
    assert found["mrr"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["recall@1"] == pytest.approx((0 + 1) / 2)
    assert found["recall@5"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["recall@10"] == 1


def test_documents_with_equal_scores_are_no_success() -> None:
    flat = (np.zeros(4), np.array([True, False, False, False]))
    assert ranking([flat])["mrr"] == pytest.approx(1 / 4)
    assert ranking([(np.zeros(2), np.array([False, False]))]) == {}


def test_what_is_not_defined_is_left_out() -> None:
    assert auc(np.array([0.1, 0.2]), np.array([True, True])) is None
    assert spearman(np.array([1.0, 1.0]), np.array([0.0, 1.0])) is None
