"""The divergence from a teacher, as pure functions of tensors: against torch's own, and what must hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from swift.contracts import ModelView
from swift.data.batch import collate
from swift.data.samples import Encoded, Segment
from swift.models.logps import token_logps
from swift_rl.distill import divergence
from swift_rl.distill.objective import Gkd
from swift_rl.distill.options import GkdOptions
from swift_rl.distill.schedule import is_on_policy

TOKENS, VOCABULARY = 11, 37
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)


def logits(seed: int) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(TOKENS, VOCABULARY, generator=noise, dtype=torch.float64)


def over(top: int, teacher: torch.Tensor, student: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outcomes of the teacher's `top` likeliest tokens."""
    known = teacher.log_softmax(-1).topk(top)
    ours = student.log_softmax(-1)
    others = ours.scatter(-1, known.indices, -torch.inf)
    return divergence.outcomes(known.values, ours.gather(-1, known.indices), others.logsumexp(-1))


def by_torch(teacher: torch.Tensor, student: torch.Tensor, beta: float) -> torch.Tensor:
    """The divergence over the whole vocabulary, per token, from the formula and torch's function."""
    p, q = teacher.softmax(-1), student.softmax(-1)
    mixture = (beta * p + (1 - beta) * q).log()
    if beta in (0.0, 1.0):
        of, to = (p, q.log()) if beta == 0 else (q, p.log())
        return kl_div(to, of, reduction="none").sum(-1)
    return (beta * kl_div(mixture, p, reduction="none") + (1 - beta) * kl_div(mixture, q, reduction="none")).sum(-1)


@pytest.mark.parametrize("beta", BETAS)
def test_full_vocab_divergence_and_gradient_are_exact(beta: float) -> None:
    """Over the whole vocabulary it is the divergence with its gradient."""
    teacher, student = logits(1), logits(2).requires_grad_()
    ours = divergence.divergences(*over(VOCABULARY, teacher, student), beta).learned
    theirs = by_torch(teacher, student, beta)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    gradients = [torch.autograd.grad(each.sum(), student)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("beta", BETAS)
def test_top_k_divergence_is_rising_lower_bound(beta: float) -> None:
    """Over fewer tokens it is a lower bound that rises to the divergence."""
    teacher, student = logits(1), logits(2)
    tops = (1, 2, 4, 16, 30, VOCABULARY)
    found = torch.stack([divergence.divergences(*over(top, teacher, student), beta).learned for top in tops])
    assert (found[1:] >= found[:-1] - 1e-9).all()
    assert (found[0] < found[-1] - 1e-3).all()
    torch.testing.assert_close(found[-1], by_torch(teacher, student, beta), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_it_is_zero_where_both_say_the_same(beta: float) -> None:
    teacher = logits(1)
    for top in (3, VOCABULARY):
        assert divergence.divergences(*over(top, teacher, teacher), beta).learned.abs().max() < 1e-6


@pytest.mark.parametrize("top", [5, VOCABULARY])
def test_its_gradient_through_the_head_is_that_of_plain_logits(top: int) -> None:
    noise = torch.Generator().manual_seed(5)
    hidden = torch.randn(TOKENS, 8, generator=noise)
    teacher = logits(1).float().log_softmax(-1).topk(top)
    gradients = []
    for by_head in (True, False):
        weight = torch.randn(VOCABULARY, 8, generator=torch.Generator().manual_seed(6)).requires_grad_()
        if by_head:
            want = Gkd(GkdOptions()).needs
            seen = token_logps(
                hidden, weight, torch.zeros(TOKENS, dtype=torch.long), candidates=teacher.indices, want=want
            )
            assert seen.candidate_logps is not None
            assert seen.candidate_rest is not None
            pair = divergence.outcomes(teacher.values, seen.candidate_logps, seen.candidate_rest)
        else:
            ours = (hidden @ weight.T).log_softmax(-1)
            left = ours.scatter(-1, teacher.indices, -torch.inf).logsumexp(-1)
            pair = divergence.outcomes(teacher.values, ours.gather(-1, teacher.indices), left)
        loss = divergence.divergences(*pair, 0.5).learned.sum()
        gradients.append(torch.autograd.grad(loss, weight)[0])
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


# --- the objective --------------------------------------------------------------------------------------------------


def sample(number: int, length: int) -> Encoded:
    """A text of which the second half is learned, with what a teacher says of four candidates per token."""
    noise = np.random.default_rng(number)
    weights = (np.arange(length) >= length // 2).astype(np.float32)
    logps = np.log(noise.dirichlet(np.ones(5), size=length)[:, :4]).astype(np.float32)
    values = {"teacher_logps": logps, "is_taught": np.full(length, float(number % 2), np.float32)}
    candidates = np.stack([noise.permutation(VOCABULARY)[:4] for _ in range(length)]).astype(np.int32)
    return Encoded(
        number, (Segment(noise.integers(0, VOCABULARY, length).astype(np.int32), weights, values, candidates),)
    )


def total(samples: list[Encoded], cut: int, *, flat: bool) -> tuple[float, dict[str, float]]:
    """The loss of `gkd`, and its metrics, for a model whose logits depend on the target alone."""
    objective = Gkd(GkdOptions(beta=0.3, sft_alpha=0.2))
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    loss, metrics = 0.0, dict[str, Any]()
    for start in range(0, len(samples), cut):
        batch = collate(samples[start : start + cut], flat=flat, pad_to_multiple=3)
        assert batch.candidates is not None
        learned = batch.weights > 0
        logps = table.log_softmax(-1)[batch.targets]
        left = logps.scatter(-1, batch.candidates, -torch.inf).logsumexp(-1)
        view = ModelView(
            token_logps=logps.gather(-1, batch.targets[..., None])[..., 0] * learned,
            candidate_logps=logps.gather(-1, batch.candidates) * learned[..., None],
            candidate_rest=left * learned,
        )
        sums = objective.loss(view, batch)
        loss += float(sums.loss)
        for name, pair in sums.metrics.items():
            metrics[name] = metrics.get(name, 0) + torch.tensor([float(each) for each in pair])
    return loss / objective.row_weight(samples), {name: float(a / b) for name, (a, b) in metrics.items()}


def test_micro_batches_padding_and_packing_change_nothing() -> None:
    samples = [sample(number, length) for number, length in enumerate((7, 3, 9, 4))]
    whole, metrics = total(samples, 4, flat=False)
    for cut, flat in ((1, False), (3, False), (4, True), (2, True)):
        loss, same = total(samples, cut, flat=flat)
        assert loss == pytest.approx(whole, rel=1e-9)
        assert same == pytest.approx(metrics, rel=1e-6)
    assert metrics["kl"] > 0
    assert metrics["teacher_mass"] < 1


def test_batch_without_targets_has_metrics_and_no_loss() -> None:
    """A batch in which nothing is learned has the same metrics and no loss."""
    samples = [sample(1, 6)]
    (segment,) = samples[0].segments
    mute = replace(samples[0], segments=(replace(segment, weights=np.zeros_like(segment.weights)),))
    batch = collate([mute], flat=False)
    assert batch.candidates is not None
    view = ModelView(
        token_logps=torch.zeros(1, 6), candidate_logps=torch.zeros(1, 6, 4), candidate_rest=torch.zeros(1, 6)
    )
    objective = Gkd(GkdOptions(sft_alpha=1.0))
    sums = objective.loss(view, batch)
    assert float(sums.loss) == 0
    assert sums.metrics.keys() == objective.loss(view, collate(samples, flat=False)).metrics.keys()


def test_student_share_of_rounds_follows_seed() -> None:
    """The student generates in its part of the rounds, and other seeds choose others."""
    for part in (0.0, 0.3, 1.0):
        chosen = np.array([[is_on_policy(seed, number, part) for number in range(1000)] for seed in range(4)])
        spread = 4 * (part * (1 - part) / chosen.size) ** 0.5  # four standard deviations of a mean of coins
        assert abs(chosen.mean() - part) <= spread
    agreeing = [is_on_policy(0, number, 0.5) == is_on_policy(1, number, 0.5) for number in range(1000)]
    assert 400 < sum(agreeing) < 600
