"""Tests of `model.task` and the objective: which of them implies the other, and which do not go together."""

from __future__ import annotations

import pytest

from swift.errors import ConfigError
from swift.parsing import Parsed, parse


def parsed(line: str) -> Parsed:
    command, *words = line.split()
    return parse(words, command, complete=False)


@pytest.mark.parametrize(
    ("line", "objective", "task", "labels", "loss"),
    [
        ("rlhf --rlhf_type rm", "rm", "reward", 1, None),
        ("rlhf --model.task reward", "rm", "reward", 1, None),
        ("train --objective rm --task_type seq_cls", "rm", "seq_cls", 1, None),
        ("train --train_type rm --num_labels 1", "rm", "reward", 1, None),
        ("sft --task_type reranker", "reranker", "seq_cls", 1, None),
        ("sft --task_type reranker --loss_type listwise_reranker", "reranker", "seq_cls", 1, "listwise"),
        ("sft --loss_type pointwise_reranker", "reranker", "seq_cls", 1, "pointwise"),
        ("sft --task_type generative_reranker", "generative_reranker", "causal_lm", None, None),
        ("sft --loss_type generative_reranker", "generative_reranker", "causal_lm", None, "pointwise"),
        ("sft --loss_type listwise_generative_reranker", "generative_reranker", "causal_lm", None, "listwise"),
        (
            "sft --task_type generative_reranker --loss_type pointwise_reranker",
            "generative_reranker",
            "causal_lm",
            None,
            "pointwise",
        ),
        ("rlhf --rlhf_type dpo", "dpo", "causal_lm", None, None),
        ("sft", "sft", "causal_lm", None, None),
        ("sft --task_type causal_lm", "sft", "causal_lm", None, None),
    ],
)
def test_objective_and_task_imply_each_other(
    line: str, objective: str, task: str, labels: int | None, loss: str | None
) -> None:
    run = parsed(line)
    config = run.config
    assert (config.objective.name, config.model.task, config.model.num_labels) == (objective, task, labels)
    assert loss is None or run.objective.options.loss == loss


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("rlhf --rlhf_type rm --num_labels 3", "the objective 'rm' (--rlhf_type) needs 1"),
        ("rlhf --rlhf_type rm --task_type causal_lm", "--model.task"),
        ("rlhf --rlhf_type dpo --task_type reward", "--model.task causal_lm"),
        ("sft --task_type reward", "swift rlhf --objective rm"),
        ("sft --objective rm", "swift rlhf --objective rm"),
        ("rlhf --task_type seq_cls", "swift sft --objective seq_cls"),
        ("rlhf --objective sft", "Type: swift sft"),
        ("sft --objective sft --task_type reranker", "contradict"),
        ("sft --task_type reranker --num_labels 2", "the objective 'reranker' (--task_type) needs 1"),
        ("sft --task_type reranker --loss_type generative_reranker", "contradict"),
        ("sft --task_type reranker --loss_type infonce", "pointwise"),
        ("rlhf --loss_type ipo --label_smoothing 0.1", "objective: label_smoothing needs loss sigmoid, not ipo."),
    ],
)
def test_mismatched_objective_and_task_are_refused(line: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(line)
    assert named in f"{refused.value} {refused.value.hint}"
