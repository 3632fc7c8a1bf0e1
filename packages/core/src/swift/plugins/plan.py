"""Comparing what a configuration asks for with what a backend says it can do, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swift.contracts import Capabilities, Need
from swift.errors import PluginError, UnsupportedPlan
from swift.plugins.discover import list_plugins
from swift.plugins.known import PARALLEL_OFFERS, install_command
from swift.plugins.load import load

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import Objective

SWITCHES = ("train.compile", "train.gradient_checkpointing", "model.liger")
"""Switches that a backend must declare among its features before they may be on."""


@dataclass(frozen=True)
class Lack:
    """One thing that was asked for and is not there."""

    wish: str
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
    lacking = [lack for lack in _wishes(config, objective) if not lack.met_by(capabilities)]
    if not lacking:
        return
    name = config.backend.name
    wishes = ", ".join(lack.wish for lack in lacking)
    others = [other for other, offer in _other_backends(name) if all(lack.met_by(offer) for lack in lacking)]
    raise UnsupportedPlan(f"The {name} backend does not have {wishes}.", hint=_advice(lacking, others))


def _wishes(config: Config, objective: Objective) -> Iterator[Lack]:
    for key, value in config.parallel:
        if value is True or (not isinstance(value, bool) and value is not None and value > 1):
            said = f"parallel.{key}" if value is True else f"parallel.{key} {value}"
            yield Lack(said, "parallel", key, f"--parallel.{key} {'false' if value is True else 1}")
    if config.model.dtype != "auto":
        dtype = config.model.dtype
        yield Lack(f"model.dtype {dtype}", "precisions", dtype, "--torch_dtype auto")
    tuner = config.tuner
    yield Lack(f"tuner.kind {tuner.kind}", "tuners", tuner.kind, "--train_type full")
    if tuner.kind == "lora" and tuner.dora:
        yield Lack("tuner.dora", "tuners", "dora", "--tuner.dora false")
    if tuner.quantize != "none":
        yield Lack(f"tuner.quantize {tuner.quantize}", "tuners", tuner.quantize, "--tuner.quantize none")
    for need in sorted(objective.needs):
        yield Lack(
            f"what the objective {objective.name!r} needs ({Need(need).value})", "provides", need, "another objective"
        )
    if config.checkpoint.asynchronous:
        item = "checkpoint.asynchronous"
        yield Lack(item, "async_checkpoint", item, f"--{item} false")
    for switch in SWITCHES:
        section, _, key = switch.partition(".")
        if getattr(getattr(config, section), key):
            yield Lack(switch, "features", switch, f"--{switch} false")


def _other_backends(name: str) -> Iterator[tuple[str, Capabilities]]:
    for entry in list_plugins("swift.backends"):
        if entry.allowed and entry.name != name:
            try:
                capabilities = load(entry).capabilities
            except PluginError:
                continue  # a broken plugin is no advice
            if capabilities is not None:
                yield entry.name, capabilities


def _advice(lacking: list[Lack], others: list[str]) -> str:
    without = f"or go on without: {' '.join(dict.fromkeys(lack.without for lack in lacking))}"
    if others:
        return f"Installed backends that have it: {', '.join(others)}. Type: --backend {others[0]}, {without}"
    offers = [set(PARALLEL_OFFERS.get(lack.item, ())) for lack in lacking]
    made_for_it = sorted(set.intersection(*offers))
    if made_for_it:
        command = install_command("swift.backends", made_for_it[0])
        return (
            f"No installed backend has it (made for it: {', '.join(made_for_it)}). "
            f"Run: {command} and type --backend {made_for_it[0]}, {without}"
        )
    return f"No installed backend has it. Type: {without.removeprefix('or ')}"
