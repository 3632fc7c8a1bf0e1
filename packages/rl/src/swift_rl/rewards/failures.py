"""Failed rewards: how many a round may have, and what a run says when there are more."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.errors import SwiftError
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.select import SelectedReward
from swift_rl.rewards.verdicts import Verdict, with_traceback


class RewardFailed(SwiftError):
    """A reward that failed for more completions of a round than may."""


class Failures:
    """Counts for how many completions of a round one reward failed."""

    def __init__(
        self, reward: SelectedReward, items: Sequence[RewardItem], options: RewardOptions, folder: Path | None
    ) -> None:
        self._reward = reward
        self._items = items
        self._options = options
        self._folder = folder
        self._failed: dict[int, Verdict] = {}
        self._most = options.most_failed(len(items))

    def noted(self, index: int, verdict: Verdict) -> Verdict:
        """Return the verdict that counts for a completion; raise if too many failed."""
        if verdict.failure is None:
            return verdict
        self._failed[index] = verdict
        if len(self._failed) > self._most:
            raise self._error()
        return replace(verdict, value=0.0) if self._options.reward_on_error == "zero" else verdict

    def summary(self) -> str | None:
        """Return a line about completions that failed and did not end the run; None where none did."""
        if not self._failed:
            return None
        index, verdict = next(iter(self._failed.items()))
        became = {"zero": "it counts as 0", "drop": "nothing is learned from these"}[self._options.reward_on_error]
        return (
            f"{self._reward.title} failed for {len(self._failed)} of {len(self._items)} completions, {became}. "
            f"{self._where(index)}: {verdict.failure}"
        )

    def _error(self) -> RewardFailed:
        index, verdict = next(iter(self._failed.items()))
        allowed = "none" if not self._most else f"{self._most}"
        message = (
            f"{self._reward.title} failed for {len(self._failed)} of {len(self._items)} completions; {allowed} may "
            f"fail. {self._where(index)}: {verdict.failure}"
        )
        if verdict.output and not self._reward.origin:  # else it is nothing that its user could mend
            message += f"\n{verdict.output.rstrip()}"
        again = shlex.join(["swift", "rewards", "test", str(self._written()), *self._reward.flags, "--row", "1"])
        failure = RewardFailed(message, hint=f"Repeat it: {again}")
        return with_traceback(failure, verdict.output) if self._reward.origin else failure

    def _where(self, index: int) -> str:
        return self._items[index].source or f"Completion {index + 1}"

    def _written(self) -> Path:
        """Write the completions that failed where `swift rewards test` can read them, and return the file."""
        lines = "".join(json.dumps(row_of(self._items[index]), default=str) + "\n" for index in self._failed)
        if self._folder is not None and self._folder.is_dir():
            path = self._folder / "failed-rewards.jsonl"
        else:
            path = Path(tempfile.mkdtemp(prefix="swift-failed-rewards-"), "failed-rewards.jsonl")
        path.write_text(lines, encoding="utf-8")
        return path


def row_of(item: RewardItem) -> dict[str, Any]:
    """Return a completion as a row of a file: its columns, the conversation and the completion."""
    return {
        **item.columns,
        "messages": list(item.messages),
        "completion": item.completion,
        "completion_ids": [int(token) for token in item.completion_ids],
        "finish_reason": item.finish_reason,
    }
