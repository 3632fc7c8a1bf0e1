"""`--backend auto`: the first choice of the planner, for the machine that a run begins on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swift.contracts import ChosenPlan
from swift.errors import UnsupportedPlan, UsageError
from swift_plan import screen
from swift_plan.command import Planned
from swift_plan.machine import this_machine
from swift_plan.options import PlanOptions

if TYPE_CHECKING:
    from swift_plan.search import Candidate

_ALIKE = 0.05
"""The part by which times that nobody has measured may differ without meaning anything."""
_MODEL = ("--model", "--model_id_or_path", "--model.path")


class Chooser:
    """Implements `swift.contracts.Planner`."""

    def choose(self, words: Sequence[str], verb: str, processes: int, machines: int) -> ChosenPlan:
        """Return the flags of the fastest plan that fits."""
        model, others = _model(words)
        where = this_machine(processes, machines)
        planned = Planned.on(where, PlanOptions(model=model, gpus=str(where), kind=verb), others)
        if not planned.found.fitting:
            nearest = "\n".join(f"  {line}" for line in screen.nearest(planned.found, where))
            raise UnsupportedPlan(
                f"No plan for {model} fits on {where}. Nearest, with what is lacking:\n{nearest}",
                hint="A shorter --max_length, --train_type lora or qlora, or more processes.",
            )
        best = simplest(planned.found.fitting)
        words_of_plan = screen.flags(best, words, planned.workload)
        reason = [f"Chosen: {' '.join(words_of_plan)} ({screen.label(best)}, {screen.gib(best.peak)} of memory each)"]
        fastest = planned.found.fitting[0]
        if best is not fastest:
            reason.append(f"It is the simplest of those about as fast as {screen.label(fastest)}.")
        elif (behind := screen.next_best(planned.found)) is not None:
            reason.append(behind)
        return ChosenPlan(tuple(words_of_plan), "\n".join(reason))


def simplest(fitting: Sequence[Candidate]) -> Candidate:
    """Return the plan that cuts least among those whose times do not tell them apart, of which the first is fastest."""
    near = [plan for plan in fitting if plan.time.total <= (1 + _ALIKE) * fitting[0].time.total]
    return min(near, key=lambda plan: (len(plan.layout.named()), plan.recompute, plan.backend.name != "torch"))


def _model(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the model among the flags of a run, and the other flags."""
    others = list(words)
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in _MODEL:
            model = value or (words[index + 1] if index + 1 < len(words) else "")
            del others[index : index + (1 if value else 2)]
            return model, others
    raise UsageError("A plan needs a model.", hint="Type --model FOLDER")
