"""Comparing what a configuration asks for with what a backend says it can do, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swift.contracts import Capabilities, Need
from swift.errors import SwiftError, UnsupportedPlan
from swift.plugins.discover import duplicates, list_plugins
from swift.plugins.known import PARALLEL_OFFERS, install_command
from swift.plugins.load import load

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import Objective

SWITCHES = ("train.compile", "train.gradient_checkpointing", "model.liger")
"""Switches that a backend must declare among its features before they may be on."""


@dataclass(frozen=True)
class Wish:
    """One thing that a configuration asks of a backend."""

    said: str
    """As a person would type it."""
    capability: str
    """Which field of `Capabilities` decides."""
    item: str
    without: str
    """What to type to go on without it."""

    def met_by(self, capabilities: Capabilities) -> bool:
        """Whether a backend with these capabilities has it."""
        offered = getattr(capabilities, self.capability)
        return offered if isinstance(offered, bool) else self.item in offered


def check_capabilities(capabilities: Capabilities, config: Config, objective: Objective) -> None:
    """Raise `UnsupportedPlan` naming all that is lacking, which installed backends have it, and what to type."""
    wanted = list(_wishes(config, objective))
    lacking = [wish for wish in wanted if not wish.met_by(capabilities)]
    if not lacking:
        return
    name = config.backend.name
    others = [other for other, offer in _other_backends(name) if all(wish.met_by(offer) for wish in wanted)]
    missing = ", ".join(wish.said for wish in lacking)
    advice = _advice(lacking, others)
    if name == "deepspeed" and any("megatron" in PARALLEL_OFFERS.get(wish.item, ()) for wish in lacking):
        advice += (
            "\nOf ZeRO, Megatron has the first stage: its distributed optimizer shards fp32 weights and moments over "
            "the data parallel processes. Gradients and weights of a stage stay whole."
        )
    raise UnsupportedPlan(f"The {name} backend does not have {missing}.", hint=advice)


def _wishes(config: Config, objective: Objective) -> Iterator[Wish]:
    for key, value in config.parallel:
        if value is True or (not isinstance(value, bool) and value is not None and value > 1):
            said = f"parallel.{key}" if value is True else f"parallel.{key} {value}"
            yield Wish(said, "parallel", key, f"--parallel.{key} {'false' if value is True else 1}")
    if config.model.dtype != "auto":
        dtype = config.model.dtype
        yield Wish(f"model.dtype {dtype}", "precisions", dtype, "--torch_dtype auto")
    tuner = config.tuner
    yield Wish(f"tuner.kind {tuner.kind}", "tuners", tuner.kind, "--train_type full")
    if tuner.kind == "lora" and tuner.dora:
        yield Wish("tuner.dora", "tuners", "dora", "--tuner.dora false")
    if tuner.quantize != "none":
        yield Wish(f"tuner.quantize {tuner.quantize}", "tuners", tuner.quantize, "--tuner.quantize none")
    for need in sorted(objective.needs):
        yield Wish(
            f"what the objective {objective.name!r} needs ({Need(need).value})", "provides", need, "another objective"
        )
    # An encoding that is named is one of core's, which hold text alone.
    for modality in sorted(getattr(getattr(objective, "encoding", None), "modalities", ())):
        said = f"samples with {modality}, as the objective {objective.name!r} reads them"
        yield Wish(said, "modalities", modality, "another objective")
    if config.checkpoint.asynchronous:
        item = "checkpoint.asynchronous"
        yield Wish(item, "async_checkpoint", item, f"--{item} false")
    for switch in SWITCHES:
        section, _, key = switch.partition(".")
        if getattr(getattr(config, section), key):
            yield Wish(switch, "features", switch, f"--{switch} false")


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


def _advice(lacking: list[Wish], others: list[str]) -> str:
    without = f"or go on without: {' '.join(dict.fromkeys(wish.without for wish in lacking))}"
    if others:
        return f"Installed backends that have it: {', '.join(others)}. Type: --backend {others[0]}, {without}"
    offers = [set(PARALLEL_OFFERS.get(wish.item, ())) for wish in lacking]
    made_for_it = sorted(set.intersection(*offers))
    if made_for_it:
        command = install_command("swift.backends", made_for_it[0])
        return (
            f"No installed backend has it (made for it: {', '.join(made_for_it)}). "
            f"Run: {command} and type --backend {made_for_it[0]}, {without}"
        )
    return f"No installed backend has it. Type: {without.removeprefix('or ')}"
