"""A batch plan as core calls it: what it raises is blamed on the plugin, and what it returns is looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from swift.contracts import Plan
from swift.plugins.answers import wrong
from swift.plugins.blame import blaming, failing
from swift.plugins.entry import PluginEntry

if TYPE_CHECKING:
    from swift.data.batch import Batch


class CheckedPlan:
    """The plan of a plugin's objective."""

    def __init__(self, entry: PluginEntry, plan: Plan) -> None:
        self._entry = entry
        self._plan = plan
        steps: object = getattr(plan, "total_steps", None)
        if not _is_positive(steps):
            raise wrong(entry, "plan", "a plan whose total_steps is a whole number above 0", steps)
        per_epoch: object = getattr(plan, "steps_per_epoch", None)
        if per_epoch is not None and not _is_positive(per_epoch):
            raise wrong(entry, "plan", "a plan whose steps_per_epoch is a whole number above 0, or None", per_epoch)
        for method in ("epoch_at", "batch"):
            if not callable(getattr(plan, method, None)):
                raise wrong(entry, "plan", f"a plan with a method {method}", plan)
        self.total_steps: int = plan.total_steps
        self.steps_per_epoch = cast("int | None", per_epoch)

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""
        with failing(self._entry, "epoch_at of its plan"):
            came: Any = self._plan.epoch_at(step)
        if not isinstance(came, int | float) or not math.isfinite(came):
            raise wrong(self._entry, "epoch_at of its plan", "a finite number", came)
        return float(came)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step."""
        from swift.data.batch import Batch

        with blaming(self._entry, "batch of its plan"):
            came: Any = self._plan.batch(step, data_rank, data_size)
        if not isinstance(came, Batch):
            raise wrong(self._entry, "batch of its plan", "a swift.data.batch.Batch", came)
        if not came.rows and came.spare_row is None:
            raise wrong(self._entry, "batch of its plan", "a batch with rows, or a spare row", said="an empty batch")
        return came

    def state(self) -> Mapping[str, Any]:
        """Return what the plan keeps in a checkpoint; nothing where it knows no more than the number of the step."""
        own = getattr(self._plan, "state", None)
        if own is None:
            return {}
        with failing(self._entry, "state of its plan"):
            came = own()
        try:
            # As a checkpoint gives it back: JSON has no tuples, and its keys are texts.
            kept = json.loads(json.dumps(came, allow_nan=False))
        except (TypeError, ValueError):
            kept = None
        if not isinstance(kept, dict):
            raise wrong(self._entry, "state of its plan", "a mapping of JSON values", came)
        return kept

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the plan take up where `state` was asked for."""
        own = getattr(self._plan, "restore", None)
        if own is None:
            raise wrong(self._entry, "state of its plan", "no state, since it has no method restore", state)
        with failing(self._entry, "restore of its plan"):
            own(state)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
