"""Adapters that begin where the training data points: EVA (arXiv:2410.07170) and LoRA-GA (arXiv:2407.05000).

Before the backend builds the model, the main process holds it whole, shows it the first batches of the run one sample
at a time, and hands the factors to all processes. They depend on neither backend nor layout, and backends read them as
they read those of PiSSA.

EVA's A holds the main directions of what a layer is given, its B is zero. LoRA-GA begins with singular directions of
the gradient of each weight; their product is subtracted again (`swift.models.adapter_initialization`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from swift.config.own_options import FROM_DATA, LoraOptions
from swift.data.schedules import BatchLayout, EpochSchedule
from swift.errors import ConfigError
from swift.models.adapter_initialization import check_matrix, inner_name, lora_layers, of_rank, randomised_svd, signs_of
from swift.models.attention import choose_attention
from swift.models.build import meta_model
from swift.models.names import ADAPTER, START, adapter_names, generator_of
from swift.models.precision import compute_dtype
from swift.models.sample_by_sample import CHECKPOINTING
from swift.models.tuners import apply_tuner
from swift.models.view import ViewModule
from swift.processes.comms import Comms
from swift.processes.watchdog import heartbeat
from swift.terminal import say_nothing, waiting
from swift.train.steps import Arithmetic, accumulate

if TYPE_CHECKING:
    from swift.contracts import BatchSchedule, ModelSource, Objective, Run
    from swift.data.batch import Batch, MicroBatch
    from swift.data.store import SampleSet
    from swift.train.reference import Mode

Factors = tuple[torch.Tensor, torch.Tensor]
"""A and B."""
_BATCHES = 8
_TOKENS = 512
"""Inputs of a layer that are waited for before its directions are brought up to date, as one sample may have few."""
_SEED = 42
"""PEFT's own, of the randomised decompositions inside EVA."""
_COLUMNS, _ITERATIONS, _GAMMA = 4, 4, 16.0
"""PEFT's decomposition of gradients: columns for each rank and iterations; and how small B begins."""


@dataclass(frozen=True)
class _Layer:
    """A layer with an adapter."""

    path: str
    """Its name in the transformers model."""
    rank: int
    transposed: bool
    names: tuple[tuple[str, str], ...]
    """Names on disk of what begins with A and B: the adapter in training, and a frozen one next to it."""


def starts_from_data(
    run: Run,
    source: ModelSource,
    objective: Objective,
    schedule: BatchSchedule,
    samples: SampleSet | None,
    reference: Mode,
) -> dict[str, torch.Tensor]:
    """Return what adapters begin with that the data decides, by names on disk; nothing for other adapters.

    `plan` is that of the run, and `samples` those of its data set, without reference scores. Collective.
    """
    options = run.config.tuner.options(LoraOptions)
    if options.init not in FROM_DATA or run.config.tuner.kind != "lora":
        return {}
    if samples is None or not isinstance(schedule, EpochSchedule):
        raise ConfigError(
            f"tuner.init {options.init} looks at the training data first, and this run makes or streams its data.",
            hint="Type --tuner.init pissa, which looks at the weights alone, or --tuner.init default.",
        )
    if options.init == "lora_ga":
        _check_gradient(objective, reference)
    comms = Comms(run.timeout)
    try:
        found = None
        if comms.rank == 0:
            with waiting("Looking at the first batches, for the adapters to begin with"):
                found = _measured(run, source, objective, samples)
        found = comms.broadcast(found)
    finally:
        comms.close()
    assert found is not None
    return found


def _check_gradient(objective: Objective, reference: Mode) -> None:
    """Refuse losses that need more than one sample and the model."""
    compares = objective.baseline is not None or objective.first_pass is not None
    if compares or reference != "none":
        raise ConfigError(
            f"tuner.init lora_ga takes gradients sample by sample before there is a run, and the loss of "
            f"{objective.name!r} compares with other samples or a reference.",
            hint="Type --tuner.init eva, which looks at the inputs of layers alone.",
        )


def _measured(run: Run, source: ModelSource, objective: Objective, samples: SampleSet) -> dict[str, torch.Tensor]:
    options = run.config.tuner.options(LoraOptions)
    schedule = EpochSchedule(samples, objective, BatchLayout.from_config(run.config))
    layers = _layers(run, source)
    steps = range(min(options.init_batches or _BATCHES, schedule.total_steps))
    batches = (replace(schedule.batch(step, 0, 1), micro_rows=1, media_reader=run.media_reader) for step in steps)
    view = _whole_model(run, source, compute_dtype(run))
    find = _directions_of_inputs if options.init == "eva" else _directions_of_gradients
    factors = find(run, view, layers, objective, batches)
    run.say(f"adapters begin where {len(steps)} batches point ({options.init})")
    found: dict[str, torch.Tensor] = {}
    for layer in layers:
        for names in layer.names:
            for name, value in zip(names, factors[layer.path], strict=True):
                found[name] = value.contiguous().cpu()
    return found


def _layers(run: Run, source: ModelSource) -> list[_Layer]:
    tuned = apply_tuner(
        meta_model(source, torch.float32), run.config.tuner, seed=run.config.train.seed, say=say_nothing
    )
    on_disk = adapter_names(tuned)
    found = []
    for path, layer in lora_layers(tuned):
        check_matrix(tuned, path, layer)
        adapters = [adapter for adapter in (ADAPTER, START) if adapter in layer.lora_A]
        found.append(
            _Layer(
                path=inner_name(path),
                rank=layer.r[ADAPTER],
                transposed=bool(getattr(layer, "fan_in_fan_out", False)),
                names=tuple(
                    (on_disk[f"{path}.lora_A.{adapter}.weight"], on_disk[f"{path}.lora_B.{adapter}.weight"])
                    for adapter in adapters
                ),
            )
        )
    return found


def _whole_model(run: Run, source: ModelSource, dtype: torch.dtype) -> ViewModule:
    config, device = run.config, run.topology.device
    flat = config.data.packing or bool(config.data.padding_free)
    attention = choose_attention(config.model.attention, source.config, flat=flat, device=device, dtype=dtype)
    model: Any = source.build(dtype=dtype, device=device)
    model.config.use_cache = False
    model.requires_grad_(False)
    if config.train.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    view = ViewModule(model, attention=attention, say=run.say)
    view.pooling = config.model.pooling
    return view


class _Inputs:
    """The main directions of the inputs of layers that are given the same."""

    def __init__(self, rank: int) -> None:
        from peft.utils.incremental_pca import IncrementalPCA

        self.rank = rank
        self._pca = IncrementalPCA(n_components=rank, lowrank=True, lowrank_seed=_SEED)
        self._waiting: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor) -> None:
        """Take the inputs of some tokens."""
        self._waiting.append(rows.float())
        if sum(map(len, self._waiting)) >= max(_TOKENS, self.rank):
            self._fit()

    def directions(self, path: str) -> torch.Tensor:
        """Return as many as the rank, orthonormal, the one with the greatest variance first."""
        if sum(map(len, self._waiting)) >= self.rank:
            self._fit()
        if not hasattr(self._pca, "components_"):
            raise ConfigError(
                f"tuner.init eva has seen fewer than {self.rank} learned tokens, which is the rank of {path}.",
                hint="Type --tuner.init_batches with a larger number, or a smaller --lora_rank.",
            )
        found: torch.Tensor = self._pca.components_
        return found

    def _fit(self) -> None:
        self._pca.partial_fit(torch.cat(self._waiting))
        self._waiting = []


class _Recorder:
    """Collects what layers are given in a forward pass, once where several are given the same tensor."""

    def __init__(self, layers: list[_Layer]) -> None:
        self._ranks = {layer.path: layer.rank for layer in layers}
        self._given: dict[str, torch.Tensor] = {}
        self._groups: dict[str, _Inputs] = {}

    def hook(self, path: str) -> Callable[..., None]:
        """Return the hook of one layer."""

        def record(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            self._given[path] = given[0]

        return record

    def take(self, learned: torch.Tensor) -> None:
        """Add the inputs of the pass that has just been made, at the tokens that are learned."""
        if not self._groups:
            self._make_groups()
        done: set[int] = set()
        for path, inputs in self._groups.items():
            if id(inputs) in done:
                continue
            done.add(id(inputs))
            given = self._given.get(path)
            if given is None or given.shape[:-1] != learned.shape:
                raise ConfigError(
                    f"tuner.init eva looks at what layers are given for each token, and {path} sees only some.",
                    hint="Leave it out of the modules with adapters: --target_modules q_proj k_proj v_proj o_proj",
                )
            inputs.add(given[learned])
        self._given.clear()

    def factors(self, layers: list[_Layer], outputs: Mapping[str, int]) -> dict[str, Factors]:
        """Return A and B of each layer."""
        directions = {layer.path: self._groups[layer.path].directions(layer.path) for layer in layers}
        return {
            layer.path: (
                directions[layer.path][: layer.rank],
                directions[layer.path].new_zeros(outputs[layer.path], layer.rank),
            )
            for layer in layers
        }

    def _make_groups(self) -> None:
        together: dict[int, list[str]] = {}
        for path in self._ranks:
            together.setdefault(id(self._given.get(path, path)), []).append(path)
        for paths in together.values():
            shared = _Inputs(max(self._ranks[path] for path in paths))
            self._groups |= dict.fromkeys(paths, shared)


@torch.no_grad()
def _directions_of_inputs(
    run: Run, view: ViewModule, layers: list[_Layer], objective: Objective, batches: Iterator[Batch]
) -> dict[str, Factors]:
    """Return EVA's factors: principal components of the inputs at tokens that are learned, and zeros."""
    recorder, arithmetic = _Recorder(layers), Arithmetic.of(run)
    modules: dict[str, Any] = {layer.path: view.model.get_submodule(layer.path) for layer in layers}
    hooks = [module.register_forward_pre_hook(recorder.hook(path)) for path, module in modules.items()]
    view.eval()
    try:
        for batch in batches:
            for micro_batch in batch.micro_batches():
                heartbeat()
                micro_batch = micro_batch.to(arithmetic.device)
                with arithmetic.autocast():
                    view(micro_batch, objective.needs)
                recorder.take(_learned(micro_batch))
    finally:
        for hook in hooks:
            hook.remove()
    sides = {layer.path: modules[layer.path].weight.shape[1 if layer.transposed else 0] for layer in layers}
    return recorder.factors(layers, sides)


def _learned(batch: MicroBatch) -> torch.Tensor:
    """Return where the tokens are that the loss falls on, as PEFT has it; all tokens where it falls on none."""
    learned = torch.zeros_like(batch.weights, dtype=torch.bool)
    learned[:, 1:] = batch.weights[:, :-1] != 0
    return learned if bool(learned.any()) else batch.segment_ids >= 0


def _directions_of_gradients(
    run: Run, view: ViewModule, layers: list[_Layer], objective: Objective, batches: Iterator[Batch]
) -> dict[str, Factors]:
    """Return LoRA-GA's factors: singular directions of the mean gradient, the first for A and the next for B."""
    device = torch.device(run.topology.device)
    arithmetic = replace(Arithmetic.of(run), scaler=torch.amp.GradScaler(device.type, enabled=False))
    weights: dict[str, Any] = {layer.path: view.model.get_submodule(layer.path).weight for layer in layers}
    for weight in weights.values():
        weight.requires_grad_(True)
    view.train()
    count = 0
    for batch in batches:
        accumulate(view, batch, objective, arithmetic)
        count += 1
    found = {}
    for layer in layers:
        gradient = weights[layer.path].grad.float() / count
        weights[layer.path].grad = None
        generator = generator_of(run.config.train.seed, layer.path)
        found[layer.path] = _of_gradient(gradient.T if layer.transposed else gradient, layer.rank, generator)
    return found


def _of_gradient(gradient: torch.Tensor, rank: int, generator: torch.Generator) -> Factors:
    left, values, right = randomised_svd(gradient, _COLUMNS * rank, _ITERATIONS, generator)
    # A direction has two signs, and libraries differ.
    signs = signs_of(right)
    left, right = left * signs.T, right * signs
    second = slice(rank, 2 * rank)
    small = gradient.shape[0] ** 0.25 / _GAMMA**0.5
    return of_rank(right[:rank], rank, 0), of_rank(left[:, second] * values[second] * small, rank, 1)
