"""`--backend auto`: the first choice of the planner, for the machine that a run begins on."""

from __future__ import annotations

from collections.abc import Sequence

from swift.contracts import ChosenPlan
from swift.errors import UnsupportedPlan, UsageError
from swift_plan import screen
from swift_plan.command import Planned
from swift_plan.machine import this_machine
from swift_plan.options import PlanOptions

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
        best = planned.found.fitting[0]
        words_of_plan = screen.flags(best, words, planned.workload)
        reason = [f"Chosen: {' '.join(words_of_plan)} ({screen.label(best)}, {screen.gib(best.peak)} of memory each)"]
        behind = screen.next_best(planned.found)
        reason += [behind] if behind is not None else []
        return ChosenPlan(tuple(words_of_plan), "\n".join(reason))


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
