"""`swift rewards test FILE`: computes rewards of completions that are stored in a file, and shows what they print."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from swift.config.limits import FilePath, Rows
from swift.config.options import Argument
from swift.contracts import RewardItem
from swift.errors import UsageError
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import SelectedReward, check_columns, select_rewards
from swift_rl.rewards.stored import read_completions
from swift_rl.rewards.verdicts import Verdict

_SHOWN = 40
"""Characters of a completion in the table."""


class RewardsOptions(RewardOptions):
    """Computes rewards as a run does, for completions in a file: a round of a run, or rows with messages.

    Exit 1 if a reward fails.
    """

    examples: ClassVar[tuple[str, ...]] = (
        "swift rewards test completions.jsonl --reward_funcs exact_match format",
        "swift rewards test completions.jsonl --reward_funcs mine.py:reward --row 3",
    )
    action: Annotated[Literal["test"], Argument("test")] = Field(description="What to do: test")
    file: Annotated[FilePath, Argument("FILE")] = Field(description="Completions, a line of JSON each")
    row: Rows | None = Field(None, description="Only this completion, counted from 1, with what the rewards print")
    max_completion_length: Rows | None = Field(
        None, description="Most tokens of a completion, for rewards of its length"
    )


class RewardsCommand:
    """Implements `swift.contracts.Command`."""

    group = "Train"
    summary = "Compute rewards of stored completions: swift rewards test FILE"
    options_model = RewardsOptions

    def run(self, options: RewardsOptions) -> int:
        """Compute the rewards, print a table or one row, and return the exit code."""
        selected = select_rewards(options.reward_funcs, options)
        if not selected:
            raise UsageError("No reward is named.", hint=f"For example: {options.examples[0]}")
        items = read_completions(options.file)
        if options.row is not None and options.row > len(items):
            raise UsageError(
                f"--row {options.row}: the file holds {len(items)} completions.", hint="They count from 1."
            )
        chosen = items if options.row is None else [items[options.row - 1]]
        check_columns(selected, {name for item in items for name in item.columns})
        shown_whatever_fails = {"reward_on_error": "drop", "reward_max_failed": 1.0, "reward_retries": 0}
        with RewardPool(selected, options.model_copy(update=shown_whatever_fails)) as pool:
            verdicts = pool.score(chosen)
        if options.row is None:
            _print_table(selected, chosen, verdicts)
        else:
            _print_row(chosen[0], verdicts[0])
        return int(any(verdict.failure for of_one in verdicts for verdict in of_one.values()))


def _print_row(item: RewardItem, verdicts: dict[str, Verdict]) -> None:
    lines = [f"{item.source}: {item.completion}"]
    for name, verdict in verdicts.items():
        shown = verdict.failure or ("does not apply" if verdict.value is None else f"{verdict.value:g}")
        lines.append(f"{name}: {shown} ({verdict.seconds:.3f} s)")
        lines += [f"    {line}" for line in verdict.output.splitlines()]
    sys.stdout.write("\n".join(lines) + "\n")


def _print_table(
    selected: Sequence[SelectedReward], items: Sequence[RewardItem], verdicts: Sequence[dict[str, Verdict]]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("Row", justify="right", no_wrap=True)
    for reward in selected:
        table.add_column(Text(reward.name), justify="right", no_wrap=True)
    table.add_column("Sum", justify="right", no_wrap=True)
    table.add_column("Completion", no_wrap=True)
    for number, (item, of_one) in enumerate(zip(items, verdicts, strict=True), 1):
        values = [_cell(of_one[reward.name]) for reward in selected]
        table.add_row(str(number), *values, _sum(selected, of_one), Text(_beginning(item.completion)))
    Console().print(table)
    sys.stdout.write("\n".join(["", *(_summary(reward, verdicts) for reward in selected)]) + "\n")


def _cell(verdict: Verdict) -> str:
    if verdict.failure is not None:
        return "failed"
    return "-" if verdict.value is None else f"{verdict.value:.4g}"


def _sum(selected: Sequence[SelectedReward], verdicts: dict[str, Verdict]) -> str:
    """Return the weighted sum; none where a reward failed, or all do not apply."""
    if any(verdict.failure for verdict in verdicts.values()):
        return "-"
    values = [(reward.weight, verdicts[reward.name].value) for reward in selected]
    applied = [weight * value for weight, value in values if value is not None]
    return f"{sum(applied):.4g}" if applied else "-"


def _summary(reward: SelectedReward, verdicts: Sequence[dict[str, Verdict]]) -> str:
    of_one = [each[reward.name] for each in verdicts]
    values = [verdict.value for verdict in of_one if verdict.value is not None]
    failed = [verdict.failure for verdict in of_one if verdict.failure is not None]
    parts = [f"mean {statistics.fmean(values):.4g}, {min(values):.4g} to {max(values):.4g}"] if values else []
    if without := len(of_one) - len(values) - len(failed):
        parts.append(f"does not apply to {without}")
    if failed:
        parts.append(f"failed for {len(failed)} of {len(of_one)}, the first: {failed[0]}")
    named = f"{reward.name} ({reward.origin})" if failed and reward.origin else reward.name
    return f"{named}: {'; '.join(parts)}"


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
