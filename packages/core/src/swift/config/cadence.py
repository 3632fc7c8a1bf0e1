"""How often a run saves, evaluates and logs: strategies and intervals, as the Trainer's flags name them."""

from __future__ import annotations

from collections.abc import MutableMapping

from swift.config.draft import Assignment
from swift.config.values import as_number, quoted
from swift.errors import ConfigError

USUAL_STEPS = 500
"""What the Trainer takes where a strategy is `steps` and no number is given."""
_STRATEGIES = (
    ("checkpoint.save_strategy", "checkpoint.save_steps", "save_steps", "save_strategy"),
    ("train.eval_strategy", "train.eval_steps", "eval_steps", "eval_strategy"),
    ("logging.strategy", "logging.steps", "logging_steps", "logging_strategy"),
)


def settle_cadence(merged: MutableMapping[str, Assignment], notes: list[str]) -> None:
    """Make each strategy agree with its number of steps, in place; what has no effect is noted."""
    for strategy_key, steps_key, steps_flag, strategy_flag in _STRATEGIES:
        strategy, steps = merged.get(strategy_key), merged.get(steps_key)
        if steps is not None and steps.value is not None:
            _check_steps(steps, steps_flag, strategy_flag)
        word = "" if strategy is None or strategy.value is None else str(strategy.value).lower()
        if strategy is None or not word:
            continue
        given = steps is not None and steps.value is not None
        if word == "steps" and not given and steps_key != "logging.steps":
            _fill_in(merged, strategy, steps_key, notes)
        elif word in ("epoch", "best", "no") and given:
            assert steps is not None
            del merged[steps_key]
            notes.append(f"{steps.source} {steps.value} has no effect: {strategy.source} is {word}.")


def _check_steps(steps: Assignment, steps_flag: str, strategy_flag: str) -> None:
    number = as_number(steps.value)
    if number is not None and number <= 0:
        raise ConfigError(
            f"{steps.source} {quoted(steps.value)[:20]}: steps are counted from 1.",
            hint=f"To do without: --{strategy_flag} no. Once an epoch: --{strategy_flag} epoch. "
            f"Otherwise --{steps_flag} N, or a part of all steps such as 0.1",
        )


def _fill_in(merged: MutableMapping[str, Assignment], strategy: Assignment, steps_key: str, notes: list[str]) -> None:
    """Set the steps that were left open: those of saving for evaluations too, or else the Trainer's."""
    saving = merged.get("checkpoint.save_steps")
    known = steps_key == "train.eval_steps" and saving is not None and saving.value is not None
    steps = saving.value if known and saving is not None else USUAL_STEPS
    merged[steps_key] = Assignment(steps, strategy.source)
    as_saving = ", as often as it saves" if known else ""
    notes.append(f"{strategy.source} steps without a number: {steps_key} is {steps}{as_saving}.")
