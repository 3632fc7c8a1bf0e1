"""A teacher as a reward: its log-probabilities of the tokens that the policy sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.toolkit import heartbeat
from swift_rl.distill.engine import TeacherEngine
from swift_rl.roles import TEACHER
from swift_rl.rounds.logps import TokenLogps, values_of_completions

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.samples import Encoded
    from swift_rl.distill.options import TeacherOptions
    from swift_rl.options import GrpoOptions


class TokenTeacher:
    """The teacher of a run that learns from its own completions; it scores only the sampled tokens."""

    def __init__(self, context: ScheduleContext, options: TeacherOptions) -> None:
        self._engine = TeacherEngine(context, options, top=0)
        self._engine.check_server()

    def logps(self, samples: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the log-probability of every token of each sample, 0 of the first. Called on every process."""
        sequences = [sample.segments[0].input_ids.tolist() for sample in samples]

        def scored(mine: Sequence[int]) -> dict[int, np.ndarray]:
            found = {}
            for index, score in self._engine.opened().score([sequences[each] for each in mine]):
                heartbeat()
                found[mine[index]] = np.concatenate([[0.0], score.logprobs])
            return found

        return self._engine.divided(len(sequences), scored)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


class RoleTeacher:
    """The teacher as a frozen model of the run, on its processes and sharded as the policy is."""

    def __init__(self, context: ScheduleContext) -> None:
        self._context = context

    def logps(self, samples: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the log-probability of every token that is learned. Called on every process."""
        forward = self._context.role(TEACHER).forward
        scored = values_of_completions(self._context, samples, TokenLogps(), temperature=1.0, forward=forward)
        return [values["logps"] for values in scored]

    def close(self) -> None:
        """Do nothing: the run owns it."""


def open_teacher(context: ScheduleContext, options: GrpoOptions) -> TokenTeacher | RoleTeacher:
    """Return the teacher of a run."""
    return RoleTeacher(context) if options.teacher_as_role else TokenTeacher(context, options)
