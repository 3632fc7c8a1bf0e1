"""The hooks of swift, in the order in which a run calls them.

A plugin implements them with `swift.hookimpl`. A backend implements every required hook exactly once. Any plugin can
wrap any hook (`@hookimpl(wrapper=True)`). An implementation can leave out arguments that it does not need, and must not
give arguments default values.

This module does not import torch.
"""

from __future__ import annotations

import inspect
from functools import cache, wraps
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.contracts import (
        Capabilities,
        CheckpointReader,
        CheckpointWriter,
        EngineLibrary,
        EngineRequest,
        ExportRequest,
        ForwardResult,
        InferenceEngine,
        LayerSizes,
        LocalWeights,
        ModelSource,
        Objective,
        ProcessLayout,
        Quantized,
        QuantizeRequest,
        Reloaded,
        RequestedRun,
        Run,
        RunSummary,
        SchemeFacts,
        ServeRequest,
        StepRecord,
        StepResult,
        ThirdPartyCheckpoint,
        Topology,
        Traffic,
        TrainedState,
        TrainState,
        WeightStream,
    )
    from swift.data.batch import Batch

hookspec = pluggy.HookspecMarker("swift")
hookimpl = pluggy.HookimplMarker("swift")


class BackendHooks:
    """One backend per run implements these.

    The hooks from `swift_wrap_model` to `swift_iter_weights` are called for every model of the run, with its own `Run`
    and state: `run.role` is 'policy', or the name of another role. `swift_setup` and `swift_teardown` are called once.
    The hooks after `swift_teardown` are called outside of runs, by `swift config`, `swift plan` and `swift convert`.

    - `HOOK_API`: Version of the hooks that the backend was written for: `swift.HOOK_API` of that time.
    - `config_model`: The keys of the section `backend` that are the backend's own.
    """

    HOOK_API: tuple[int, int]
    capabilities: Capabilities
    config_model: type[BaseModel]

    @hookspec(firstresult=True)
    def swift_check_layout(self, run: RequestedRun) -> bool | None:
        """Refuse layouts that the declared capabilities cannot express. Optional.

        Called first, before any process group, data or weights. Core has already compared the layout with
        `capabilities`. Raise `UnsupportedLayout` with the reason and what to type instead; otherwise return None.
        Also called by `swift config show`, and before a command starts processes: read `run.config`,
        `run.backend_options` and `run.world.size`, and do not import torch.
        """

    @hookspec(firstresult=True)
    def swift_check_model(self, run: RequestedRun, model_config: Any) -> bool | None:
        """Refuse a model whose sizes do not fit the layout, such as heads that tp does not divide. Optional.

        Called with the transformers configuration before any data or weights are read. Raise `UnsupportedLayout` with
        the reason and what to type instead; otherwise return None. `swift config show` passes only the keys in
        config.json: other keys raise `AttributeError`, which skips the check. Do not import torch.
        """

    @hookspec(firstresult=True)
    def swift_setup(self, run: RequestedRun) -> Topology:
        """Join the process group and build the mesh.

        Called once on every process. The returned `Topology` declares which slice of each global batch this process
        trains on. Processes that share a slice (tensor or pipeline parallel peers) return the same `data_rank`.
        """

    @hookspec(firstresult=True)
    def swift_wrap_model(self, run: Run, source: ModelSource) -> Any:
        """Build or adapt the model, and attach the tuner.

        Called after `swift_setup`. `source` is lazy: configuration and weights by name. A backend can build on the meta
        device, or build its own modules. If adapters are trained, set `run.facts.adapter`. The return value is passed
        to `swift_shard` unchanged.
        """

    @hookspec(firstresult=True)
    def swift_shard(self, run: Run, model: Any) -> TrainState:
        """Distribute the model, and create optimizer and schedule together.

        Called after `swift_wrap_model`. The learning rate of optimizer step n (counted from 0) is `run.schedule(n)`.
        """

    @hookspec(firstresult=True)
    def swift_train_step(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> StepResult:
        """Make one optimizer step over one global batch.

        `batch` has this process's slice; the backend chooses micro-batches, accumulation and pipeline schedule. Divide
        loss sums by `batch.weight`, the weight of the *global* batch, and sum gradients across processes; do not
        average them. Advance `state.step`. Return the same result on every process. Raise
        `swift.errors.TrainingError` before the update if loss or gradient norm is not finite.
        """

    @hookspec(firstresult=True)
    def swift_forward(self, run: Run, state: TrainState, batch: Batch, objective: Objective) -> ForwardResult:
        """Compute loss and views without gradient, in evaluation mode, for validation and reference models.

        With `batch.dropout`, use training mode, with the same dropout for every micro-batch as in `swift_train_step`:
        objectives with a first pass need this (`Objective.first_pass`). With `objective.adapters_off`, disable the
        adapter.
        """

    @hookspec(firstresult=True)
    def swift_save_checkpoint(self, run: Run, state: TrainState, writer: CheckpointWriter) -> bool | None:
        """Pass every trained tensor and its optimizer state to `writer` under the canonical names.

        Called on every process between two steps. `model.<HF name>` is the fp32 weight that the optimizer updates, and
        `optim.<HF name>.exp_avg`, `.exp_avg_sq` and `.step` its state; adapters have their PEFT names. Core renames the
        folder when all processes are done.
        """

    @hookspec(firstresult=True)
    def swift_load_checkpoint(self, run: Run, state: TrainState, reader: CheckpointReader) -> bool | None:
        """Fill model and optimizer from `reader`, whichever backend and layout wrote it.

        Called on every process after `swift_shard`. Core then sets `state.step` from the manifest. Refresh working
        copies of the weights.
        """

    @hookspec(firstresult=True)
    def swift_iter_weights(self, run: Run, state: TrainState) -> WeightStream:
        """Stream `(Hugging Face name, tensor)`, one whole tensor at a time, whatever the layout.

        Called on every process and read to its end, so it can use collectives. All processes stream the same tensors,
        since each can have an inference engine: every weight of the model in fp32, tied ones once; or, if adapters are
        trained, only the adapters, with their PEFT names.
        """

    @hookspec(firstresult=True)
    def swift_teardown(self, run: RequestedRun) -> bool | None:
        """Clean up process groups, threads and environment. Called on every process, also after errors."""

    @hookspec(firstresult=True)
    def swift_core_settings(self, options: BaseModel) -> Mapping[str, tuple[Any, str]] | None:
        """Return the values of core's keys that the backend's own options imply. Optional.

        Called with validated options, before the configuration is final. Return core's key → (value, its location).
        Core adopts the value; if the user typed another one, the error shows both.
        """

    @hookspec(firstresult=True)
    def swift_describe_layout(self, config: Config, processes: int) -> list[str] | None:
        """Return lines for `swift config show` that describe what each process holds. Optional.

        Raise `UnsupportedLayout` if the layout does not fit this number of processes.
        """

    @hookspec(firstresult=True)
    def swift_layout(self, config: Config, processes: int) -> ProcessLayout | None:
        """Return how many processes each parallel dimension has. Optional; the default is `ProcessLayout.of`.

        Raise `UnsupportedLayout` if the layout does not fit this number of processes. Do not import torch.
        """

    @hookspec(firstresult=True)
    def swift_estimate_memory(self, run: RequestedRun, weights: LocalWeights) -> Mapping[str, float] | None:
        """Return bytes by name that the process with the most memory keeps at the peak of a step. Optional.

        For `swift plan`: weights, gradients, optimizer state and buffers, without activations, from `run.config`,
        `run.backend_options` and `run.world.size`. Prefix names of CPU memory with `swift.contracts.HOST`. Do not
        import torch.
        """

    @hookspec(firstresult=True)
    def swift_estimate_traffic(
        self, run: RequestedRun, weights: LocalWeights, micro_batches: int
    ) -> Sequence[Traffic] | None:
        """Return the messages that synchronize weights and gradients in an optimizer step. Optional.

        Without those of sharded layers and sequences (tp, pp, cp, ulysses, ep), which `swift plan` counts itself. Do
        not import torch.
        """

    @hookspec(firstresult=True)
    def swift_estimate_activations(self, run: RequestedRun, layer: LayerSizes) -> float | None:
        """Return the bytes per token that a layer keeps for its backward pass, without recomputation. Optional.

        The default is that of the layers of transformers. Do not import torch.
        """

    @hookspec(firstresult=True)
    def swift_variants(self) -> Mapping[str, Sequence[str]] | None:
        """Return the variants of this backend that `swift plan` compares: name → flags. Optional."""

    @hookspec(firstresult=True)
    def swift_presets(self) -> Mapping[str, str] | None:
        """Return configuration files: name → text, printed by `swift config BACKEND NAME`. Optional."""

    @hookspec(firstresult=True)
    def swift_read_third_party(self, folder: Path) -> ThirdPartyCheckpoint | None:
        """Open a checkpoint that the backend's own library saved, for `swift convert`. Optional.

        Return None if the folder has no such checkpoint. Do not run any code in it.
        """

    @hookspec(firstresult=True)
    def swift_write_third_party(self, state: TrainedState, folder: Path) -> bool | None:
        """Write a checkpoint in the format of the backend's own library, for `swift convert --to BACKEND`. Optional."""


class ExporterHooks:
    """At most one exporter per run implements these.

    Optional attributes: `schemes` of an exporter that quantizes, name (`--quant NAME`) → `swift.contracts.SchemeFacts`;
    `tasks`, a frozenset of the supported values of `model.task`; `needs_adapter = True`, if it exports only adapters.
    Core refuses a run with an unsupported export before it begins. `options_model`, a pydantic model, declares options:
    flags of `swift export --to NAME` and keys of the section `export`, whose values are in `request.own`.
    """

    schemes: Mapping[str, SchemeFacts] = MappingProxyType({})
    tasks: frozenset[str] | None = None
    needs_adapter: bool = False
    options_model: type[BaseModel] | None = None

    @hookspec(firstresult=True)
    def swift_export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        """Write `weights` in this exporter's format into `request.destination` and return the folder.

        Called on one process, with the canonical stream of any backend or checkpoint. Core has checked the destination,
        and verifies the result afterwards.
        """

    @hookspec(firstresult=True)
    def swift_reload(self, folder: Path, source: ModelSource) -> Reloaded | None:
        """Read back what `swift_export` wrote into `folder`. Optional, for formats that transformers does not load.

        Core compares every weight and the model's outputs with the training state, as for its own formats. Read the
        files; keep nothing from `swift_export`. Without this hook such an export ends as NOT VERIFIED.
        """

    @hookspec(firstresult=True)
    def swift_quantize(self, request: QuantizeRequest) -> Quantized:
        """Write the model `request.source` quantized into `request.destination`. Required with `schemes`.

        Read the model a few layers at a time. Measure the loss of quality on rows that are not used for calibration,
        write it next to the weights, and raise `swift.errors.ExportError` if it is above the tolerance.
        """


class EngineHooks:
    """Inference engines (`--engine NAME`) implement these, also for `swift serve`.

    Optional attributes: `library`, a `swift.contracts.EngineLibrary`, with which `swift doctor` reports whether the
    engine's library is installed; `tasks`, a frozenset of supported values of `model.task` besides 'causal_lm', since
    `swift serve` refuses others. With `InferenceEngine.outputs`, `swift export --verify all` compares scores and
    vectors of these tasks.
    """

    library: EngineLibrary | None = None
    tasks: frozenset[str] | None = None

    @hookspec(firstresult=True)
    def swift_open_engine(self, request: EngineRequest) -> InferenceEngine:
        """Load a model for inference, in this process or another.

        Raise `swift.errors.ModelError` with the reason and what to type if the engine cannot load it.
        """

    @hookspec(firstresult=True)
    def swift_serve(self, request: ServeRequest) -> int:
        """Serve a model until the user stops it, and return the exit code. Optional.

        Print when the server is ready and how to send a request. End all processes of the server in every case.
        """


class ObserverHooks:
    """Any number of observers per run implement these; all are called, on the main process only.

    An observer must not change the run.
    """

    @hookspec
    def swift_run_start(self, run: Run) -> None:
        """Handle the start of the run: it is set up, and the first step follows."""

    @hookspec
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        """Handle the end of an optimizer step, and of its evaluation if there is one (`record.evaluation`)."""

    @hookspec
    def swift_checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        """Handle a saved checkpoint, which is complete and in its final folder."""

    @hookspec
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        """Handle the end of the run: completed, stopped by a signal, or failed."""


BACKEND_REQUIRED = (
    "swift_setup",
    "swift_wrap_model",
    "swift_shard",
    "swift_train_step",
    "swift_forward",
    "swift_save_checkpoint",
    "swift_load_checkpoint",
    "swift_iter_weights",
    "swift_teardown",
)
EXPORTER_REQUIRED = ("swift_export",)
ENGINE_REQUIRED = ("swift_open_engine",)


def lazy_hook(target: str) -> Any:
    """Implement the hook that a class assigns this to with a function of another module: 'package.module:function'.

    The module is imported when the hook is called. The function takes the hook's arguments by name, and may leave out
    those that it does not need.
    """
    return _LazyHook(target)


class _LazyHook:
    def __init__(self, target: str) -> None:
        self._target = target

    def __set_name__(self, plugin: type, name: str) -> None:
        """Replace it by a method with the hook's own signature, which pluggy calls."""
        setattr(plugin, name, hookimpl(_method(name, self._target)))


def _method(hook: str, target: str) -> Callable[..., Any]:
    spec = SPECS.get(hook, _unknown)
    signature = inspect.signature(spec)

    @wraps(spec, updated=())
    def call(*arguments: Any, **named: Any) -> Any:
        function, names = resolve_hook(hook, target)
        given = signature.bind(*arguments, **named).arguments
        return function(**{name: given[name] for name in names})

    vars(call)["lazy_target"] = target
    return call


def lazy_hooks(plugin: object) -> dict[str, str]:
    """Return the hooks of a plugin that are implemented with `lazy_hook`: name → target."""
    targets = ((name, getattr(getattr(plugin, name, None), "lazy_target", None)) for name in SPECS)
    return {name: target for name, target in targets if target is not None}


def resolve_hook(hook: str, target: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Import the function that implements a hook, and return it with the names of the arguments that it takes.

    Raise `ImportError` where there is none, and `TypeError` where the hook cannot call it.
    """
    try:
        function = resolve_name(target)
    except (AttributeError, ValueError) as error:
        raise ImportError(f"{hook} is implemented by {target!r}, which cannot be imported: {error}.") from error
    return function, _arguments(hook, target, function)


@cache
def _arguments(hook: str, target: str, function: Callable[..., Any]) -> tuple[str, ...]:
    offered = list(inspect.signature(SPECS[hook]).parameters)[1:]
    taken = inspect.signature(function).parameters
    for name, parameter in taken.items():
        if name not in offered and parameter.default is parameter.empty:
            raise TypeError(f"{target} has the parameter {str(parameter)!r}, but {hook} offers {', '.join(offered)}.")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{target} is asynchronous, but nothing awaits {hook}.")
    return tuple(name for name in taken if name in offered)


def _unknown(self: object) -> None:
    """Stand for a hook that does not exist, which is refused when the plugin is loaded."""


_GROUPS = {"backend": BackendHooks, "exporter": ExporterHooks, "engine": EngineHooks, "observer": ObserverHooks}
KIND_OF_HOOK: dict[str, str] = {
    name: kind for kind, group in _GROUPS.items() for name in vars(group) if name.startswith("swift_")
}
"""Hook → the kind of plugin that implements it."""
SPECS: dict[str, Callable[..., Any]] = {name: vars(_GROUPS[kind])[name] for name, kind in KIND_OF_HOOK.items()}
"""Hook → its signature."""
