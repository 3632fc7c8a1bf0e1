"""Language models that score texts, as the objective that trained them does. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.checkpoint import WeightsLocation
from swift.errors import DataError, UsageError
from swift.parsing.tasks import CAUSAL_LM
from swift.plugins import load_objective_of_run, load_plugin, make_objective_of_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swift.config.sections import DataSection
    from swift.contracts import Objective
    from swift.data.samples import Segment
    from swift.models import HfSource

Content = str | list[dict[str, Any]]
"""Content of a message: a string, or parts, some of which are images."""


def returns_steps(location: WeightsLocation) -> bool:
    """Return whether a model was trained to return a value of each step of a completion."""
    plugin = load_objective_of_run(location.objective)
    return plugin is not None and plugin.object.returns == "steps"


def scoring_objective(location: WeightsLocation, task_type: str | None) -> Objective | None:
    """Return the objective by which a language model scores texts; None for all other models.

    `task_type` names it, or causal_lm for a model that generates; default: the objective of the run or export.
    """
    if location.weights.task != CAUSAL_LM or task_type == CAUSAL_LM:
        return None
    if task_type in (None, location.objective.get("name")):
        section, plugin = location.objective, load_objective_of_run(location.objective)
    else:
        section, plugin = {}, load_plugin("swift.objectives", str(task_type))
    if plugin is not None and plugin.object.returns == "scores":
        return make_objective_of_run(plugin, section)
    if task_type is not None:
        raise UsageError(
            f"--task_type {task_type}: this objective does not make a language model return scores.",
            hint=f"Remove it, or type --task_type {CAUSAL_LM} for a model that generates text.",
        )
    return None


class RowScores:
    """An objective with the tokens of rows, as in training."""

    def __init__(self, objective: Objective, source: HfSource, section: DataSection) -> None:
        from swift.data import SampleEncoder, media_tokens_of
        from swift.data.encodings import encoding_of
        from swift.models import MediaProcessor

        processor = source.processor
        images = media_tokens_of(None if processor is None else MediaProcessor(processor, section), section)
        self.objective = objective.for_tokenizer(source.tokenizer)
        self._encoder = SampleEncoder(source.tokenizer, section, encoding_of(self.objective.encoding), images)

    def segment(self, contents: Sequence[Content], source: str) -> Segment:
        """Return the tokens of the columns of a row, which may hold images."""
        from swift.data import prompt_only
        from swift.data.encodings import Unusable

        sample = self.objective.question(*map(prompt_only, contents))
        try:
            return self._encoder.encode(sample, source).samples[0].segments[0]
        except Unusable as unusable:
            raise DataError(f"{source}: {unusable.reason}: {unusable.detail}.", hint="Remove the row.") from None
