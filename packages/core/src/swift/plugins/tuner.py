"""The tuner that a configuration selects, with its options. What it raises is blamed on the plugin."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from swift.contracts import Tuner, TunerContext
from swift.contracts.tuner import Trains
from swift.errors import PluginError
from swift.plugins.blame import failing
from swift.plugins.entry import PluginEntry
from swift.plugins.load import load_tuner
from swift.plugins.return_values import is_finite, is_tensor, wrong

if TYPE_CHECKING:
    import torch

    from swift.config.sections import TunerSection


@dataclass(frozen=True)
class SelectedTuner:
    """A tuner with its options."""

    entry: PluginEntry
    tuner: Tuner
    options: Any

    @property
    def adapter(self) -> bool:
        """Return whether what is trained is an adapter."""
        return self.tuner.adapter

    def attach(self, model: torch.nn.Module, context: TunerContext) -> torch.nn.Module:
        """Return the model with exactly what is trained requiring a gradient."""
        import torch

        with failing(self.entry, "attach"):
            tuned: object = self.tuner.attach(model, self.options, context)
            if not isinstance(tuned, torch.nn.Module):
                raise wrong(self.entry, "attach", "the model", tuned)
            if not any(parameter.requires_grad for parameter in tuned.parameters()):
                raise wrong(self.entry, "attach", "a model with trainable parameters", shown="one that is all frozen")
            if self.adapter != hasattr(tuned, "peft_config"):
                what = "a PEFT model, since the tuner trains an adapter" if self.adapter else "a model without adapters"
                raise wrong(self.entry, "attach", what, tuned)
            return tuned

    def initial(self, name: str, shape: Sequence[int], seed: int) -> torch.Tensor | None:
        """Return what an adapter's parameter begins with; None leaves it as it is."""
        if not hasattr(self.tuner, "initial"):
            return None
        with failing(self.entry, "initial"):
            came: Any = self.tuner.initial(name, shape, self.options, seed)
            if came is not None and not (is_tensor(came) and came.is_floating_point() and came.shape == tuple(shape)):
                what = f"a tensor of {came.dtype} and the shape {tuple(came.shape)}" if is_tensor(came) else None
                expected = f"None, or a tensor of floats of the shape {tuple(shape)} for {name}"
                raise wrong(self.entry, "initial", expected, came, shown=what)
        return cast("torch.Tensor | None", came)

    @property
    def rotates_layers(self) -> bool:
        """Return whether the tuner rotates the layers that are trained."""
        with failing(self.entry, "needs"):
            return Trains.ROTATION in self.tuner.needs(self.options)

    def trained(self, names: Sequence[str], step: int, seed: int) -> Collection[str]:
        """Return which weights a step trains."""
        with failing(self.entry, "trained"):
            due: Any = self.tuner.trained(names, step, self.options, seed)  # type: ignore[attr-defined]  # of those whose weights take turns
            if not isinstance(due, Collection) or not due or not set(due) <= set(names):
                raise self.wrong("trained", "some of the names that were passed to it", due)
        return cast("Collection[str]", due)

    def wrong(self, method: str, expected: str, came: object) -> PluginError:
        return wrong(self.entry, method, expected, came)

    def lr_scale(self, name: str) -> float:
        """Return the factor on the learning rate of a parameter."""
        if not hasattr(self.tuner, "lr_scale"):
            return 1.0
        with failing(self.entry, "lr_scale"):
            came: object = self.tuner.lr_scale(name, self.options)
            if not is_finite(came) or cast(float, came) < 0:
                raise self.wrong("lr_scale", "a finite number ≥ 0", came)
        return cast(float, came)


def tuner_of(section: TunerSection) -> SelectedTuner:
    """Return the tuner that the `tuner` section names, with its options."""
    loaded = load_tuner(section.kind)
    assert loaded.config_model is not None
    return SelectedTuner(loaded.entry, loaded.object, section.options(loaded.config_model))


def ends_when_off(section: TunerSection) -> bool:
    """Return whether a model is as it was before training while its adapters are switched off.

    Biases stay as they are trained, low-bit weights lack what LoftQ's start gives back to them, and an adapter that
    training has begun with would be missing.
    """
    tuner = tuner_of(section)
    alone = getattr(tuner.options, "bias", "none") == "none" and getattr(tuner.options, "init", "") != "loftq"
    return tuner.adapter and section.adapter is None and alone
