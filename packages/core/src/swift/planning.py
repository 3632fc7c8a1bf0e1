"""What planners need from installed backends: valid layouts, memory and traffic.

Nothing here imports torch, opens a model or starts a process. `swift plan` uses only this module, and so can other
planners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pluggy
from pydantic import BaseModel

from swift.config.flags import read_flags
from swift.config.incompatibilities import partly_quantized
from swift.config.sections import Config, ParallelSection
from swift.contracts import (
    EngineModel,
    LayerSizes,
    LocalWeights,
    ModelRole,
    Objective,
    ProcessLayout,
    RequestedRun,
    RoundWork,
    Traffic,
    World,
    fitting_roles,
)
from swift.errors import ModelError, SwiftError, UnsupportedLayout
from swift.hookspecs import BackendHooks
from swift.models.classes import ENCODERS, check_no_encoder
from swift.models.config_file import StoredConfig, read_config
from swift.models.locate import folder_of
from swift.parsing import parse
from swift.parsing.aliases import MACHINES, training_flags
from swift.parsing.capabilities import TP_OF_EXPERTS, TP_OF_VOCABULARY, check_capabilities
from swift.parsing.tasks import CAUSAL_LM
from swift.plugins.discover import plugin_names
from swift.plugins.guard import hooks_of
from swift.plugins.hooks import variants
from swift.plugins.load import LoadedPlugin, load_backend, load_objective, load_optimizer, load_tuner
from swift.plugins.objective import make_objective
from swift.plugins.return_values import check_size, returned, returns, size
from swift.processes.group import current_world, processes_here, wanted_group
from swift.terminal import say_nothing

_DEFAULT = "torch"
_MOST_ROWS = 256
"""Rows of a batch: more of them are hardly faster."""
_SHARE = 1 / 8
"""Of the device's memory, for the caches of a batch; a model in training may be beside it."""
_PER_LOGIT = 40
"""Bytes that sampling takes for each token of the vocabulary in a row: a few tensors in fp64."""
_Hook = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class PlannedBackend:
    """A backend in one of its variants, for the run that is planned."""

    plugin: LoadedPlugin
    variant: str
    """Its name in `swift_variants`; empty where there is only one."""
    flags: tuple[str, ...]
    """The flags that select it, besides `--backend`."""
    config: Config
    """Of the run, before a layout is chosen."""
    backend_options: BaseModel

    @classmethod
    def of_run(cls, run: RequestedRun) -> PlannedBackend:
        """Return the backend of a started run, as configured."""
        return cls(load_backend(run.config.backend.name), "", (), run.config, run.backend_options)

    @property
    def name(self) -> str:
        """Return the backend's name for `--backend`."""
        return self.plugin.entry.name

    @property
    def dimensions(self) -> frozenset[str]:
        """Return the fields of the layout that it can set."""
        return self.plugin.capabilities.parallel

    @cached_property
    def _hooks(self) -> Any:
        return hooks_of(self.plugin, BackendHooks)

    @cached_property
    def _direct_hooks(self) -> dict[str, _Hook]:
        """The hooks that `_call` has called.

        A search makes tens of thousands of calls to one plugin, so a single implementation is called directly, without
        pluggy's loop over plugins.
        """
        return {}

    def _call(self, name: str, **arguments: Any) -> Any:
        hook = self._direct_hooks.get(name)
        if hook is None:
            hook = self._direct_hooks[name] = _direct(getattr(self._hooks, name))
        return returned(self.plugin.entry, name, hook(arguments), returns(BackendHooks, name))

    @property
    def cuts_experts(self) -> bool:
        """Return whether tensor parallel processes share the experts of a mixture like all other weights."""
        return TP_OF_EXPERTS in self.plugin.capabilities.features

    @property
    def cuts_vocabulary(self) -> bool:
        """Return whether tensor parallel processes share embedding and head like all other weights."""
        return TP_OF_VOCABULARY in self.plugin.capabilities.features

    @property
    def names_stages(self) -> bool:
        """Return whether the pipeline may have stages of different sizes, set by its option `stages`."""
        return "backend.stages" in self.plugin.capabilities.features

    def run(
        self, parallel: Mapping[str, Any], processes: int, *, stages: Sequence[int] = (), **train: Any
    ) -> RequestedRun:
        """Return the run on `processes`, with other values in the sections `parallel` and `train`."""
        config, options = self.config, self.backend_options
        update: dict[str, Any] = {"parallel": ParallelSection.model_construct(**{**dict(config.parallel), **parallel})}
        if train:
            update["train"] = config.train.model_copy(update=train)
        if stages:
            options = options.model_copy(update={"stages": tuple(stages)})
        return RequestedRun(
            config.model_copy(update=update), options, Path(), World(size=processes), say_nothing, planned_only=True
        )

    def layout(self, run: RequestedRun) -> ProcessLayout:
        """Return the sizes of all parallel dimensions; `UnsupportedLayout` where they do not fit the processes."""
        came: ProcessLayout | None = self._call("swift_layout", config=run.config, processes=run.world.size)
        return came or ProcessLayout.of(run.config.parallel, run.world.size)

    def refusal(self, run: RequestedRun) -> SwiftError | None:
        """Return the error of core or the backend for this layout with any model; None where it is valid."""
        try:
            check_capabilities(self.plugin.capabilities, run.config)
            self._hooks.swift_check_layout(run=run)
        except SwiftError as refused:
            return refused
        return None

    def refusal_of_model(self, run: RequestedRun, config: Mapping[str, Any]) -> SwiftError | None:
        """Return the backend's error for a model, given as its config.json, in this layout; None where it is valid."""
        try:
            self._hooks.swift_check_model(run=run, model_config=StoredConfig(config))
        except SwiftError as refused:
            return refused
        except AttributeError:
            return None  # a missing key, for which transformers has a default
        return None

    def memory(self, run: RequestedRun, weights: LocalWeights) -> Mapping[str, float] | None:
        """Return the memory of the fullest process, in bytes by name; None where the backend has no estimate."""
        hook = "swift_estimate_memory"
        came: Mapping[str, float] | None = self._call(hook, run=run, weights=weights)
        return came and {name: check_size(self.plugin.entry, hook, count) for name, count in came.items()}

    @property
    def own_layers(self) -> bool:
        """Return whether it has its own layers instead of transformers', and estimates their activations."""
        return bool(self._hooks.swift_estimate_activations.get_hookimpls())

    def activations(self, run: RequestedRun, layer: LayerSizes) -> float | None:
        """Return the activations of a layer in bytes per token; None where the backend has no estimate."""
        hook = "swift_estimate_activations"
        came: float | None = self._call(hook, run=run, layer=layer)
        return came if came is None else check_size(self.plugin.entry, hook, came)

    def traffic(self, run: RequestedRun, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
        """Return the communication of weights and gradients; empty where the backend has no estimate."""
        return self._call("swift_estimate_traffic", run=run, weights=weights, micro_batches=micro_batches) or ()

    @cached_property
    def _objective(self) -> Objective:
        plugin = load_objective(self.config.objective.name)
        options = self.config.objective.options(plugin.object.options_model)
        return make_objective(plugin, options).for_model(self.config.model)

    @cached_property
    def roles(self) -> Sequence[ModelRole]:
        """Return the models that the run has besides its policy, on this backend."""
        return fitting_roles(self._objective.roles(self.config), self.plugin.capabilities.roles)

    def of_role(self, role: ModelRole) -> PlannedBackend:
        """Return the backend with the configuration of a role."""
        return replace(self, config=role.config(self.config))

    @cached_property
    def rounds(self) -> RoundWork:
        """Return the work and memory of rounds, besides the steps of the models."""
        return self._objective.rounds(self.config)

    @cached_property
    def _optimizer(self) -> LoadedPlugin:
        return load_optimizer(self.config.optim.name)

    @cached_property
    def _tuner(self) -> LoadedPlugin:
        return load_tuner(self.config.tuner.kind)

    def slot_bytes(self, shape: Sequence[int]) -> float:
        """Return the optimizer state per value of a weight of this shape, in bytes, with the run's options."""
        optimizer = self._optimizer
        with_options = getattr(optimizer.object, "bytes_with_options", None)
        if with_options is None:
            return size(optimizer.entry, "bytes_per_parameter", optimizer.object.bytes_per_parameter, shape)
        options = self.config.optim.options(optimizer.object.options_model)
        return size(optimizer.entry, "bytes_with_options", with_options, shape, options)

    @property
    def tuner_options(self) -> Any:
        """Return the options of the run's tuner."""
        return self.config.tuner.options(self._tuner.object.options_model)

    def trained_values(self, rows: int, columns: int) -> float | None:
        """Return how many values the run's tuner trains for a matrix; None where it trains the matrix itself."""
        tuner = self._tuner
        if not tuner.object.adapter:
            return None
        options = self.tuner_options
        count = getattr(tuner.object, "extra_values", _low_rank)
        return size(tuner.entry, "extra_values", count, rows, columns, options)


def _direct(hook: pluggy.HookCaller) -> _Hook:
    """Return a function that calls a hook with its arguments by name."""
    found = hook.get_hookimpls()
    if len(found) != 1 or found[0].wrapper or found[0].hookwrapper:
        return lambda arguments: hook(**arguments)
    function, names = found[0].function, found[0].argnames
    return lambda arguments: function(*[arguments[name] for name in names])


def _low_rank(rows: int, columns: int, options: Any) -> float:
    """Return the number of values of two matrices with the rank in a tuner's options."""
    rank = next((getattr(options, name) for name in ("rank", "r") if isinstance(getattr(options, name, None), int)), 8)
    return float(rank * (rows + columns))


def planned_backends(args: Sequence[str], command: str) -> tuple[list[PlannedBackend], dict[str, SwiftError]]:
    """Return all variants of installed backends that accept a run, and the errors of the others by name.

    `args` are the flags of the run. If they select a backend (`--backend`, `--deepspeed`), it is the only one; if they
    have a flag of a variant, the backend's other variants are left out.
    """
    typed = {arg.partition("=")[0].replace("-", "_") for arg in args if arg.startswith("--")}
    named = _named_backend(args, command, typed)
    taken: list[PlannedBackend] = []
    refused: dict[str, SwiftError] = {}
    for name in [named] if named else plugin_names("swift.backends"):
        try:
            plugin = load_backend(name)
            ways = variants(plugin)
        except SwiftError as error:
            refused[name] = error
            continue
        if any(flag.replace("-", "_") in typed for flags in ways.values() for flag in flags if flag[:2] == "--"):
            ways = {"": ()}
        own = [] if named else ["--backend", name]
        for way, flags in ways.items():
            try:
                parsed = parse([*args, *own, *flags], command, complete=False)
            except SwiftError as error:
                refused[way or name] = error
                continue
            taken.append(PlannedBackend(plugin, way, tuple(flags), parsed.config, parsed.backend_options))
    return taken, refused


def _named_backend(args: Sequence[str], command: str, typed: Collection[str]) -> str | None:
    """Return the backend that the flags select; None where they select none."""
    try:
        name = parse(args, command, complete=False).config.backend.name
    except UnsupportedLayout:
        # The default backend does not support the run; this is an error only where the user selected it.
        if "__backend" in typed:
            raise
        return None
    return name if name != _DEFAULT or "__backend" in typed else None


def counted_processes(args: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the processes per machine and the number of machines, from flags and environment variables."""
    line = read_flags(args, training_flags())
    machines = {name.upper(): str(line.flags[name].value) for name in MACHINES if name in line.flags}
    requested = [line.flags[name].value for name in ("nproc", "nproc_per_node") if name in line.flags]
    if "RANK" in environment:
        size = current_world(environment).size
        here = processes_here(environment, size)
        return here, max(1, size // here)
    count = int(requested[0]) if requested and str(requested[0]).isdecimal() else None
    return wanted_group({**environment, **machines}, count)


def model_config(name: str, task: str = CAUSAL_LM) -> dict[str, Any]:
    """Return the config.json of a model for a task: a folder, the file itself, or a name with files on this machine."""
    path = Path(name)
    folder = path.parent if path.name == "config.json" and path.is_file() else folder_of(name)
    if folder is None:
        raise ModelError(
            f"{name} is not a model folder, and no model of that name is on this machine.",
            hint="Pass a model folder or a config.json; weights are not needed.",
        )
    content = read_config(folder)
    check_no_encoder(name, content, task)
    return content


def row_bytes(vocabulary: int, of_token: float, tokens: int) -> float:
    """Return the bytes of a row of so many tokens, each of which takes `of_token` bytes of cache."""
    return _PER_LOGIT * vocabulary + of_token * tokens


def rows_at_once(device: float, row: float) -> int:
    """Return how many rows of so many bytes are sampled at once on a device of so many bytes."""
    return max(1, min(_MOST_ROWS, int(_SHARE * device / row)))


__all__ = [
    "CAUSAL_LM",
    "ENCODERS",
    "EngineModel",
    "PlannedBackend",
    "RoundWork",
    "StoredConfig",
    "counted_processes",
    "model_config",
    "partly_quantized",
    "planned_backends",
    "row_bytes",
    "rows_at_once",
]
