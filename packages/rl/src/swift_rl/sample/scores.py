"""Scores of sampled answers, kept in a file from which an interrupted run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.infer import Question, ResumeFile, read_lines
from swift.toolkit import print_note, progress
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import SelectedReward
from swift_rl.rewards.verdicts import Verdict
from swift_rl.sample.answers import SampledAnswer, SampledPrompt
from swift_rl.sample.options import SampleOptions

_AT_ONCE = 256
"""Answers that are scored, and kept, together."""


def score(
    prompts: Sequence[SampledPrompt], selected: Sequence[SelectedReward], options: SampleOptions, kept_in: Path
) -> None:
    """Fill in the rewards of all answers. Those that the file has, by the same rewards, are not computed again."""
    answers = [(prompt, answer) for prompt in prompts for answer in prompt.answers]
    settings = _settings(selected, options, answers)
    stale = options.overwrite or not _made_so(kept_in, settings)
    with ResumeFile(kept_in, (_marked(*each) for each in answers), settings, overwrite=stale) as journal:
        left = journal.left()
        if left:
            with RewardPool(selected, options, print_note, folder=kept_in.parent) as pool:
                _score(pool, answers, left, journal)
    for (_, answer), line in zip(answers, read_lines(kept_in), strict=True):
        answer.rewards, answer.failed = line["rewards"], line["failed"]


def _score(pool: RewardPool, answers: Sequence[Any], left: Sequence[int], journal: ResumeFile) -> None:
    parts = [left[start : start + _AT_ONCE] for start in range(0, len(left), _AT_ONCE)]
    for rows in progress(parts, "Scoring answers", total=len(parts)):
        verdicts = pool.score([_item(*answers[row]) for row in rows])
        for row, of_one in zip(rows, verdicts, strict=True):
            journal.write(row, _line(of_one))


def _line(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    return {
        "rewards": {name: each.value for name, each in verdicts.items()},
        "failed": [name for name, each in verdicts.items() if each.failure and each.value is None],
        "remarks": {name: each.failure for name, each in verdicts.items() if each.failure},
    }


def _item(prompt: SampledPrompt, answer: SampledAnswer) -> RewardItem:
    return RewardItem(
        messages=prompt.messages,
        completion=answer.text,
        completion_ids=answer.token_ids,
        finish_reason=answer.finish_reason,
        columns=prompt.seen_by_rewards,
        place=prompt.place,
    )


def _marked(prompt: SampledPrompt, answer: SampledAnswer) -> Question:
    """Return what the journal tells rows apart by."""
    return Question(list(map(dict, prompt.messages)), answer.text, extras=prompt.seen_by_rewards)


def _settings(
    selected: Sequence[SelectedReward], options: SampleOptions, answers: Sequence[tuple[SampledPrompt, SampledAnswer]]
) -> dict[str, Any]:
    """Return what decides the scores: the rewards, the files that they are in, and the answers."""
    files = {str(file): _digest(file) for reward in selected for file in _files_of(reward)}
    seen = hashlib.sha256()
    for prompt, answer in answers:
        held = [list(prompt.messages), answer.text, list(answer.token_ids), dict(prompt.seen_by_rewards)]
        seen.update(json.dumps(held, default=str).encode())
    return {
        "rewards": json.loads(json.dumps([reward.described for reward in selected], default=str)),
        "files": files,
        "on_error": options.reward_on_error,
        "answers": seen.hexdigest(),
    }


def _files_of(reward: SelectedReward) -> Iterator[Path]:
    described = reward.described
    for name in (described.get("file"), *described.get("files", ())):
        if name is not None:
            yield Path(name)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _made_so(path: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether scores that are kept were made by the same settings."""
    try:
        known: Any = json.loads(path.with_name(path.name + ".settings.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(known == settings)
