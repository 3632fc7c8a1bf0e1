"""When a run saves, evaluates and logs: the Trainer's strategies and intervals."""

from __future__ import annotations

from swift.config.draft import Assignment, Draft
from swift.config.values import as_number, quoted
from swift.errors import ConfigError

DEFAULT_STEPS = 500
"""The Trainer's interval where a strategy is `steps` and no number is given."""
_STRATEGIES = (
    ("checkpoint.save_strategy", "checkpoint.save_steps", "save_steps", "save_strategy"),
    ("train.eval_strategy", "train.eval_steps", "eval_steps", "eval_strategy"),
    ("logging.strategy", "logging.steps", "logging_steps", "logging_strategy"),
)


def settle_cadence(draft: Draft) -> None:
    """Make each strategy and its interval consistent, and note settings without effect."""
    for strategy_key, steps_key, steps_flag, strategy_flag in _STRATEGIES:
        strategy, steps = draft.get(strategy_key), draft.get(steps_key)
        if steps is not None and steps.value is not None:
            _check_steps(steps, steps_flag, strategy_flag)
        name = "" if strategy is None or strategy.value is None else str(strategy.value).lower()
        if strategy is None or not name:
            continue
        given = steps is not None and steps.value is not None
        if name == "steps" and not given and steps_key != "logging.steps":
            _fill_in(draft, strategy, steps_key)
        elif name in ("epoch", "best", "no") and given:
            assert steps is not None
            draft.drop(steps_key)
            draft.note(f"{steps.source} {steps.value} has no effect: {strategy.source} is {name}.")


def _check_steps(steps: Assignment, steps_flag: str, strategy_flag: str) -> None:
    number = as_number(steps.value)
    if number is not None and number <= 0:
        raise ConfigError(
            f"{steps.source} {quoted(steps.value)[:20]} is not positive.",
            hint=f"Type --{steps_flag} N (or a fraction of all steps, such as 0.1), --{strategy_flag} epoch or "
            f"--{strategy_flag} no.",
        )


def _fill_in(draft: Draft, strategy: Assignment, steps_key: str) -> None:
    """Set a missing interval: for evaluation that of saving, else the Trainer's default."""
    saving = draft.get("checkpoint.save_steps")
    known = steps_key == "train.eval_steps" and saving is not None and saving.value is not None
    steps = saving.value if known and saving is not None else DEFAULT_STEPS
    draft.replace(steps_key, steps, strategy.source)
    as_saving = ", the same as checkpoint.save_steps" if known else ""
    draft.note(f"{strategy.source} steps has no interval: {steps_key} is {steps}{as_saving}.")
