"""The typed face of a run's plugins: what core calls instead of pluggy's untyped hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from swift.contracts import Capabilities
from swift.errors import PluginError
from swift.hookspecs import BackendHooks, ExporterHooks, ObserverHooks
from swift.plugins import answers
from swift.plugins.blame import explained
from swift.plugins.guard import Participation, guarded
from swift.plugins.load import LoadedPlugin
from swift.processes.updates import step_ended

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        ExportRequest,
        ForwardResult,
        ModelSource,
        Objective,
        Quantized,
        QuantizeRequest,
        Run,
        RunSummary,
        StepRecord,
        StepResult,
        Topology,
        TrainState,
        WeightStream,
    )
    from swift.data.batch import Batch
    from swift.plugins.entry import PluginEntry
    from swift.processes.comms import Comms


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
    for spec in (BackendHooks, ExporterHooks, ObserverHooks):
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


class Hooks:
    """One method per hook, in the order in which a run calls them. See `swift.hookspecs` for what each must do."""

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

    def check_plan(self, run: Run) -> None:
        """Let the backend refuse what its capabilities alone cannot tell."""
        self._relay.swift_check_plan(run=run)
        self._tell(run)

    def check_model(self, run: Run, model_config: Any) -> None:
        """Let the backend refuse a model whose sizes do not fit the plan."""
        self._relay.swift_check_model(run=run, model_config=model_config)
        self._tell(run)

    def setup(self, run: Run) -> Topology:
        """Join the process group and build the mesh."""
        came = self._ask("swift_setup", run=run)
        self._tell(run)
        return answers.topology(self._owner("backend"), "swift_setup", came)

    def wrap_model(self, run: Run, source: ModelSource) -> Any:
        """Build the model with its tuner; the result is for `shard` alone."""
        came = self._ask("swift_wrap_model", run=run, source=source)
        self._tell(run)
        return came

    def shard(self, run: Run, model: Any) -> TrainState:
        """Distribute the model and create its optimizer."""
        came = self._ask("swift_shard", run=run, model=model)
        self._tell(run)
        state: TrainState = answers.train_state(self._owner("backend"), "swift_shard", came)
        return state

    def train_step(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> StepResult:
        """Return one optimizer step over one global batch."""
        came = self._ask("swift_train_step", run=run, state=state, batch=batch, objective=objective)
        step_ended()
        self._tell(run)
        return answers.step_result(self._owner("backend"), "swift_train_step", came)

    def forward(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> ForwardResult:
        """Compute the loss without gradient."""
        came = self._ask("swift_forward", run=run, state=state, batch=batch, objective=objective)
        self._tell(run)
        return answers.forward_result(self._owner("backend"), "swift_forward", came)

    def save_checkpoint(self, run: Run, state: TrainState, writer: CheckpointWriter) -> None:
        """Hand everything trained to `writer`, by canonical names."""
        self._relay.swift_save_checkpoint(run=run, state=state, writer=writer)
        self._tell(run)

    def load_checkpoint(self, run: Run, state: TrainState, reader: CheckpointReader) -> None:
        """Fill model and optimizer from `reader`."""
        self._relay.swift_load_checkpoint(run=run, state=state, reader=reader)
        self._tell(run)

    def iter_weights(self, run: Run, state: TrainState) -> WeightStream:
        """Stream whole tensors by their Hugging Face names; every process reads it to its end."""
        came = self._ask("swift_iter_weights", run=run, state=state)
        return answers.weights(self._owner("backend"), "swift_iter_weights", came)

    def teardown(self, run: Run) -> None:
        """Leave nothing behind."""
        try:
            self._relay.swift_teardown(run=run)
        finally:
            self._tell(run)

    def export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        """Let the run's exporter write the weights; returns the folder."""
        came = self._ask_exporter("swift_export", run=run, weights=weights, request=request)
        return answers.exported_folder(self._owner("exporter"), "swift_export", came, request.destination)

    def quantize(self, request: QuantizeRequest) -> Quantized:
        """Let the exporter write a model on disk in fewer bits."""
        came = self._ask_exporter("swift_quantize", request=request)
        return answers.quantized(self._owner("exporter"), "swift_quantize", came, len(request.prompts))

    def run_start(self, run: Run) -> None:
        """Tell observers that the first step is about to be made."""
        self._relay.swift_run_start(run=run)
        self._tell(run)

    def step_end(self, run: Run, record: StepRecord) -> None:
        """Tell observers of a step."""
        self._relay.swift_step_end(run=run, record=record)
        self._tell(run)

    def checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        """Tell observers of a checkpoint."""
        self._relay.swift_checkpoint_saved(run=run, step=step, folder=folder)
        self._tell(run)

    def run_end(self, run: Run, summary: RunSummary) -> None:
        """Tell observers that the run ended."""
        self._relay.swift_run_end(run=run, summary=summary)
        self._tell(run)

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

    def _tell(self, run: Run) -> None:
        """Say aloud on the main process which observer has just failed there."""
        for each in self._observing:
            if each.ended and not each.known_to_all and run.world.rank == 0:
                report = each.report(run.folder, run.world.rank)
                if report is not None:
                    run.say(report)

    def _owner(self, kind: str) -> PluginEntry:
        """Return the plugin that implements the hooks of a kind."""
        return next(plugin.entry for plugin in self.plugins if plugin.entry.kind == kind)

    def _ask_exporter(self, hook: str, **arguments: Any) -> Any:
        """Errors of an exporter are its own, but for those of the disk that it writes to."""
        try:
            return self._ask(hook, **arguments)
        except Exception as error:
            failure = explained(error)
            of_the_disk = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            if of_the_disk or failure is None or failure is error:
                raise
            raise failure from error

    def _ask(self, hook: str, **arguments: Any) -> Any:
        """Call a hook whose result is required: a plugin that forgot `return` is named."""
        answer = getattr(self._relay, hook)(**arguments)
        if answer is None:
            registered = ", ".join(str(plugin.entry) for plugin in self.plugins)
            raise PluginError(
                f"{hook} answered nothing. Registered: {registered}.",
                hint="Its implementation, and every wrapper around it, must return the result.",
            )
        return answer
