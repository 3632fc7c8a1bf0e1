"""The typed face of a run's plugins: what core calls instead of pluggy's untyped hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from swift.contracts import Capabilities
from swift.errors import PluginError
from swift.hookspecs import BackendHooks, EngineHooks, ExporterHooks, ObserverHooks
from swift.plugins.load import LoadedPlugin

if TYPE_CHECKING:
    from pathlib import Path

    from swift.contracts import (
        CheckpointReader,
        CheckpointWriter,
        EngineRequest,
        ExportRequest,
        ForwardResult,
        InferenceEngine,
        ModelSource,
        Objective,
        Quantized,
        QuantizeRequest,
        Run,
        RunSummary,
        ServeRequest,
        StepRecord,
        StepResult,
        Topology,
        TrainState,
        WeightStream,
    )
    from swift.data.batch import Batch


def open_engine(
    backend: LoadedPlugin | None = None,
    exporter: LoadedPlugin | None = None,
    observers: Sequence[LoadedPlugin] = (),
) -> Engine:
    """Register a run's plugins, and nothing else, in a manager of its own.

    A training run has a backend; `swift export` of a checkpoint has an exporter alone.
    """
    plugins = [plugin for plugin in (backend, exporter, *observers) if plugin is not None]
    manager = pluggy.PluginManager("swift")
    for spec in (BackendHooks, ExporterHooks, ObserverHooks):
        manager.add_hookspecs(spec)
    for plugin in plugins:
        try:
            manager.register(plugin.object, name=f"{plugin.entry.kind}:{plugin.entry.name}")
        except ValueError as cause:
            raise PluginError(f"{plugin.entry} was named twice in one run.", hint="Name each observer once.") from cause
    return Engine(manager, plugins)


def open_inference(engine: LoadedPlugin, request: EngineRequest) -> InferenceEngine:
    """A model loaded by an inference engine."""
    opened: InferenceEngine = _ask_engine(engine, "swift_open_engine", request)
    return opened


def serve(engine: LoadedPlugin, request: ServeRequest) -> int:
    """Serve a model with an inference engine; answers the exit code."""
    code: int = _ask_engine(engine, "swift_serve", request)
    return code


def _ask_engine(engine: LoadedPlugin, hook: str, request: Any) -> Any:
    manager = pluggy.PluginManager("swift")
    manager.add_hookspecs(EngineHooks)
    manager.register(engine.object, name=str(engine.entry))
    answer = getattr(manager.hook, hook)(request=request)
    if answer is None:
        raise PluginError(f"{engine.entry} does not do that: {hook} answered nothing.", hint="See: swift plugins")
    return answer


class Engine:
    """One method per hook, in the order in which a run calls them. See `swift.hookspecs` for what each must do."""

    def __init__(self, manager: pluggy.PluginManager, plugins: Sequence[LoadedPlugin]) -> None:
        self._hooks = manager.hook
        self.plugins = tuple(plugins)

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
        self._hooks.swift_check_plan(run=run)

    def setup(self, run: Run) -> Topology:
        """Join the process group and build the mesh."""
        topology: Topology = self._ask("swift_setup", run=run)
        return topology

    def wrap_model(self, run: Run, source: ModelSource) -> Any:
        """Build the model with its tuner; the result is for `shard` alone."""
        return self._ask("swift_wrap_model", run=run, source=source)

    def shard(self, run: Run, model: Any) -> TrainState:
        """Distribute the model and create its optimizer."""
        state: TrainState = self._ask("swift_shard", run=run, model=model)
        return state

    def train_step(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> StepResult:
        """One optimizer step over one global batch."""
        result: StepResult = self._ask("swift_train_step", run=run, state=state, batch=batch, objective=objective)
        return result

    def forward(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> ForwardResult:
        """The same without gradient."""
        result: ForwardResult = self._ask("swift_forward", run=run, state=state, batch=batch, objective=objective)
        return result

    def save_checkpoint(self, run: Run, state: TrainState, writer: CheckpointWriter) -> None:
        """Hand everything trained to `writer`, by canonical names."""
        self._hooks.swift_save_checkpoint(run=run, state=state, writer=writer)

    def load_checkpoint(self, run: Run, state: TrainState, reader: CheckpointReader) -> None:
        """Fill model and optimizer from `reader`."""
        self._hooks.swift_load_checkpoint(run=run, state=state, reader=reader)

    def iter_weights(self, run: Run, state: TrainState) -> WeightStream:
        """Stream whole tensors by their Hugging Face names; every process reads it to its end."""
        stream: WeightStream = self._ask("swift_iter_weights", run=run, state=state)
        return stream

    def teardown(self, run: Run) -> None:
        """Leave nothing behind."""
        self._hooks.swift_teardown(run=run)

    def export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        """Let the run's exporter write the weights; answers the folder."""
        folder: Path = self._ask("swift_export", run=run, weights=weights, request=request)
        return folder

    def quantize(self, request: QuantizeRequest) -> Quantized:
        """Let the exporter write a model on disk in fewer bits."""
        found: Quantized = self._ask("swift_quantize", request=request)
        return found

    def run_start(self, run: Run) -> None:
        """Tell observers that the first step is about to be made."""
        self._hooks.swift_run_start(run=run)

    def step_end(self, run: Run, record: StepRecord) -> None:
        """Tell observers of a step."""
        self._hooks.swift_step_end(run=run, record=record)

    def checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        """Tell observers of a checkpoint."""
        self._hooks.swift_checkpoint_saved(run=run, step=step, folder=folder)

    def run_end(self, run: Run, summary: RunSummary) -> None:
        """Tell observers that the run ended."""
        self._hooks.swift_run_end(run=run, summary=summary)

    def _ask(self, hook: str, **arguments: Any) -> Any:
        """Call a hook whose answer the run cannot do without: a plugin that forgot `return` is told so."""
        answer = getattr(self._hooks, hook)(**arguments)
        if answer is None:
            registered = ", ".join(str(plugin.entry) for plugin in self.plugins)
            raise PluginError(
                f"{hook} answered nothing. Registered: {registered}.",
                hint="Its implementation, and every wrapper around it, must return the result.",
            )
        return answer
