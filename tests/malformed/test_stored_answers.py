"""Files of stored answers, and rounds of a run, that are damaged or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import drawn, judge_all, wrong
from judge import Case, judge, sampled
from safetensors.numpy import save_file
from spoil import NOT_A_FILE, NOT_AN_OBJECT

from swift.errors import DataError
from swift_rl.rewards.stored import read_completions
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import read_round, write_round

Build = Callable[[Path], Sequence[str]]
FILE = "round.jsonl"
REWARDS = ["rewards", "test", FILE, "--reward_funcs", "format"]
SAMPLE = ["sample", "--engine", "no", "--cache_files", FILE, "--reward_funcs", "format", "--result_path", "best.jsonl"]
ROW: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "completion": "<think>a</think><answer>4</answer>",
    "solution": "4",
}
PROMPT: dict[str, Any] = {
    "number": 0, "position": 0, "token_ids": [1], "messages": [{"role": "user", "content": "Hello"}],
    "columns": {"solution": "4"}, "source": "data.jsonl:1", "tools": [],
}  # fmt: skip
HEAD: dict[str, Any] = {"round": 0, "version": 0, "cursor": 0, "facts": {}, "dropped": {}, "prompts": [PROMPT]}
ANSWER: dict[str, Any] = {
    "prompt": 0, "index": 0, "finish_reason": "stop", "text": "4", "rewards": {}, "remarks": {}, "failed": [],
    "reward": 1.0, "why_not": "",
}  # fmt: skip
EPISODE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
    "turns": 1, "token_ids": [1], "written": [True],
}  # fmt: skip
TOKENS = {"lengths": np.array([2]), "token_ids": np.array([1, 2], dtype=np.int32)}


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder: no model is needed."""
    return tmp_path_factory.mktemp("nothing") / "here"


def text(*lines: object) -> str:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def asked(content: str, words: Sequence[str], folder: Path) -> Sequence[str]:
    (folder / FILE).write_text(content, encoding="utf-8")
    return words


def spoiled(spoil: Callable[[Path], None], words: Sequence[str], folder: Path) -> Sequence[str]:
    asked(text(ROW), words, folder)
    spoil(folder / FILE)
    return words


def with_tokens(tokens: dict[str, np.ndarray], spoil: Callable[[Path], object], folder: Path) -> Sequence[str]:
    """A round with a file of tokens beside it."""
    beside = (folder / FILE).with_suffix(".safetensors")
    save_file(tokens, beside)
    spoil(beside)
    return asked(text(HEAD, ANSWER), REWARDS, folder)


LINES: dict[str, tuple[object, str]] = {
    "lists without end": ("[" * 100_000, "refused"),
    "objects without end": ('{"a":' * 100_000, "refused"),
    "150 levels": ({**ROW, "more": json.loads("[" * 150 + "]" * 150)}, "refused"),
    "5,000 digits": ("9" * 5000, "refused"),
    "half of a surrogate pair": ({**ROW, "completion": "\ud800"}, "refused"),
    "half of a surrogate pair in a column": ({**ROW, "solution": ["\udfff"]}, "refused"),
    "half of a surrogate pair in a name": ({**ROW, "\udfff": 1}, "refused"),
    "a whole surrogate pair": ({**ROW, "completion": "\U0001f600"}, "works"),
    "other separators of lines": (json.dumps({**ROW, "completion": "a\u2028b\x85c"}, ensure_ascii=False), "works"),
    "a list": ([1], "refused"),
    "an empty object": ({}, "refused"),
    "messages that are numbers": ({**ROW, "messages": [5]}, "refused"),
    "a message without a content": ({**ROW, "messages": [{"role": "user"}]}, "refused"),
    "a message without a role": ({**ROW, "messages": [{"content": "a"}]}, "refused"),
    "an answer that is null": ({"messages": [{"role": "assistant", "content": None}]}, "refused"),
    "an answer that is a list": ({"messages": [{"role": "assistant", "content": [1]}]}, "refused"),
    "tokens that are a number": ({**ROW, "completion_ids": 5}, "refused"),
    "tokens that are a text": ({**ROW, "completion_ids": "abc"}, "refused"),
    "tokens that are null": ({**ROW, "completion_ids": [None]}, "refused"),
    "tokens of 30 digits": ({**ROW, "completion_ids": [10**30]}, "refused"),
    "escape codes": ({**ROW, "completion": "\x1b[2J\x07"}, "works"),
}
CASES = [
    Case(
        f"{words[0]}, line {number}: {name}",
        partial(asked, text(*before, line), words),
        expected,
        (f"{FILE}, line {number}",),
        leaves=("*",),
    )  # type: ignore[arg-type]
    for words, number, before in ((REWARDS, 1, ()), (SAMPLE, 2, (ROW,)))
    for name, (line, expected) in LINES.items()
]
CASES += [
    Case(f"{words[0]}: {name}", partial(spoiled, spoil, words), "refused", (FILE,))
    for words in (REWARDS, SAMPLE)
    for name, spoil in drawn(words[0], {**NOT_A_FILE, **NOT_AN_OBJECT}.items(), 8)
]

# ---------------------------------------------------------------- rounds


def judged(rounds: Sequence[tuple[object, object]], nothing: Path) -> None:
    nothing.mkdir(exist_ok=True)
    judge_all(
        [
            Case(line, partial(asked, line, REWARDS), "either", (FILE, "line "), leaves=("*",))
            for line in (text(head, answer) for head, answer in rounds)
        ],
        nothing,
    )


@pytest.mark.parametrize("key", ["messages", "columns"])
def test_wrong_value_of_a_prompt_is_answered_clearly(key: str, nothing: Path) -> None:
    others = {name: value for name, value in PROMPT.items() if name != key}
    prompts = [[others], *([{**PROMPT, key: value}] for value in wrong(key, 5)), *wrong("prompts", 3)]
    judged([({**HEAD, "prompts": each}, ANSWER) for each in prompts], nothing)


@pytest.mark.parametrize("key", ["prompt", "text", "finish_reason", "episode"])
def test_wrong_value_of_an_answer_is_answered_clearly(key: str, nothing: Path) -> None:
    others = {name: value for name, value in ANSWER.items() if name != key}
    judged([(HEAD, others), *((HEAD, {**ANSWER, key: value}) for value in wrong(key, 6))], nothing)


@pytest.mark.parametrize("key", EPISODE)
def test_wrong_value_of_an_episode_is_answered_clearly(key: str, nothing: Path) -> None:
    episodes = [{**EPISODE, "more": 1}, *({**EPISODE, key: value} for value in wrong(key, 6))]
    judged([(HEAD, {**ANSWER, "episode": each}) for each in episodes], nothing)


ARRAYS: dict[str, dict[str, np.ndarray]] = {
    "as they should be": TOKENS,
    "of a negative length": {**TOKENS, "lengths": np.array([-5])},
    "of a length beyond them": {**TOKENS, "lengths": np.array([10**15])},
    "without a dimension": {"lengths": np.array(2), "token_ids": np.array(2)},
    "with a dimension too many": {"lengths": np.array([[2]]), "token_ids": np.array([[1, 2]])},
    "that are none": {"lengths": np.zeros(0, np.int64), "token_ids": np.zeros(0, np.int32)},
    "under other names": {"more": np.zeros(3)},
}
CASES += [Case(f"tokens {name}", partial(with_tokens, held, bool), "works") for name, held in ARRAYS.items()]
CASES += [
    Case(f"tokens: {name}", partial(with_tokens, TOKENS, spoil), "works", leaves=("*",))
    for name, spoil in drawn("tokens", {**NOT_A_FILE, **NOT_AN_OBJECT}.items(), 8)
    if name != "UTF-16"
]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_a_file_of_answers_is_scored_or_refused_by_its_line(case: Case, nothing: Path) -> None:
    nothing.mkdir(exist_ok=True)
    judge(case, nothing)


@pytest.mark.parametrize("name", ["a pipe", "3 GiB of nothing", "a link to a device that never ends"])
def test_what_is_no_file_of_answers_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / FILE
    file.write_text(text(ROW), encoding="utf-8")
    NOT_A_FILE[name](file)
    with pytest.raises(DataError, match=FILE):
        read_completions(file)


def test_a_round_whose_texts_hold_other_separators_of_lines_is_read_back(tmp_path: Path) -> None:
    prompt = Prompt(0, 0, np.array([1], np.int32), [{"role": "user", "content": "a\u2028b"}], {"note": "c\x85d"})
    answer = RolloutCompletion(0, 0, np.array([2, 3], np.int32), np.zeros(2, np.float32), "stop", "e\u2029f\x1cg")
    write_round(tmp_path, Round(0, 0, [prompt], [answer]), "made so")
    found = read_round(tmp_path, 0, "made so")
    assert found is not None
    assert [each.messages for each in found.prompts] == [prompt.messages]
    assert [each.text for each in found.answers] == [answer.text]
    assert read_completions(tmp_path / "round-000000.jsonl")[0].completion == answer.text
