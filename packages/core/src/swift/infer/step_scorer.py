"""Process reward models, which score the steps of completions, in this process."""

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
    """A process reward model, which returns the probability that each step of a completion is correct.

    Completions are split and tokenised like the rows that the model was trained on.
    """

    def __init__(self, options: ModelOptions, separator: str | None, *, batch_size: int | None = None) -> None:
        self._found = find_model(options, generates=False, say=say_nothing)
        weights, run = self._found.location.weights, self._found.location.objective
        if weights.task not in ("value", "seq_cls") or self._found.source.config.num_labels != 1:
            raise ModelError(
                f"{options.model} is not a process reward model: it does not return one score per step.",
                hint="Train one with: swift rlhf --rlhf_type prm",
            )
        self.separator: str = separator or run.get("step_separator") or SEPARATOR
        section = DataSection(system=self._found.location.system, max_length=_ANY_LENGTH)
        self._encoder = SampleEncoder(self._found.source.tokenizer, section, StepEncoding(self.separator))
        self._options = options
        self._batch_size = batch_size
        self._scorer: Scorer | None = None

    def scores(self, completions: Sequence[tuple[Messages, str]]) -> list[npt.NDArray[np.float64]]:
        """Return for each completion the probability that each of its steps is correct."""
        steps = [[step for step in completion.split(self.separator) if step.strip()] for _, completion in completions]
        with_steps = [index for index, found in enumerate(steps) if found]
        segments = [self._segment(completions[index][0], steps[index]) for index in with_steps]
        if self._scorer is None:
            self._scorer = Scorer(self._found, self._options, batch_size=self._batch_size, say=say_nothing)
        scored = [np.zeros(0) for _ in completions]
        for index, outputs in self._scorer.values(segments):
            scored[with_steps[index]] = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        return scored

    def close(self) -> None:
        """Release the model."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def _segment(self, messages: Messages, steps: Sequence[str]) -> Segment:
        prompt = Conversation(tuple(map(dict, messages)), (1.0,) * len(messages))
        sample = StepSample(prompt, steps=tuple(steps), labels=(0.0,) * len(steps))
        return self._encoder.encode(sample, "A completion").samples[0].segments[0]
