"""The divergence between teacher and student at single tokens, as pure functions of log-probabilities.

Both distributions are given over the same K candidates and one outcome for all other tokens. Putting outcomes together
never makes two distributions further apart, so each of these divergences is a lower bound of the one over the whole
vocabulary, and equal to it where the candidates are the whole vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch

LEAST_REST = 1e-6
"""Probability that a teacher leaves to the tokens that are no candidates at least: what single precision can tell."""
BLOCK_BYTES = {"cpu": 2**19, "cuda": 2**28}
"""Bytes of log-probabilities computed at once, by type of device: as many as a processor's caches hold."""


@dataclass(frozen=True)
class Divergences:
    """How far a student is from its teacher, per token."""

    learned: torch.Tensor
    """The one that is learned; the others have no gradient."""
    kl: torch.Tensor
    """KL(teacher ‖ student)"""
    reverse_kl: torch.Tensor
    """KL(student ‖ teacher)"""


def outcomes(
    teacher: torch.Tensor, student: torch.Tensor, student_rest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return teacher's and student's log-probabilities of all outcomes, [tokens, K + 1].

    `teacher` and `student` are of the candidates, [tokens, K], and `student_rest` is of all other tokens, [tokens]:
    -inf where there are none. There the last outcome is the same for both, and adds nothing to any divergence. Where
    no token has any, as with the whole vocabulary, there are K outcomes.
    """
    others = student_rest > -torch.inf
    if not others.any():
        return teacher, student
    left = (1 - teacher.double().exp().sum(-1)).clamp(min=LEAST_REST).log().to(teacher.dtype)
    rests = (torch.where(others, rest, 0.0)[:, None] for rest in (left, student_rest))
    theirs, ours = (torch.cat([each, rest], -1) for each, rest in zip((teacher, student), rests, strict=True))
    return theirs, ours


def divergences(teacher: torch.Tensor, student: torch.Tensor, beta: float) -> Divergences:
    """Return the divergences of log-probabilities [tokens, outcomes], of which the generalized one has a gradient.

    `beta` 0 is the forward KL(teacher ‖ student), 1 the reverse KL(student ‖ teacher). Between them it is
    beta KL(teacher ‖ M) + (1 - beta) KL(student ‖ M) with M = beta teacher + (1 - beta) student (arXiv 2306.13649).
    The teacher gets no gradient.
    """
    return Divergences(*cast("Any", _Divergences.apply)(teacher, student, beta))


class _Divergences(torch.autograd.Function):
    """teacher, student, beta → the fields of `Divergences`.

    The gradient is made with the values, block by block, so that nothing of the size of all outcomes is written down
    but the gradient itself. With s and t the probabilities and m those of M, it is to log s

        beta 0: -t      beta 1: s (log s - log t + 1)      between: (1 - beta) s (log s - log m)
    """

    @staticmethod
    def forward(
        ctx: Any, teacher: torch.Tensor, student: torch.Tensor, beta: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens, outcomes = student.shape
        slopes = torch.empty_like(student) if ctx.needs_input_grad[1] else None
        found = [student.new_zeros(tokens) for _ in range(3)]
        most = BLOCK_BYTES.get(student.device.type, BLOCK_BYTES["cuda"])
        rows = max(1, most // (student.element_size() * max(1, outcomes)))
        for start in range(0, tokens, rows):
            part = slice(start, start + rows)
            values, slope = _of_block(teacher[part], student[part], beta)
            for whole, each in zip(found, values, strict=True):
                whole[part] = each
            if slopes is not None:
                slopes[part] = slope
        if slopes is not None:
            ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(found[1], found[2])
        return found[0], found[1], found[2]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (slopes,) = ctx.saved_tensors
        return None, slopes * gradients[0][:, None], None


def _of_block(
    teacher: torch.Tensor, student: torch.Tensor, beta: float
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the divergences of some tokens, and the gradient of the first to the student's log-probabilities."""
    theirs, ours = teacher.exp(), student.exp()
    from_teacher = (theirs * _apart(teacher, student)).sum(-1)
    ahead = _apart(student, teacher)
    from_student = (ours * ahead).sum(-1)
    if beta == 0:
        return (from_teacher, from_teacher, from_student), theirs.neg_()
    if beta == 1:
        return (from_student, from_teacher, from_student), ahead.add_(1).mul_(ours)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    pull = ours.mul_(_apart(student, mixture)).mul_(1 - beta)
    learned = beta * theirs.mul_(_apart(teacher, mixture)).sum(-1) + pull.sum(-1)
    return (learned, from_teacher, from_student), pull


def _apart(of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """Return log of - log to; what is impossible adds nothing."""
    return (of - to).masked_fill_(of == -torch.inf, 0.0)
