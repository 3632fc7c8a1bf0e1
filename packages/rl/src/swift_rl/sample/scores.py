"""Scores of sampled completions, kept in a file from which an interrupted run continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.toolkit import print_note, progress
from swift_infer import Question, ResumeFile, read_lines
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import SelectedReward
from swift_rl.rewards.verdicts import Verdict
from swift_rl.sample.completions import SampledCompletion, SampledPrompt
from swift_rl.sample.options import SampleOptions

_AT_ONCE = 256
"""Number of completions scored and kept together."""


def score(
    prompts: Sequence[SampledPrompt], selected: Sequence[SelectedReward], options: SampleOptions, kept_in: Path
) -> None:
    """Fill in the rewards of all completions. Rewards that the file has are not computed again."""
    completions = [(prompt, completion) for prompt in prompts for completion in prompt.completions]
    settings = _settings(selected, options, completions)
    stale = options.overwrite or not _made_so(kept_in, settings)
    with ResumeFile(kept_in, (_marked(*each) for each in completions), settings, overwrite=stale) as resume_file:
        left = resume_file.left()
        if left:
            with RewardPool(selected, options, print_note, folder=kept_in.parent) as pool:
                _score(pool, completions, left, resume_file)
    for (_, completion), line in zip(completions, read_lines(kept_in), strict=True):
        completion.rewards, completion.failed = line["rewards"], line["failed"]


def _score(pool: RewardPool, completions: Sequence[Any], left: Sequence[int], resume_file: ResumeFile) -> None:
    parts = [left[start : start + _AT_ONCE] for start in range(0, len(left), _AT_ONCE)]
    for rows in progress(parts, "Scoring completions", total=len(parts)):
        verdicts = pool.score([_item(*completions[row]) for row in rows])
        for row, of_one in zip(rows, verdicts, strict=True):
            resume_file.write(row, _line(of_one))


def _line(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    return {
        "rewards": {name: each.value for name, each in verdicts.items()},
        "failed": [name for name, each in verdicts.items() if each.failure and each.value is None],
        "remarks": {name: each.failure for name, each in verdicts.items() if each.failure},
    }


def _item(prompt: SampledPrompt, completion: SampledCompletion) -> RewardItem:
    return RewardItem(
        messages=prompt.messages,
        completion=completion.text,
        completion_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        columns=prompt.seen_by_rewards,
        source=prompt.source,
    )


def _marked(prompt: SampledPrompt, completion: SampledCompletion) -> Question:
    """Return what identifies a row in the resume file."""
    return Question(list(map(dict, prompt.messages)), completion.text, extras=prompt.seen_by_rewards)


def _settings(
    selected: Sequence[SelectedReward],
    options: SampleOptions,
    completions: Sequence[tuple[SampledPrompt, SampledCompletion]],
) -> dict[str, Any]:
    """Return what determines the scores: the rewards, their files and the completions."""
    named = [each for reward in selected for each in (reward.described.get("file"), *reward.described.get("files", ()))]
    files = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in named if file is not None}
    seen = hashlib.sha256()
    for prompt, completion in completions:
        held = [list(prompt.messages), completion.text, list(completion.token_ids), dict(prompt.seen_by_rewards)]
        seen.update(json.dumps(held, default=str).encode())
    return {
        "rewards": json.loads(json.dumps([reward.described for reward in selected], default=str)),
        "files": files,
        "on_error": options.reward_on_error,
        "completions": seen.hexdigest(),
    }


def _made_so(path: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether scores that are kept were made by the same settings."""
    try:
        known: Any = json.loads(path.with_name(path.name + ".settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(known == settings)
