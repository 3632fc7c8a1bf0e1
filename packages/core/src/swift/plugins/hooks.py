"""The typed face of a backend, an exporter and observers: what core calls instead of pluggy's untyped hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import pluggy

from swift.contracts import Capabilities, ProcessLayout
from swift.errors import PluginError
from swift.hookspecs import KIND_OF_HOOK, SPECS, BackendHooks, ExporterHooks, ObserverHooks
from swift.plugins.blame import explained, failing
from swift.plugins.check import implementations
from swift.plugins.guard import Participation, guarded
from swift.plugins.load import LoadedPlugin, waiting_for
from swift.plugins.return_values import Checked, is_finite, returned, returns, streamed, wrong
from swift.processes.updates import step_ended

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.contracts import Quantized, QuantizeRequest, Run, ThirdPartyCheckpoint, Topology, TrainedState
    from swift.plugins.entry import PluginEntry
    from swift.processes.comms import Comms

_SPECS = {"backend": BackendHooks, "exporter": ExporterHooks, "observer": ObserverHooks}


def open_hooks(
    backend: LoadedPlugin | None = None, exporter: LoadedPlugin | None = None, observers: Sequence[LoadedPlugin] = ()
) -> Hooks:
    """Register a run's plugins, and nothing else, in a manager of its own.

    A training run has a backend; `swift export` of a checkpoint has an exporter alone.
    """
    plugins = [plugin for plugin in (backend, exporter, *observers) if plugin is not None]
    manager = pluggy.PluginManager("swift")
    for spec in _SPECS.values():
        manager.add_hookspecs(spec)
    observing = []
    for plugin in plugins:
        name = f"{plugin.entry.kind}:{plugin.entry.name}"
        if manager.has_plugin(name):
            raise PluginError(f"{plugin.entry} was named twice in one run.", hint="Name each observer once.")
        participation = Participation(plugin)
        if plugin.entry.kind == "observer":
            observing.append(participation)
        manager.register(guarded(plugin, participation), name=name)
    return Hooks(manager, plugins, observing)


class Hooks(BackendHooks, ExporterHooks, ObserverHooks):
    """The hooks of `swift.hookspecs` as core calls them: each method calls those of the run's plugins.

    Signatures are declared there alone. A hook that may not return None must return something.
    """

    def __init__(
        self, manager: pluggy.PluginManager, plugins: Sequence[LoadedPlugin], observing: Sequence[Participation] = ()
    ) -> None:
        self._relay = manager.hook
        self.plugins = tuple(plugins)
        self._observing = tuple(observing)
        declared = (plugin.capabilities for plugin in self.plugins if plugin.entry.kind == "backend")
        self.capabilities = next(declared, Capabilities())

    @property
    def versions(self) -> Mapping[str, str]:
        """Plugin → 'distribution version', for `Run.plugins`."""
        return {
            f"{plugin.entry.kind}:{plugin.entry.name}": f"{plugin.entry.distribution} {plugin.entry.version}"
            for plugin in self.plugins
        }

    def failed(self) -> list[bool]:
        """Return which observers failed on this process, in the order of registration."""
        return [each.ended for each in self._observing]

    def switch_off(self, failed: Sequence[bool], run: Run, comms: Comms) -> None:
        """Leave out on every process the observers that `failed` on any of them. Called on every process."""
        new = [each for each, off in zip(self._observing, failed, strict=True) if off and not each.known_to_all]
        if not new:
            return
        reports = comms.gather([each.report(run.folder, run.world.rank) for each in new])
        for each, outcome in zip(new, zip(*reports, strict=True), strict=True):
            each.ended = each.known_to_all = True
            for rank, report in enumerate(outcome):
                if report is not None:
                    run.say(f"{report} (process {rank})")

    def _report_failures(self, run: Run | None) -> None:
        """Print on the main process which observer has just failed there."""
        for each in self._observing:
            if run is not None and each.ended and not each.known_to_all and run.world.rank == 0:
                report = each.report(run.folder, run.world.rank)
                if report is not None:
                    run.say(report)

    def _call(self, hook: str, given: Mapping[str, Any]) -> Any:
        """Call a hook with arguments by name, and check what it returns."""
        kind = KIND_OF_HOOK[hook]
        try:
            came = getattr(self._relay, hook)(**given)
        except Exception as error:
            # Errors of an exporter are its own, but for those of the disk that it writes to.
            of_the_disk = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            failure = None if kind != "exporter" or of_the_disk else explained(error)
            if failure is None or failure is error:
                raise
            raise failure from error
        finally:
            self._report_failures(given.get("run"))
        if kind == "observer":
            return None
        if came is None and not str(SPECS[hook].__annotations__["return"]).endswith("None"):
            registered = ", ".join(str(plugin.entry) for plugin in self.plugins)
            raise PluginError(
                f"{hook} returned nothing. Registered: {registered}.",
                hint="Its implementation, and every wrapper around it, must return the result.",
            )
        entry = next(plugin.entry for plugin in self.plugins if plugin.entry.kind == kind)
        came = returned(entry, hook, came, returns(_SPECS[kind], hook))
        further = _FURTHER.get(hook)
        return came if further is None or came is None else further(entry, hook, came, given)


def _calling(spec: Callable[..., Any]) -> Callable[..., Any]:
    hook, signature = spec.__name__, inspect.signature(spec)

    @wraps(spec, updated=())
    def call(self: Hooks, *arguments: Any, **named: Any) -> Any:
        given = signature.bind(self, *arguments, **named).arguments
        del given["self"]
        return self._call(hook, given)

    return call


for _hook, _kind in KIND_OF_HOOK.items():
    if _kind in _SPECS:
        setattr(Hooks, _hook, _calling(SPECS[_hook]))


def _ranked(entry: PluginEntry, hook: str, came: Topology, given: Mapping[str, Any]) -> Topology:
    if not 0 <= came.data_rank < came.data_size:
        position = f"data_rank {came.data_rank} of data_size {came.data_size}"
        raise wrong(entry, hook, "a Topology with 0 <= data_rank < data_size", shown=position)
    return came


def _ended(entry: PluginEntry, hook: str, came: Any, given: Mapping[str, Any]) -> Any:
    step_ended()
    return came


def _measured(entry: PluginEntry, hook: str, came: Quantized, given: Mapping[str, Any]) -> Quantized:
    request: QuantizeRequest = given["request"]
    if len(came.logps) != len(request.prompts):
        raise wrong(entry, hook, f"log-probabilities of {len(request.prompts)} prompts", shown=f"{len(came.logps)}")
    if not is_finite(came.tolerance):
        raise wrong(entry, hook, "a finite tolerance", came.tolerance)
    return came


_FURTHER: dict[str, Callable[[PluginEntry, str, Any, Mapping[str, Any]], Any]] = {
    "swift_setup": _ranked,
    "swift_train_step": _ended,
    "swift_iter_weights": lambda entry, hook, came, given: streamed(entry, hook, came),
    "swift_quantize": _measured,
}
"""Hook → what is done with what it returned, once that has the declared type."""


def implements(backend: LoadedPlugin, hook: str) -> bool:
    """Return whether a backend has an optional hook."""
    return hook in {found.hook for found in implementations(backend.entry, backend.object)}


def call_alone(backend: LoadedPlugin, hook: str, *arguments: Any) -> Any:
    """Call a hook of a backend outside of runs: whatever it raises is the plugin's error, at once."""
    with waiting_for(backend.entry, f"waiting for {hook} of"), failing(backend.entry, hook):
        return getattr(open_hooks(backend), hook)(*arguments)


def core_settings(backend: LoadedPlugin, options: BaseModel) -> Mapping[str, tuple[Any, str]]:
    """Return the values of core's keys that a backend's options imply: (value, its location)."""
    return call_alone(backend, "swift_core_settings", options) or {}


def layout_of(backend: LoadedPlugin, config: Config, processes: int) -> ProcessLayout:
    """Return how many processes each parallel dimension has; raise `UnsupportedLayout` where the sizes do not fit."""
    return call_alone(backend, "swift_layout", config, processes) or ProcessLayout.of(config.parallel, processes)


def describe_plan(backend: LoadedPlugin, config: Config, processes: int) -> Sequence[str]:
    """Return which process holds what, in lines."""
    return call_alone(backend, "swift_describe_layout", config, processes) or ()


def variants(backend: LoadedPlugin) -> Mapping[str, Sequence[str]]:
    """Return the ways to set a backend up, as flags by name; one without a name and flags where it declares none."""
    return call_alone(backend, "swift_variants") or {"": ()}


def presets(backend: LoadedPlugin) -> Mapping[str, str]:
    """Return files to begin from, by name."""
    return call_alone(backend, "swift_presets") or {}


def read_third_party(backend: LoadedPlugin, folder: Path) -> ThirdPartyCheckpoint | None:
    """Return a checkpoint that the backend's engine saved; None where the folder holds none."""
    from swift.contracts import ThirdPartyCheckpoint

    came = call_alone(backend, "swift_read_third_party", folder)
    return came and Checked(backend.entry, came, ThirdPartyCheckpoint, of=" of the checkpoint that it read")


def write_third_party(backend: LoadedPlugin, state: TrainedState, folder: Path) -> None:
    """Write a checkpoint for the backend's engine."""
    call_alone(backend, "swift_write_third_party", state, folder)
