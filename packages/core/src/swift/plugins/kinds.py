"""The kinds of plugins, a row each. Discovery, checks, loading, `swift plugins` and the generated reference read it.

To add a kind is to add a row (and the type that it must have to `swift.contracts` or `swift.hookspecs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift import hookspecs
from swift.plugins import check
from swift.plugins.typer_app import as_command

if TYPE_CHECKING:
    from swift.plugins.entry import PluginEntry

Check = Callable[["PluginEntry", Any], None]


@dataclass(frozen=True)
class Kind:
    """One kind of plugin, as core handles it."""

    name: str
    """As messages and `swift plugins` call it."""
    plural: str
    says: str
    """One sentence for the reference: what such a plugin is for."""
    spec: type | None = None
    """The hooks that it implements; None for a kind that is a class or an object with members."""
    required: tuple[str, ...] = ()
    """The hooks, or the members, that every plugin of this kind has."""
    made: bool = True
    """Whether a class is called without arguments at selection. An objective is made later, with its options."""
    states_api: bool = False
    """Whether it must say which `HOOK_API` it was written for. Others may."""
    options: str = "config_model"
    """The member that holds the pydantic model of its options."""
    section: str | None = None
    """The section of the configuration that is open to these options, where there is one."""
    selected_by: str = "name"
    """The key of that section that names the plugin."""
    adapt: Callable[[PluginEntry, Any], Any] | None = None
    """Returns what is registered for an object that is accepted in its place."""
    further: Check | None = None
    """Checks of this kind alone."""

    def check(self, entry: PluginEntry, plugin: Any) -> None:
        """Raise `PluginError` where a plugin is not what its kind asks for."""
        if self.spec is not None:
            check.check_hooks(entry, plugin, self.spec, self.required)
        else:
            check.check_members(entry, plugin, self.required)
        if self.further is not None:
            self.further(entry, plugin)
        if self.section is not None:
            check.check_options(entry, self.options_of(plugin), self.options, self.section)

    def options_of(self, plugin: Any) -> Any:
        """Return the model of a plugin's options; None where it has none."""
        return getattr(plugin, self.options, None)


KINDS: dict[str, Kind] = {
    "swift.backends": Kind(
        "backend",
        "backends",
        "trains a model (`--backend NAME`)",
        hookspecs.BackendHooks,
        hookspecs.BACKEND_REQUIRED,
        states_api=True,
        options="config_model",
        section="backend",
        further=check.check_capabilities_declared,
    ),
    "swift.exporters": Kind(
        "exporter",
        "exporters",
        "writes weights in a format (`swift export --to NAME`)",
        hookspecs.ExporterHooks,
        hookspecs.EXPORTER_REQUIRED,
        further=check.check_exporter,
    ),
    "swift.engines": Kind(
        "engine",
        "inference engines",
        "answers prompts (`swift infer --engine NAME`) and may serve (`swift serve`)",
        hookspecs.EngineHooks,
        hookspecs.ENGINE_REQUIRED,
        further=check.check_engine,
    ),
    "swift.objectives": Kind(
        "objective",
        "objectives",
        "says what is minimised (`--objective NAME`)",
        required=("options_model", "row_weight", "loss", "with_baseline"),
        made=False,
        options="options_model",
        section="objective",
        further=check.check_objective_class,
    ),
    "swift.observers": Kind(
        "observer",
        "observers",
        "is notified of events in a run (`--report_to NAME`)",
        hookspecs.ObserverHooks,
    ),
    "swift.optimizers": Kind(
        "optimizer",
        "optimizers",
        "updates weights (`--optimizer NAME`)",
        required=("options_model", "reads", "slots", "bytes_per_parameter", "make"),
        options="options_model",
        section="optim",
        further=check.check_optimizer,
    ),
    "swift.tuners": Kind(
        "tuner",
        "tuners",
        "chooses what is trained (`--tuner.kind NAME`)",
        required=("options_model", "adapter", "learning_rate", "needs", "attach", "initial", "lr_scale"),
        options="options_model",
        section="tuner",
        selected_by="kind",
        further=check.check_tuner,
    ),
    "swift.rewards": Kind(
        "reward",
        "rewards",
        "scores answers (`--reward_funcs NAME`)",
        made=False,
        options="options_model",
        further=check.check_reward,
    ),
    "swift.environments": Kind(
        "environment",
        "environments",
        "talks with a model that learns, turn by turn (`--environment NAME`)",
        made=False,
        options="options_model",
        further=check.check_environment,
    ),
    "swift.planners": Kind(
        "planner",
        "planners",
        "chooses backend and layout (`--backend auto`)",
        required=("choose",),
    ),
    "swift.commands": Kind(
        "command",
        "commands",
        "adds a command (`swift NAME`)",
        required=("summary", "run"),
        options="options_model",
        adapt=as_command,
        further=check.check_command,
    ),
}
"""Entry-point group → the kind of plugin that is registered in it."""


def kind_of(group: str) -> Kind:
    """Return the row of an entry-point group."""
    return KINDS[group]
