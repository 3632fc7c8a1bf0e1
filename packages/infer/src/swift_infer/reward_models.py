"""Reward models in this process: scores of conversations, and of the steps of completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from swift.config.sections import DataSection
from swift.data import SampleEncoder
from swift.data.encodings import Conversation
from swift.errors import ModelError
from swift.terminal import say_nothing
from swift_infer.chat_engine import find_model
from swift_infer.questions import Question
from swift_infer.score_rows import tokens_of
from swift_infer.scorer import Scorer
from swift_objectives import StepEncoding, StepSample

if TYPE_CHECKING:
    from swift.data.samples import Segment
    from swift_infer.options import ModelOptions

SEPARATOR = "\n"
_ANY_LENGTH = 2**27
Messages = Sequence[Mapping[str, Any]]


class _RewardModel:
    """A model with one output. Its weights are loaded at the first call."""

    def __init__(self, options: ModelOptions, batch_size: int | None) -> None:
        self._found = find_model(options, generates=False, say=say_nothing)
        self._options = options
        self._batch_size = batch_size

    def close(self) -> None:
        """Release the model."""
        if "_scorer" in self.__dict__:
            self._scorer.close()
            del self._scorer

    def _has_one_output(self, *tasks: str) -> bool:
        return self._found.location.weights.task in tasks and self._found.source.config.num_labels == 1

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self._found, self._options, batch_size=self._batch_size, say=say_nothing)


class ConversationScorer(_RewardModel):
    """A model whose output is at the last token of a conversation."""

    def __init__(self, options: ModelOptions, *, batch_size: int | None = None) -> None:
        super().__init__(options, batch_size)
        if not self._has_one_output("seq_cls", "reward"):
            raise ModelError(
                f"{options.model} is not a reward model: it does not return one score per conversation.",
                hint="Train one with swift rlhf --rlhf_type rm. For a process reward model, which scores steps, pass "
                "--step_reward min.",
            )

    def scores(self, conversations: Sequence[Messages]) -> list[float]:
        """Return the score of each conversation."""
        tokens = [tokens_of(Question([dict(each) for each in messages]), self._found) for messages in conversations]
        scored = {index: float(outputs[0]) for index, outputs in self._scorer.outputs(tokens)}
        return [scored[index] for index in range(len(tokens))]


class StepScorer(_RewardModel):
    """A process reward model, which returns the probability that each step of a completion is correct.

    Completions are split and tokenised like the rows that the model was trained on.
    """

    def __init__(self, options: ModelOptions, separator: str | None, *, batch_size: int | None = None) -> None:
        super().__init__(options, batch_size)
        if not self._has_one_output("value", "seq_cls"):
            raise ModelError(
                f"{options.model} is not a process reward model: it does not return one score per step.",
                hint="Train one with: swift rlhf --rlhf_type prm",
            )
        location = self._found.location
        self.separator: str = separator or location.objective.get("step_separator") or SEPARATOR
        section = DataSection(system=location.system, max_length=_ANY_LENGTH)
        self._encoder = SampleEncoder(self._found.source.tokenizer, section, StepEncoding(self.separator))

    def scores(self, completions: Sequence[tuple[Messages, str]]) -> list[npt.NDArray[np.float64]]:
        """Return for each completion the probability that each of its steps is correct."""
        steps = [[step for step in completion.split(self.separator) if step.strip()] for _, completion in completions]
        with_steps = [index for index, found in enumerate(steps) if found]
        segments = [self._segment(completions[index][0], steps[index]) for index in with_steps]
        scored = [np.zeros(0) for _ in completions]
        for index, outputs in self._scorer.values(segments):
            scored[with_steps[index]] = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        return scored

    def _segment(self, messages: Messages, steps: Sequence[str]) -> Segment:
        prompt = Conversation(tuple(map(dict, messages)), (1.0,) * len(messages))
        sample = StepSample(prompt, steps=tuple(steps), labels=(0.0,) * len(steps))
        return self._encoder.encode(sample, "A completion").samples[0].segments[0]
