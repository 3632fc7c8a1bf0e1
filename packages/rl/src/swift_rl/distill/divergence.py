"""The divergence between teacher and student at single tokens, as pure functions of log-probabilities.

Both distributions are given over the same K candidates and one outcome for all other tokens. Putting outcomes together
never makes two distributions further apart, so each of these divergences is a lower bound of the one over the whole
vocabulary, and equal to it where the candidates are the whole vocabulary.
"""

from __future__ import annotations

import math

import torch

LEAST_REST = 1e-6
"""Probability that a teacher leaves to the tokens that are no candidates at least: what single precision can tell."""


def outcomes(
    teacher: torch.Tensor, student: torch.Tensor, student_rest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return teacher's and student's log-probabilities of all outcomes, [tokens, K + 1].

    `teacher` and `student` are of the candidates, [tokens, K], and `student_rest` is of all other tokens, [tokens]:
    -inf where there are none. There the last outcome is the same for both, and adds nothing to any divergence.
    """
    left = (1 - teacher.double().exp().sum(-1)).clamp(min=LEAST_REST).log().to(teacher.dtype)
    others = student_rest > -torch.inf
    rests = (torch.where(others, rest, 0.0)[:, None] for rest in (left, student_rest))
    theirs, ours = (torch.cat([each, rest], -1) for each, rest in zip((teacher, student), rests, strict=True))
    return theirs, ours


def kl(of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """Return KL(of ‖ to) of log-probabilities [tokens, outcomes], per token; what is impossible adds nothing."""
    possible = of > -torch.inf
    apart = torch.where(possible, of - to, 0.0)
    return (of.exp() * apart).sum(-1)


def generalized_jsd(teacher: torch.Tensor, student: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the generalized Jensen-Shannon divergence of log-probabilities [tokens, outcomes], per token.

    `beta` 0 is the forward KL(teacher ‖ student), 1 the reverse KL(student ‖ teacher). Between them it is
    beta KL(teacher ‖ M) + (1 - beta) KL(student ‖ M) with M = beta teacher + (1 - beta) student (arXiv 2306.13649).
    """
    if beta == 0:
        return kl(teacher, student)
    if beta == 1:
        return kl(student, teacher)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)
