"""Objectives of plugins, and the schedules that they bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swift.config.sections import Section
from swift.contracts import BatchSchedule, RoundWork
from swift.data.batch import Batch
from swift.errors import PluginError
from swift.parsing import config_from_mapping
from swift.plugins.entry import PluginEntry
from swift.plugins.load import LoadedPlugin
from swift.plugins.objective import make_objective
from swift_objectives.kto import Kto, KtoOptions

ENTRY = PluginEntry("swift.objectives", "made_up", "made-up", "1.0", "made_up:MadeUp", None)


def made(objective: type, options: Section | None = None) -> Any:
    return make_objective(LoadedPlugin(ENTRY, objective), options or KtoOptions())


def test_with_baseline_fills_in_the_metrics() -> None:
    assert made(Kto).with_baseline({"kl": 0.5}).kl == 0.5


FORGETFUL = """
from swift.contracts import LossSums
from swift.objectives.base import BaseObjective


class Forgetful(BaseObjective):
    name = "forgetful"

    def loss(self, view, batch):
        return LossSums(-(view.token_logps * batch.weights).sum())
"""


def test_objective_without_row_weight_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss per token would be divided by something else, and off by that factor on every backend alike."""
    info = tmp_path / "forgetful-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swift.objectives]\nforgetful = forgetful_objective:Forgetful\n")
    (tmp_path / "forgetful_objective.py").write_text(FORGETFUL)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match=r"'forgetful' .*lacks row_weight") as error:
        config_from_mapping({"objective": "forgetful"})
    assert "sum(sample.loss_weight for sample in samples)" in (error.value.hint or "")


class GoodPlan(BatchSchedule):
    total_steps = 3
    steps_per_epoch = None

    def epoch_at(self, step: int) -> float:
        return 0.0

    def batch(self, step: int, data_rank: int, data_size: int) -> Any:
        return Batch(step, [(None,)], 0, 1, 1.0, 1, 1, False, 0)  # type: ignore[list-item]  # the row is not read

    def state(self) -> Any:
        return {"round": 2, "prompts": [1, 2]}

    def restore(self, state: Any) -> None:
        self.restored = state


def planned(schedule: Any) -> Any:
    class MadeUp(Kto):
        def batch_schedule(self, context: Any) -> Any:
            return schedule

    return made(MadeUp).batch_schedule(None)


def test_valid_batch_schedule_is_used_unchanged() -> None:
    own = GoodPlan()
    schedule = planned(own)
    assert schedule.total_steps == 3
    assert schedule.batch(2, 0, 1).step == 2
    schedule.restore(schedule.state())
    assert own.restored == {"round": 2, "prompts": [1, 2]}


def used(own: Any) -> None:
    schedule = planned(own)
    schedule.epoch_at(1)
    schedule.batch(0, 0, 1)
    schedule.state()
    schedule.metrics(0)


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("total_steps", 0, "a number of steps above 0"),
        ("total_steps", 2.5, "whose total_steps is the float 2.5 from batch_schedule. Expected: int"),
        ("steps_per_epoch", "1", "Expected: int | None"),
        ("epoch_at", lambda step: "soon", "returned the str 'soon' from epoch_at of its schedule. Expected: float"),
        ("batch", lambda *_: [], "Expected: Batch"),
        ("batch", lambda *_: Batch(0, [], 0, 1, 1.0, 1, 1, False, 0), "a batch with rows, or a spare row"),
        ("state", lambda: {"rng": object()}, "a mapping of JSON values"),
        ("state", lambda: [1], "Expected: Mapping[str, Any]"),
        ("evaluation_metrics", ("reward",), "a schedule with one of evaluate and evaluation_metrics"),
        ("metrics", lambda step: 0.5, "Expected: Mapping[str, float]"),
        ("metrics", lambda step: {"reward": "high"}, "whose ['reward'] is the str 'high'"),
    ],
)
def test_batch_schedule_breaking_contract_names_plugin(member: str, value: Any, message: str) -> None:
    own = GoodPlan()
    setattr(own, member, value)
    with pytest.raises(PluginError, match="made_up") as error:
        used(own)
    assert message in error.value.message


@pytest.mark.parametrize(
    ("names", "came", "message"),
    [
        ("reward", {"reward": 1.0}, "Expected: Sequence[str] | None"),
        (("reward", "length"), {"reward": 1.0}, "no number for 'length'"),
        (("reward",), None, "Expected: Mapping[str, float]"),
    ],
)
def test_batch_schedule_not_evaluating_its_metric_is_refused(names: Any, came: Any, message: str) -> None:
    evaluate = {"evaluation_metrics": names, "evaluate": lambda self, step: came}
    own = type("Evaluating", (GoodPlan,), evaluate)()
    with pytest.raises(PluginError, match="made_up") as error:
        planned(own).evaluate(0)
    assert message in error.value.message


def test_batch_schedule_errors_name_plugin() -> None:
    class MadeUp(Kto):
        def batch_schedule(self, context: Any) -> Any:
            raise KeyError("no prompts")

    with pytest.raises(PluginError, match=r"made_up.* failed in batch_schedule: KeyError: 'no prompts'"):
        made(MadeUp).batch_schedule(None)


def test_rounds_hook_must_return_contract_object() -> None:
    class Counts(Kto):
        def rounds(self, config: Any) -> Any:
            return {"drawn": 1.0}

    assert made(Kto).rounds(None) == RoundWork()
    with pytest.raises(PluginError, match=r"made_up.*rounds.*RoundWork"):
        made(Counts).rounds(None)
