"""The typed face of a run's plugins: what core calls instead of pluggy's untyped hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import pluggy

from swift.contracts import Capabilities
from swift.errors import PluginError
from swift.hookspecs import BackendHooks, ExporterHooks, ObserverHooks
from swift.plugins import return_values
from swift.plugins.blame import explained
from swift.plugins.guard import Participation, guarded
from swift.plugins.load import LoadedPlugin
from swift.processes.updates import step_ended

if TYPE_CHECKING:
    from swift.contracts import Run, StepResult
    from swift.plugins.entry import PluginEntry
    from swift.processes.comms import Comms

_SPECS = {"backend": BackendHooks, "exporter": ExporterHooks, "observer": ObserverHooks}


def open_hooks(
    backend: LoadedPlugin | None = None,
    exporter: LoadedPlugin | None = None,
    observers: Sequence[LoadedPlugin] = (),
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
        participation = Participation(plugin) if plugin.entry.kind == "observer" else None
        if participation is not None:
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

    @property
    def versions(self) -> Mapping[str, str]:
        """Plugin → 'distribution version', for `Run.plugins`."""
        return {
            f"{plugin.entry.kind}:{plugin.entry.name}": f"{plugin.entry.distribution} {plugin.entry.version}"
            for plugin in self.plugins
        }

    @property
    def capabilities(self) -> Capabilities:
        """The backend's; nothing where there is none."""
        return next((plugin.capabilities for plugin in self.plugins if plugin.capabilities is not None), Capabilities())

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

    def _tell(self, run: Run | None) -> None:
        """Say aloud on the main process which observer has just failed there."""
        for each in self._observing:
            if run is not None and each.ended and not each.known_to_all and run.world.rank == 0:
                report = each.report(run.folder, run.world.rank)
                if report is not None:
                    run.say(report)

    def _owner(self, kind: str) -> PluginEntry:
        """Return the plugin that implements the hooks of a kind."""
        return next(plugin.entry for plugin in self.plugins if plugin.entry.kind == kind)

    def _call(self, kind: str, hook: str, given: Mapping[str, Any], *, required: bool) -> Any:
        """Call a hook with arguments by name, and check what it returns."""
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
            self._tell(given.get("run"))
        if came is None and required:
            registered = ", ".join(str(plugin.entry) for plugin in self.plugins)
            raise PluginError(
                f"{hook} answered nothing. Registered: {registered}.",
                hint="Its implementation, and every wrapper around it, must return the result.",
            )
        check, request = _CHECKS.get(hook), [given["request"]] if kind == "exporter" else []
        return came if check is None else check(self._owner(kind), hook, came, *request)


def _calling(kind: str, spec: Callable[..., Any]) -> Callable[..., Any]:
    hook, signature = spec.__name__, inspect.signature(spec)
    required = not str(signature.return_annotation).endswith("None")

    @wraps(spec, updated=())
    def call(self: Hooks, *arguments: Any, **named: Any) -> Any:
        given = signature.bind(self, *arguments, **named).arguments
        del given["self"]
        return self._call(kind, hook, given, required=required)

    return call


for _kind, _spec in _SPECS.items():
    for _name, _function in vars(_spec).items():
        if _name.startswith("swift_"):
            setattr(Hooks, _name, _calling(_kind, _function))


def _step_result(entry: PluginEntry, hook: str, came: object) -> StepResult:
    step_ended()
    return return_values.step_result(entry, hook, came)


_CHECKS: dict[str, Callable[..., Any]] = {
    "swift_setup": return_values.topology,
    "swift_shard": return_values.train_state,
    "swift_train_step": _step_result,
    "swift_forward": return_values.forward_result,
    "swift_iter_weights": return_values.weights,
    "swift_export": return_values.exported_folder,
    "swift_quantize": return_values.quantized,
}
"""Hook → the check of what it returned. Those of exporters compare it with the request."""
