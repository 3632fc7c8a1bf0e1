"""Rounds on disk: `round-000012.jsonl` for people and programs, `round-000012.safetensors` for the steps.

A round exists once its second file does, which is written last and has the checksum of the first. Until the round is
complete, its completions are in a rollout log, so that an interrupted run does not sample them again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from swift.files import replace_file
from swift_rl.rounds.data import Episode, Prompt, RolloutCompletion, Round

FOLDER = "rollouts"
"""Under the run's folder."""
_ARRAYS = (
    *("token_ids", "logps", "advantages", "old_logps", "ref_logps", "is_weights", "entropies", "teacher_logps"),
    *("old_values", "returns"),
)
_LENGTHS = "lengths"
_KNOWN = "known_"
"""Beginning of the column that tells which completions have an array, where some have none."""
_REPORTED = ("prompt", "index", "finish_reason", "text", "rewards", "remarks", "failed", "reward", "why_not")


def path_of(folder: Path, number: int, ending: str) -> Path:
    """Return the name of one of a round's files."""
    return folder / f"round-{number:06d}.{ending}"


def write_round(folder: Path, made: Round, fingerprint: str) -> Path:
    """Write a round, and return its JSON Lines file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, arrays = (path_of(folder, made.number, ending) for ending in ("jsonl", "safetensors"))
    text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in _lines(made))
    replace_file(lines, text, synced=True)
    facts = {"fingerprint": fingerprint, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    replace_file(arrays, save(_columns(made.completions), metadata=facts), synced=True)
    return lines


def read_round(folder: Path, number: int, fingerprint: str | None = None) -> Round | None:
    """Return a round; None where it is missing, incomplete, or was made under other settings."""
    lines, arrays = (path_of(folder, number, ending) for ending in ("jsonl", "safetensors"))
    try:
        text = lines.read_text(encoding="utf-8")
        with safe_open(arrays, framework="numpy") as file:
            facts = file.metadata() or {}
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, SafetensorError, UnicodeDecodeError):
        return None
    if facts.get("sha256") != hashlib.sha256(text.encode()).hexdigest():
        return None
    if fingerprint is not None and facts.get("fingerprint") != fingerprint:
        return None
    # Not splitlines: completions may hold other line separators.
    return _round_of([json.loads(line) for line in text.split("\n")[:-1]], columns)


def _lines(made: Round) -> Iterator[Mapping[str, Any]]:
    yield {
        "round": made.number,
        "version": made.version,
        "cursor": made.cursor,
        "facts": made.facts,
        "dropped": {str(prompt): why for prompt, why in made.dropped.items()},
        "prompts": [
            {**asdict(prompt), "token_ids": prompt.token_ids.tolist(), "columns": dict(prompt.columns)}
            for prompt in made.prompts
        ],
    }
    for completion in made.completions:
        episode = {} if completion.episode is None else {"episode": asdict(completion.episode)}
        yield {name: getattr(completion, name) for name in _REPORTED} | episode


def _columns(completions: Sequence[RolloutCompletion]) -> dict[str, np.ndarray]:
    columns = {_LENGTHS: np.array([len(completion.token_ids) for completion in completions], dtype=np.int64)}
    for name in _ARRAYS:
        values = [getattr(completion, name) for completion in completions]
        known = [each is not None for each in values]
        if any(known):
            columns[name] = np.concatenate([each for each in values if each is not None])
        if any(known) and not all(known):
            columns[_KNOWN + name] = np.array(known)
    return columns


def _round_of(lines: Sequence[Mapping[str, Any]], columns: Mapping[str, np.ndarray]) -> Round:
    head, rest = lines[0], lines[1:]
    prompts = [Prompt(**{**each, "token_ids": np.array(each["token_ids"], dtype=np.int32)}) for each in head["prompts"]]
    lengths = columns[_LENGTHS]
    own: list[dict[str, np.ndarray]] = [{} for _ in rest]
    for name in _ARRAYS:
        if name in columns:
            known = columns.get(_KNOWN + name, np.ones(len(rest), dtype=bool))
            pieces = np.split(columns[name], np.cumsum(lengths[known])[:-1])
            for index, values in zip(np.flatnonzero(known), pieces, strict=True):
                own[index][name] = values
    completions = [
        RolloutCompletion(**{**line, **arrays, "episode": _episode(line)})
        for line, arrays in zip(rest, own, strict=True)
    ]
    dropped = {int(prompt): why for prompt, why in head["dropped"].items()}
    return Round(head["round"], head["version"], prompts, completions, head["facts"], dropped, head["cursor"])


@dataclass(frozen=True)
class Generated:
    """A completion as an engine returned it."""

    token_ids: list[int]
    logps: list[float]
    finish_reason: str
    episode: Episode | None = None


def _episode(stored: Mapping[str, Any]) -> Episode | None:
    return Episode(**stored["episode"]) if stored.get("episode") is not None else None


class RolloutLog:
    """The completions of an unfinished round, from all processes, in `round-000012.sampled/`."""

    def __init__(self, folder: Path, number: int, version: int, rank: int) -> None:
        self._folder = path_of(folder, number, "sampled")
        self._file = self._folder / f"rank-{rank}.jsonl"
        self._version = version

    def read(self) -> dict[int, Generated]:
        """Return the number of each completion → the completion. Unfinished lines are ignored."""
        known: dict[int, Generated] = {}
        for file in sorted(self._folder.glob("rank-*.jsonl")):
            for line in file.read_bytes().split(b"\n")[:-1]:
                try:
                    entry = json.loads(line)
                    if entry["version"] == self._version:
                        own = (entry["token_ids"], entry["logps"], entry["finish_reason"])
                        known[entry["number"]] = Generated(*own, _episode(entry))
                except (ValueError, KeyError, TypeError):
                    continue
        return known

    def add(self, number: int, generated: Generated) -> None:
        """Append a completion."""
        self._folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"version": self._version, "number": number, **asdict(generated)}) + "\n"
        with self._file.open("ab") as file:
            if file.tell() and not self._ends_whole():
                file.write(b"\n")
            file.write(line.encode())

    def clear(self) -> None:
        """Delete the log; on one process only."""
        for file in self._folder.glob("rank-*.jsonl"):
            file.unlink(missing_ok=True)
        if self._folder.is_dir():
            self._folder.rmdir()

    def _ends_whole(self) -> bool:
        with self._file.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
