"""Compares what a configuration asks for with what a backend says it can do, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.config.media import NAMES
from swift.config.tasks import view_of
from swift.contracts import Acts, Capabilities, Need, Reads, Trains
from swift.errors import SwiftError, UnsupportedLayout
from swift.plugins.blame import failing
from swift.plugins.discover import duplicates, list_plugins
from swift.plugins.known import PARALLEL_OFFERS, REMARKS, install_command
from swift.plugins.load import load, load_exporter, load_optimizer, load_tuner
from swift.plugins.return_values import wrong

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import Objective

SWITCHES: Mapping[str, tuple[Any, str]] = {
    "train.compile": (True, "false"),
    "train.gradient_checkpointing": (True, "false"),
    "train.neftune_alpha": (5.0, "0"),
    "train.pad_token": (True, "false"),
    "model.liger": (True, "false"),
}
"""Switches that a backend must declare among its features before they may be on: a value that turns them on, and what
is typed to turn them off."""
MODULES_UNDER_TP = "parallel.tp with modules"
"""Feature of a backend that calls `swift.toolkit.cut_modules` when it has cut the matrices of a model."""


@dataclass(frozen=True)
class Requirement:
    """One thing that a configuration asks of a backend."""

    name: str
    """As a person would type it."""
    capability: str
    """Which field of `Capabilities` decides."""
    item: str
    without: str
    """Flags that do without it."""

    def met_by(self, capabilities: Capabilities) -> bool:
        """Return whether a backend with these capabilities has it."""
        offered = getattr(capabilities, self.capability)
        return offered if isinstance(offered, bool) else self.item in offered


def check_capabilities(capabilities: Capabilities, config: Config, objective: Objective | None = None) -> None:
    """Raise `UnsupportedLayout` naming all that is lacking, which installed backends have it, and what to type.

    Without an objective, the task of the model says what it must return: a role is handed its objectives later.
    """
    requested = list(_requirements(config, objective))
    lacking = [requirement for requirement in requested if not requirement.met_by(capabilities)]
    if not lacking:
        return
    name = config.backend.name
    others = [
        other for other, offer in _other_backends(name) if all(requirement.met_by(offer) for requirement in requested)
    ]
    missing = ", ".join(requirement.name for requirement in lacking)
    advice = _advice(lacking, others)
    offers = {offer for requirement in lacking for offer in PARALLEL_OFFERS.get(requirement.item, ())}
    advice = "\n".join([advice, *(REMARKS[name, offer] for offer in sorted(offers) if (name, offer) in REMARKS)])
    raise UnsupportedLayout(f"The {name} backend does not have {missing}.", hint=advice)


def lacking_media(capabilities: Capabilities, config: Config, kind: str) -> UnsupportedLayout | None:
    """Return the error for samples that hold images or sounds where the backend has none; None where it has them."""
    name = config.backend.name
    if kind in capabilities.modalities:
        cut = next((each for each in ("cp", "ulysses") if getattr(config.parallel, each) > 1), None)
        if cut is None or capabilities.cuts_media:
            return None
        return UnsupportedLayout(
            f"parallel.{cut} {getattr(config.parallel, cut)} shares the tokens of a sample between processes, and rows "
            f"have {NAMES[kind]}s, which the {name} backend keeps whole.",
            hint=f"Type --parallel.{cut} 1. For long samples: --gradient_checkpointing true, or fewer tokens of each "
            "image by --max_pixels N.",
        )
    others = [other for other, offer in _other_backends(name) if kind in offer.modalities]
    requirement = Requirement(f"samples with {kind}", "modalities", kind, "rows of text alone")
    advice = f"Type: --backend {others[0]}, or learn from rows of text alone" if others else _advice([requirement], [])
    return UnsupportedLayout(
        f"The {name} backend does not train on {NAMES[kind]}s yet, and rows have some.", hint=advice
    )


def check_export(config: Config) -> None:
    """Raise `UnsupportedLayout` where the exporter that the run is to end with does not write what it trains."""
    if config.export.to is None:
        return
    exporter = load_exporter(config.export.to).object
    if getattr(exporter, "needs_adapter", False) and not load_tuner(config.tuner.kind).object.adapter:
        raise UnsupportedLayout(
            f"The exporter {config.export.to!r} writes adapters, and tuner.kind {config.tuner.kind} trains none.",
            hint="Type --export.to hf, or train an adapter: --tuner.kind lora",
        )
    tasks = getattr(exporter, "tasks", None)
    if tasks is None or config.model.task in tasks:
        return
    raise UnsupportedLayout(
        f"The exporter {config.export.to!r} does not write models of model.task {config.model.task}: it writes "
        f"{', '.join(sorted(tasks))}.",
        hint="Type --export.to hf. What that writes is loaded by transformers.",
    )


def _requirements(config: Config, objective: Objective | None) -> Iterator[Requirement]:
    yield from _of_layout(config)
    if config.model.dtype != "auto":
        dtype = config.model.dtype
        yield Requirement(f"model.dtype {dtype}", "precisions", dtype, "--torch_dtype auto")
    yield from _of_tuner_needs(config)
    if config.tuner.quantize != "none":
        quantize = config.tuner.quantize
        yield Requirement(f"tuner.quantize {quantize}", "quantisers", quantize, "--tuner.quantize none")
    yield from _of_optimizer(config.optim.name)
    if objective is not None:
        yield from _of_objective(objective)
    elif (view := view_of(config.model.task)) is not None:
        task = config.model.task
        yield Requirement(f"what a model of model.task {task} returns ({view.value})", "provides", view, "another task")
    if config.checkpoint.asynchronous:
        item = "checkpoint.asynchronous"
        yield Requirement(item, "async_checkpoint", item, f"--{item} false")
    for switch, (_, off) in SWITCHES.items():
        section, _, key = switch.partition(".")
        if getattr(getattr(config, section), key):
            yield Requirement(switch, "features", switch, f"--{switch} {off}")


def _of_tuner_needs(config: Config) -> Iterator[Requirement]:
    needs = _needs_of_tuner(config)
    for need in sorted(needs):
        yield _of_tuner(config.tuner.kind, need)
    if Trains.MODULES in needs and config.parallel.tp > 1:
        what = f"parallel.tp with the modules of tuner.kind {config.tuner.kind}"
        if _acts_of(config) is None:
            yield Requirement(f"{what}, which nobody has said how to cut", "features", f"{what}", "--parallel.tp 1")
        else:
            yield Requirement(what, "features", MODULES_UNDER_TP, "--parallel.tp 1")


def _acts_of(config: Config) -> Acts | None:
    """Return where the modules of the tuner act on the layers that tensor parallel cuts; None where it says nothing."""
    tuner = load_tuner(config.tuner.kind)
    assert tuner.config_model is not None
    if not hasattr(tuner.object, "cut"):
        return None
    with failing(tuner.entry, "cut"):
        acts: object = tuner.object.cut(config.tuner.options(tuner.config_model))
        if acts is not None and not isinstance(acts, Acts):
            raise wrong(tuner.entry, "cut", "one of swift.contracts.Acts, or None", acts)
        return acts


def _of_layout(config: Config) -> Iterator[Requirement]:
    for key, value in config.parallel:
        if value is True or (not isinstance(value, bool) and value is not None and value > 1):
            name = f"parallel.{key}" if value is True else f"parallel.{key} {value}"
            yield Requirement(name, "parallel", key, f"--parallel.{key} {'false' if value is True else 1}")


def _of_objective(objective: Objective) -> Iterator[Requirement]:
    first = objective.first_pass
    for need in sorted(objective.needs | (frozenset() if first is None else first.needs)):
        yield Requirement(
            f"what the objective {objective.name!r} needs ({Need(need).value})", "provides", need, "another objective"
        )
    # An encoding that is named is one of core's, which hold text alone.
    for modality in sorted(getattr(objective.encoding, "modalities", ())):
        name = f"samples with {modality}, as the objective {objective.name!r} reads them"
        yield Requirement(name, "modalities", modality, "another objective")


def _needs_of_tuner(config: Config) -> frozenset[str]:
    tuner = load_tuner(config.tuner.kind)
    assert tuner.config_model is not None
    with failing(tuner.entry, "needs"):
        came: Any = tuner.object.needs(config.tuner.options(tuner.config_model))
        if isinstance(came, str) or not all(isinstance(need, str) for need in came):
            raise wrong(tuner.entry, "needs", "a frozenset of swift.contracts.Trains", came)
        return frozenset(came)


def _of_tuner(kind: str, need: str) -> Requirement:
    """Return one thing that a tuner asks; core's own are named as they are typed."""
    if need == Trains.DORA:
        return Requirement("tuner.dora", "tuners", need, "--tuner.dora false")
    if need == Trains.START:
        return Requirement("a tuner.init that weights or data decide", "tuners", need, "--tuner.init default")
    if (kind, need) == ("lora", Trains.WEIGHTS):
        return Requirement("tuner.bias, biases that are trained next to adapters", "tuners", need, "--tuner.bias none")
    name = f"tuner.kind {kind}" if need == kind else f"what the tuner {kind!r} needs ({need})"
    return Requirement(name, "tuners", need, "--train_type full")


def _of_optimizer(name: str) -> Iterator[Requirement]:
    """Yield what an optimizer asks of a backend: of AdamW, every backend has it."""
    if name == "adamw":
        return
    optimizer = load_optimizer(name)
    reads = optimizer.object.reads
    label = f"whole {reads} of weights, which the optimizer {name!r} must see"
    if reads == Reads.PARTS:
        label = f"the optimizer {name!r}, which must know where the parts of weights lie"
    elif reads == Reads.ELEMENTS:
        label = f"the optimizer {name!r} (it declares none that read {reads})"
    yield Requirement(label, "optimizers", reads, "--optim.name adamw")
    if any(slot.shape == "matrix" for slot in optimizer.object.slots):
        what = f"what the optimizer {name!r} keeps for each matrix"
        yield Requirement(what, "features", "optim.matrix_slots", "--optim.name adamw")
    if getattr(optimizer.object, "gradient_view", False):
        what = f"the two views of weights that the optimizer {name!r} takes turns with"
        yield Requirement(what, "features", "optim.gradient_view", "--optim.name adamw")


def _other_backends(name: str) -> Iterator[tuple[str, Capabilities]]:
    entries = list_plugins("swift.backends")
    shared = duplicates(entries)
    for entry in entries:
        if entry.allowed and entry.name != name and (entry.group, entry.name) not in shared:
            try:
                capabilities = load(entry).capabilities
            except SwiftError:
                continue  # a broken plugin is no advice
            if capabilities is not None:
                yield entry.name, capabilities


def _advice(lacking: list[Requirement], others: list[str]) -> str:
    without = f"or do without: {' '.join(dict.fromkeys(requirement.without for requirement in lacking))}"
    if others:
        return f"Installed backends that have it: {', '.join(others)}. Type: --backend {others[0]}, {without}"
    offers = [set(PARALLEL_OFFERS.get(requirement.item, ())) for requirement in lacking]
    made_for_it = sorted(set.intersection(*offers))
    if made_for_it:
        command = install_command("swift.backends", made_for_it[0])
        return (
            f"No installed backend has it (made for it: {', '.join(made_for_it)}). "
            f"Run: {command} and type --backend {made_for_it[0]}, {without}"
        )
    return f"No installed backend has it. Use instead: {without.removeprefix('or do without: ')}"
