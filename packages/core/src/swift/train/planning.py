"""Which samples each step takes: the plan of the objective, with what it may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swift.contracts import PlanContext, ResumablePlan
from swift.data.plans import BatchLayout, default_plan, rows_in_memory
from swift.errors import CheckpointError

if TYPE_CHECKING:
    from swift.contracts import ForwardResult, InferenceEngine, Objective, Plan, Run, TrainState
    from swift.data.batch import Batch, Row
    from swift.data.pipeline import PreparedData
    from swift.data.store import SampleSet
    from swift.plugins.hooks import Hooks
    from swift.processes.comms import Comms


class ModelInTraining:
    """The model, for plans. A plan is made before there is one; batches are asked for later."""

    def __init__(self, run: Run, hooks: Hooks) -> None:
        self.run = run
        self._hooks = hooks
        self.state: TrainState | None = None
        """Set once the model is distributed."""

    def forward(self, batch: Batch, objective: Objective) -> ForwardResult:
        """Evaluate an objective with the weights as they are now; called on every process."""
        if self.state is None:
            raise _too_early("forward")
        return self._hooks.forward(self.run, self.state, batch, objective)

    def send_weights(self, engine: InferenceEngine | None) -> None:
        """Make an inference engine go on with the weights as they are now; called on every process."""
        if self.run.send_weights is None:
            raise _too_early("send_weights")
        self.run.send_weights(engine)


def make_plan(
    objective: Objective,
    data: PreparedData,
    samples: SampleSet | None,
    tokenizer: Any,
    model: ModelInTraining,
    comms: Comms,
) -> Plan:
    """Return the plan that the objective brings, or that of its data: epoch after epoch, or the stream."""
    run = model.run
    layout = BatchLayout.from_config(run.config)
    in_memory = rows_in_memory(layout, objective)

    def default() -> Plan:
        known = data.stream if samples is None else samples
        if known is None:
            raise ValueError("there is no training data to plan for")
        return default_plan(objective, known, layout)

    def batch(step: int, rows: Sequence[Row], data_rank: int, data_size: int) -> Batch:
        return in_memory.batch(step, rows, [sample for row in rows for sample in row], data_rank, data_size)

    own = getattr(objective, "plan", None)
    if own is None:
        return default()
    context = PlanContext(
        config=run.config,
        folder=run.folder,
        topology=run.topology,
        layout=layout,
        objective=objective,
        tokenizer=tokenizer,
        data=data,
        samples=samples,
        comms=comms,
        say=run.say,
        default=default,
        batch=batch,
        forward=model.forward,
        send_weights=model.send_weights,
    )
    plan: Plan = own(context)
    return plan


def plan_state(plan: Plan) -> dict[str, Any]:
    """Return what a plan keeps in a checkpoint, under the key that `restore_plan` reads; mostly nothing."""
    state = dict(plan.state()) if isinstance(plan, ResumablePlan) else {}
    return {"plan": state} if state else {}


def restore_plan(plan: Plan, progress: Mapping[str, Any]) -> None:
    """Let a plan resume from what it kept in a checkpoint."""
    state = progress.get("plan")
    if not state:
        return
    if not isinstance(plan, ResumablePlan):
        raise CheckpointError(
            "The checkpoint holds the state of an objective's own plan, and this run's plan cannot resume from it.",
            hint="Resume with the objective, and the version of its plugin, that wrote the checkpoint.",
        )
    plan.restore(state)


def _too_early(what: str) -> RuntimeError:
    return RuntimeError(f"{what} of the plan's context works from the first batch on: there is no model yet")
