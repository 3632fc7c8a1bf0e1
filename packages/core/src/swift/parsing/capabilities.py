"""Check of a configuration against the capabilities that a backend declares, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.config.media import PLURALS
from swift.contracts import Acts, Capabilities, Need, Reads, Trains
from swift.errors import SwiftError, UnsupportedLayout
from swift.parsing.tasks import view_of
from swift.plugins.discover import duplicates, list_plugins
from swift.plugins.known import PARALLEL_OFFERS, REMARKS, install_command
from swift.plugins.load import load, load_exporter, load_optimizer, load_tuner
from swift.plugins.return_values import called

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import Objective

FEATURE_SWITCHES: Mapping[str, tuple[Any, str]] = {
    "train.compile": (True, "false"),
    "train.gradient_checkpointing": (True, "false"),
    "train.neftune_alpha": (5.0, "0"),
    "train.pad_token": (True, "false"),
    "train.router_aux_loss": (0.01, "0"),
    "train.router_z_loss": (0.001, "0"),
    "train.router_bias_rate": (0.001, "0"),
    "model.liger": (True, "false"),
}
"""Switches that a backend must declare among its features: the values for on and for off."""

MODULES_UNDER_TP = "parallel.tp with modules"
"""Feature of a backend that calls `swift.toolkit.cut_modules` when it has cut the matrices of a model."""
TP_OF_VOCABULARY = "parallel.tp of embedding and head"
"""Feature of a backend whose tensor parallel processes share embedding and head; else each has them whole."""
TP_OF_EXPERTS = "parallel.tp of experts"
"""Feature of a backend whose tensor parallel processes share experts too; else `parallel.etp` says how many do."""


@dataclass(frozen=True)
class Requirement:
    """One capability that a configuration needs."""

    name: str
    """As users type it."""
    capability: str
    """Which field of `Capabilities` decides."""
    item: str
    without: str
    """Flags that remove the requirement."""

    def met_by(self, capabilities: Capabilities) -> bool:
        """Return whether these capabilities meet the requirement."""
        offered = getattr(capabilities, self.capability)
        return offered if isinstance(offered, bool) else self.item in offered


def check_capabilities(capabilities: Capabilities, config: Config, objective: Objective | None = None) -> None:
    """Raise `UnsupportedLayout` naming what the backend lacks, which installed backends have it, and what to type.

    Without an objective (a role gets its objectives later), the task of the model decides what it must return.
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
    raise UnsupportedLayout(f"The {name} backend does not support {missing}.", hint=advice)


def lacking_media(capabilities: Capabilities, config: Config, kind: str) -> UnsupportedLayout | None:
    """Return the error for samples with images or audio that the backend cannot train on; None where it can."""
    name = config.backend.name
    if kind in capabilities.modalities:
        cut = next((each for each in ("cp", "ulysses") if getattr(config.parallel, each) > 1), None)
        if cut is None or capabilities.cuts_media:
            return None
        return UnsupportedLayout(
            f"parallel.{cut} {getattr(config.parallel, cut)} divides the tokens of a sample over processes, and the "
            f"{name} backend cannot divide {PLURALS[kind]}.",
            hint=f"Type --parallel.{cut} 1. For long samples add --gradient_checkpointing true, or reduce the tokens "
            "of each image with --max_pixels N.",
        )
    others = [other for other, offer in _other_backends(name) if kind in offer.modalities]
    requirement = Requirement(f"samples with {kind}", "modalities", kind, "rows with text only")
    advice = f"Type --backend {others[0]}, or use rows with text only." if others else _advice([requirement], [])
    return UnsupportedLayout(
        f"The data set has {PLURALS[kind]}, which the {name} backend does not train on.", hint=advice
    )


def check_export(config: Config) -> None:
    """Raise `UnsupportedLayout` where the exporter of the run's end does not write what the run trains."""
    if config.export.to is None:
        return
    exporter = load_exporter(config.export.to).object
    if getattr(exporter, "needs_adapter", False) and not load_tuner(config.tuner.kind).object.adapter:
        raise UnsupportedLayout(
            f"The exporter {config.export.to!r} writes adapters, but tuner.kind {config.tuner.kind} trains none.",
            hint="Type --export.to hf, or train an adapter with --tuner.kind lora.",
        )
    tasks = getattr(exporter, "tasks", None)
    if tasks is None or config.model.task in tasks:
        return
    raise UnsupportedLayout(
        f"The exporter {config.export.to!r} does not write models with model.task {config.model.task}. Supported "
        f"tasks: {', '.join(sorted(tasks))}.",
        hint="Type --export.to hf, which transformers loads.",
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
        yield Requirement(f"model.task {task} (it needs {view.value})", "provides", view, "another task")
    if config.checkpoint.asynchronous:
        item = "checkpoint.asynchronous"
        yield Requirement(item, "async_checkpoint", item, f"--{item} false")
    for switch, (_, off) in FEATURE_SWITCHES.items():
        section, _, key = switch.partition(".")
        if getattr(getattr(config, section), key):
            yield Requirement(switch, "features", switch, f"--{switch} {off}")


def _of_tuner_needs(config: Config) -> Iterator[Requirement]:
    tuner = load_tuner(config.tuner.kind)
    assert tuner.config_model is not None
    options = config.tuner.options(tuner.config_model)
    needs = called(tuner.entry, "needs", tuner.object.needs, frozenset[str], options)
    for need in sorted(needs):
        yield _of_tuner(config.tuner.kind, need)
    if Trains.MODULES in needs and config.parallel.tp > 1:
        what = f"parallel.tp with the modules of tuner.kind {config.tuner.kind}"
        cut = getattr(tuner.object, "cut", None)
        acts = None if cut is None else called(tuner.entry, "cut", cut, Acts | None, options)
        if acts is None:
            yield Requirement(f"{what} (the tuner declares no cut)", "features", what, "--parallel.tp 1")
        else:
            yield Requirement(what, "features", MODULES_UNDER_TP, "--parallel.tp 1")


def _of_layout(config: Config) -> Iterator[Requirement]:
    for key, value in config.parallel:
        if value is True or (not isinstance(value, bool) and value is not None and value > 1):
            name = f"parallel.{key}" if value is True else f"parallel.{key} {value}"
            yield Requirement(name, "parallel", key, f"--parallel.{key} {'false' if value is True else 1}")


def _of_objective(objective: Objective) -> Iterator[Requirement]:
    first = objective.first_pass
    for need in sorted(objective.needs | (frozenset() if first is None else first.needs)):
        yield Requirement(
            f"the objective {objective.name!r} (it needs {Need(need).value})", "provides", need, "another objective"
        )
    # An encoding given by name is one of core's, which hold text only.
    for modality in sorted(getattr(objective.encoding, "modalities", ())):
        name = f"samples with {modality} (the objective {objective.name!r} reads them)"
        yield Requirement(name, "modalities", modality, "another objective")


def _of_tuner(kind: str, need: str) -> Requirement:
    """Return one requirement of a tuner, named by the flag for core's own tuners."""
    if need == Trains.DORA:
        return Requirement("tuner.dora", "tuners", need, "--tuner.dora false")
    if need == Trains.START:
        return Requirement("a tuner.init computed from weights or data", "tuners", need, "--tuner.init default")
    if (kind, need) == ("lora", Trains.WEIGHTS):
        return Requirement("tuner.bias (biases trained with adapters)", "tuners", need, "--tuner.bias none")
    name = f"tuner.kind {kind}" if need == kind else f"the tuner {kind!r} (it needs {need})"
    return Requirement(name, "tuners", need, "--train_type full")


def _of_optimizer(name: str) -> Iterator[Requirement]:
    """Yield the requirements of an optimizer; every backend supports AdamW."""
    if name == "adamw":
        return
    optimizer = load_optimizer(name)
    reads = optimizer.object.reads
    label = f"the optimizer {name!r} (it needs whole {reads} of weights)"
    if reads == Reads.PARTS:
        label = f"the optimizer {name!r} (it needs the position of each shard in its weight)"
    elif reads == Reads.ELEMENTS:
        label = f"the optimizer {name!r} (the backend declares no optimizers that read {reads})"
    yield Requirement(label, "optimizers", reads, "--optim.name adamw")
    if any(slot.shape == "matrix" for slot in optimizer.object.slots):
        what = f"the optimizer {name!r} (it keeps a state for each matrix)"
        yield Requirement(what, "features", "optim.matrix_slots", "--optim.name adamw")
    if getattr(optimizer.object, "gradient_view", False):
        what = f"the optimizer {name!r} (it alternates between two views of the weights)"
        yield Requirement(what, "features", "optim.gradient_view", "--optim.name adamw")


def _other_backends(name: str) -> Iterator[tuple[str, Capabilities]]:
    entries = list_plugins("swift.backends")
    shared = duplicates(entries)
    for entry in entries:
        if entry.allowed and entry.name != name and (entry.group, entry.name) not in shared:
            try:
                capabilities = load(entry).capabilities
            except SwiftError:
                continue  # a broken plugin is not a suggestion
            if capabilities is not None:
                yield entry.name, capabilities


def _advice(lacking: list[Requirement], others: list[str]) -> str:
    without = " ".join(dict.fromkeys(requirement.without for requirement in lacking))
    if others:
        return f"Installed backends that support it: {', '.join(others)}. Type --backend {others[0]}, or {without}"
    offers = [set(PARALLEL_OFFERS.get(requirement.item, ())) for requirement in lacking]
    supporting = sorted(set.intersection(*offers))
    if supporting:
        command = install_command("swift.backends", supporting[0])
        return (
            f"No installed backend supports it. Run: {command} and type --backend {supporting[0]} "
            f"(supported by: {', '.join(supporting)}), or type {without}"
        )
    return f"No installed backend supports it. Type {without}"
