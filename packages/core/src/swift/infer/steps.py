"""Answers whose steps a process reward model scores, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from swift.config.sections import DataSection
from swift.data.conversation import Conversation
from swift.data.encode import SampleEncoder
from swift.data.encodings.steps import StepEncoding, StepSample
from swift.errors import ModelError
from swift.infer.chat_engine import find_model
from swift.infer.scorer import Scorer
from swift.terminal import say_nothing

if TYPE_CHECKING:
    from swift.data.samples import Segment
    from swift.infer.options import ModelOptions

SEPARATOR = "\n"
_ANY_LENGTH = 2**27
Messages = Sequence[Mapping[str, Any]]


class StepScorer:
    """A process reward model, which says of each step of an answer how likely it is right.

    Answers are divided into steps, and steps tokenised, as the rows that the model was trained on.
    """

    def __init__(self, options: ModelOptions, separator: str | None, *, batch_size: int | None = None) -> None:
        self._found = find_model(options, generates=False, say=say_nothing)
        weights, run = self._found.location.weights, self._found.location.objective
        if weights.task not in ("value", "seq_cls") or self._found.source.config.num_labels != 1:
            raise ModelError(
                f"{options.model} is no process reward model: it does not give one number to each step of an answer.",
                hint="Such a model is trained by: swift rlhf --rlhf_type prm",
            )
        self.separator: str = separator or run.get("step_separator") or SEPARATOR
        section = DataSection(system=self._found.location.system, max_length=_ANY_LENGTH)
        self._encoder = SampleEncoder(self._found.source.tokenizer, section, StepEncoding(self.separator))
        self._options = options
        self._batch_size = batch_size
        self._scorer: Scorer | None = None

    def scores(self, answers: Sequence[tuple[Messages, str]]) -> list[npt.NDArray[np.float64]]:
        """Return the probability of each step of each answer that it is right; of an answer without steps, none."""
        steps = [[step for step in answer.split(self.separator) if step.strip()] for _, answer in answers]
        places = [place for place, found in enumerate(steps) if found]
        segments = [self._segment(answers[place][0], steps[place]) for place in places]
        if self._scorer is None:
            self._scorer = Scorer(self._found, self._options, batch_size=self._batch_size, say=say_nothing)
        scored = [np.zeros(0) for _ in answers]
        for index, outputs in self._scorer.values(segments):
            scored[places[index]] = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        return scored

    def close(self) -> None:
        """Let the model go."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def _segment(self, messages: Messages, steps: Sequence[str]) -> Segment:
        asked = Conversation(tuple(map(dict, messages)), (1.0,) * len(messages))
        sample = StepSample(asked, steps=tuple(steps), labels=(0.0,) * len(steps))
        return self._encoder.encode(sample, "An answer").samples[0].segments[0]
