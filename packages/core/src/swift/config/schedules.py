"""Checks of the learning-rate schedule: its options and its final value."""

from __future__ import annotations

from collections.abc import Mapping

from swift.config.sections import OptimSection, ScheduleOptions, Shape
from swift.errors import ConfigError

POLYNOMIAL_END = 1e-7
"""Default final learning rate of `polynomial`, as in transformers."""
_WSD = ("num_decay_steps", "num_stable_steps", "decay_type", "warmup_type", "num_cycles")
_OPTIONS: Mapping[Shape, tuple[str, ...]] = {
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("power",),
    "inverse_sqrt": ("timescale",),
    "wsd": _WSD,
    "warmup_stable_decay": _WSD,
}
"""Shape → the keys of `optim.schedule_options` that it takes."""


def check_schedule(optim: OptimSection, peak: float) -> None:
    """Raise `ConfigError` for options that the schedule does not take, or a floor that is not below the peak."""
    shape, options = optim.schedule, optim.schedule_options or ScheduleOptions()
    taken = _OPTIONS.get(shape, ())
    for name, info in ScheduleOptions.model_fields.items():
        if name not in taken and getattr(options, name) != info.default:
            others = ", ".join(taken) if taken else "none"
            raise ConfigError(
                f"The schedule {shape!r} does not take optim.schedule_options.{name}.",
                hint=f"Options of {shape}: {others}. "
                f"Schedules with {name}: {', '.join(each for each in _OPTIONS if name in _OPTIONS[each])}.",
            )
    if shape == "cosine_with_restarts" and not float(options.num_cycles or 1).is_integer():
        raise ConfigError(
            f"optim.schedule cosine_with_restarts needs a whole number of num_cycles, not {options.num_cycles:g}."
        )
    if optim.min_lr is not None and optim.min_lr_ratio:
        raise ConfigError(
            "optim.min_lr and optim.min_lr_ratio both set the final learning rate.", hint="Keep one of them."
        )
    floor = floor_of(optim, peak)
    if floor > peak or (shape == "polynomial" and floor == peak):
        raise ConfigError(
            f"The final learning rate{_set_by(optim)} {floor:g} is not below the peak, optim.lr {peak:g}.",
            hint="Type a smaller --min_lr, or a larger --learning_rate.",
        )


def _set_by(optim: OptimSection) -> str:
    """Return the key that sets the final learning rate, behind a comma."""
    key = next((name for name in ("min_lr", "min_lr_ratio") if getattr(optim, name) is not None), None)
    return "" if key is None else f", optim.{key}"


def floor_of(optim: OptimSection, peak: float) -> float:
    """Return the final learning rate."""
    if optim.min_lr is not None:
        return optim.min_lr
    if optim.min_lr_ratio is not None:
        return peak * optim.min_lr_ratio
    return POLYNOMIAL_END if optim.schedule == "polynomial" else 0.0
