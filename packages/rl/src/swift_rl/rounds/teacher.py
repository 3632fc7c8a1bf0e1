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


class TokenTeacher:
    """The teacher of a run that learns from its own completions; it scores only the sampled tokens.

    It is a frozen model of the run, on its processes and sharded as the policy is, or in an inference engine.
    """

    def __init__(self, context: ScheduleContext, options: TeacherOptions) -> None:
        self._context = context
        self._engine = None if options.teacher_as_role else TeacherEngine(context, options, top=0)

    def logps(self, samples: Sequence[Encoded]) -> list[np.ndarray]:
        """Return the log-probability of every learned token of each sample. Called on every process."""
        engine = self._engine
        if engine is None:
            forward = self._context.role(TEACHER).forward
            found = values_of_completions(self._context, samples, TokenLogps(), temperature=1.0, forward=forward)
            return [values["logps"] for values in found]
        sequences = [sample.segments[0].input_ids.tolist() for sample in samples]

        def scored(mine: Sequence[int]) -> dict[int, np.ndarray]:
            found = {}
            for index, score in engine.opened().score([sequences[each] for each in mine]):
                heartbeat()
                found[mine[index]] = np.concatenate([[0.0], score.logprobs])
            return found

        return engine.divided(len(sequences), scored)

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
