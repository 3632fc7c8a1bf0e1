"""Reward models, which score conversations, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swift.errors import ModelError
from swift.infer.chat_engine import find_model
from swift.infer.questions import Question
from swift.infer.score_rows import tokens_of
from swift.infer.scorer import Scorer
from swift.terminal import say_nothing

if TYPE_CHECKING:
    from swift.infer.options import ModelOptions


class ConversationScorer:
    """A model with one output, at the last token of a conversation. Its weights are loaded at the first call."""

    def __init__(self, options: ModelOptions, *, batch_size: int | None = None) -> None:
        self._found = find_model(options, generates=False, say=say_nothing)
        task = self._found.location.weights.task
        if task not in ("seq_cls", "reward") or self._found.source.config.num_labels != 1:
            raise ModelError(
                f"{options.model} is not a reward model: it does not return one score per conversation.",
                hint="Train one with swift rlhf --rlhf_type rm. For a process reward model, which scores steps, pass "
                "--step_reward min.",
            )
        self._options = options
        self._batch_size = batch_size
        self._scorer: Scorer | None = None

    def scores(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[float]:
        """Return the score of each conversation."""
        tokens = [tokens_of(Question([dict(each) for each in messages]), self._found) for messages in conversations]
        if self._scorer is None:
            self._scorer = Scorer(self._found, self._options, batch_size=self._batch_size, say=say_nothing)
        scored = {index: float(outputs[0]) for index, outputs in self._scorer.outputs(tokens)}
        return [scored[index] for index in range(len(tokens))]

    def close(self) -> None:
        """Release the model."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None
