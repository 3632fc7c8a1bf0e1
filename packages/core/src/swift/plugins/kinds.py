"""The kinds of plugins, a row each. Discovery, checks, loading, `swift plugins` and the generated reference read it.

To add a kind is to add a row, and its contract to `swift.contracts` or `swift.hookspecs`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swift import contracts, hookspecs
from swift.plugins import check
from swift.plugins.entry import PluginEntry
from swift.plugins.return_values import methods_of


@dataclass(frozen=True)
class Kind:
    """One kind of plugin, as core handles it."""

    name: str
    """As messages and `swift plugins` call it."""
    purpose: str
    """For the reference: what such a plugin does."""
    contract: type
    """The hooks that it implements, of `swift.hookspecs`; or the class or protocol of `swift.contracts` that it is."""
    required: tuple[str, ...] = ()
    """The hooks that every plugin of this kind has."""
    optional: tuple[str, ...] = ()
    """Methods of the contract that may be left out."""
    made: bool = True
    """Whether a class is called without arguments at selection. An objective is made later, with its options."""
    states_api: bool = False
    """Whether it must have `HOOK_API`, the version of the hooks that it was written for. Others may."""
    options: str = "options_model"
    """The member that holds the pydantic model of its options."""
    section: str | None = None
    """The section of the configuration that is open to these options, where there is one."""
    selected_by: str = "name"
    """The key of that section that names the plugin."""
    adapt: Callable[[PluginEntry, Any], Any] | None = None
    """Returns what is registered for an object of another type that is accepted."""
    further: Callable[[PluginEntry, Any], None] | None = None
    """Checks of this kind alone."""
    functions: bool = False
    """Whether a plain function serves as well."""

    @property
    def group(self) -> str:
        """Return the group of entry points: the name in the plural."""
        return f"swift.{self.name.removesuffix('y')}ies" if self.name.endswith("y") else f"swift.{self.name}s"

    @property
    def has_hooks(self) -> bool:
        """Return whether plugins of this kind implement hooks."""
        return self.contract.__module__ == hookspecs.__name__

    @property
    def members(self) -> tuple[str, ...]:
        """Return the hooks, or the members, that every plugin of this kind has."""
        if self.has_hooks:
            return self.required
        attributes = [name for name in self.contract.__annotations__ if not hasattr(self.contract, name)]
        methods = sorted(getattr(self.contract, "__abstractmethods__", ())) or methods_of(self.contract)
        return (*attributes, *(name for name in methods if name not in self.optional))

    def check(self, entry: PluginEntry, plugin: Any) -> None:
        """Raise `PluginError` where a plugin is not what its kind requires."""
        if self.functions and callable(plugin) and not isinstance(plugin, type):
            return
        if self.has_hooks:
            check.check_hooks(entry, plugin, self.required)
        if self.further is not None:
            self.further(entry, plugin)
        if self.contract is not contracts.Objective:  # whose attributes are checked when it is made
            check.check_contract(entry, plugin, self.contract, self.optional)
        if (model := self.options_of(plugin)) is not None or self.section is not None:
            check.check_options(entry, model, self.options, self.section)

    def options_of(self, plugin: Any) -> Any:
        """Return the model of a plugin's options; None where it has none."""
        return getattr(plugin, self.options, None)


def as_command(entry: PluginEntry, plugin: Any) -> Any:
    """Return the command of a plugin: the plugin itself, or an object that runs the Typer app that it names."""
    typer = sys.modules.get("typer")  # a module with a Typer app has imported it
    return TyperCommand(entry, plugin) if typer is not None and isinstance(plugin, typer.Typer) else plugin


class TyperCommand:
    """Runs a Typer app, which reads its words and shows its help by itself. Implements `swift.contracts.Command`."""

    options_model = None

    def __init__(self, entry: PluginEntry, app: Any) -> None:
        from typer.main import get_command

        self._name = entry.name
        self._command = get_command(app)
        self.summary = (self._command.help or f"from {entry.distribution} {entry.version}").strip().splitlines()[0]

    def run(self, argv: list[str]) -> int:
        """Run the app with the words after the command's name and return its exit code."""
        try:
            self._command.main(argv, prog_name=f"swift {self._name}")
        except SystemExit as ended:  # how an app ends, well or not
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0


KINDS: dict[str, Kind] = {
    kind.group: kind
    for kind in (
        Kind(
            "backend",
            "trains a model (`--backend NAME`)",
            hookspecs.BackendHooks,
            hookspecs.BACKEND_REQUIRED,
            states_api=True,
            options="config_model",
            section="backend",
        ),
        Kind(
            "exporter",
            "writes weights in a format (`swift export --to NAME`)",
            hookspecs.ExporterHooks,
            hookspecs.EXPORTER_REQUIRED,
            further=check.check_exporter,
        ),
        Kind(
            "engine",
            "completes prompts (`swift infer --engine NAME`) and may serve (`swift serve`)",
            hookspecs.EngineHooks,
            hookspecs.ENGINE_REQUIRED,
        ),
        Kind(
            "objective",
            "defines the loss (`--objective NAME`)",
            contracts.Objective,
            made=False,
            section="objective",
            further=check.check_objective_class,
        ),
        Kind("observer", "is notified of events in a run (`--report_to NAME`)", hookspecs.ObserverHooks),
        Kind("optimizer", "updates weights (`--optimizer NAME`)", contracts.Optimizer, section="optim"),
        Kind(
            "tuner",
            "chooses what is trained (`--tuner.kind NAME`)",
            contracts.Tuner,
            optional=("initial", "lr_scale"),
            section="tuner",
            selected_by="kind",
        ),
        Kind(
            "reward",
            "scores completions (`--reward_funcs NAME`)",
            contracts.Reward,
            made=False,
            functions=True,
            further=check.check_class,
        ),
        Kind(
            "environment",
            "talks with a model that learns, turn by turn (`--environment NAME`)",
            contracts.Environment,
            optional=("close",),
            made=False,
            further=check.check_class,
        ),
        Kind("planner", "chooses backend and layout (`--backend auto`)", contracts.Planner),
        Kind("command", "adds a command (`swift NAME`)", contracts.Command, adapt=as_command),
        Kind(
            "vocabulary",
            "knows third-party files (`swift config import FILE`), flags and names",
            contracts.Vocabulary,
            optional=("program_of", "read", "translate", "flags", "advice"),
            further=check.check_vocabulary,
        ),
    )
}
"""Entry-point group → the kind of plugin that is registered in it."""


def group_of_section(section: str) -> str | None:
    """Return the entry-point group that a section of the configuration selects from."""
    return next((group for group, kind in KINDS.items() if kind.section == section), None)
