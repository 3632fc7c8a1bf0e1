"""Files of stored completions, and rounds of a run, that are damaged or hostile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, Table, judge, sampled, table
from safetensors.numpy import save_file
from spoil import BAD, Spoil, put
from strategies import bad_file, examples, spoiled

from swift.errors import DataError
from swift_rl.rewards.stored import read_completions
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import read_round, write_round

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
COMPLETION: dict[str, Any] = {
    "prompt": 0, "index": 0, "finish_reason": "stop", "text": "4", "rewards": {}, "remarks": {}, "failed": [],
    "reward": 1.0, "why_not": "",
}  # fmt: skip
EPISODE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
    "turns": 1, "token_ids": [1], "written": [True],
}  # fmt: skip
ROUNDS = ([HEAD, COMPLETION], [HEAD, {**COMPLETION, "episode": EPISODE}])
TOKENS = {"lengths": np.array([2]), "token_ids": np.array([1, 2], dtype=np.int32)}


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder: no model is needed."""
    folder = tmp_path_factory.mktemp("nothing") / "here"
    folder.mkdir()
    return folder


def _lines(*lines: object) -> str:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def _written(content: str, argv: Sequence[str], folder: Path) -> Sequence[str]:
    (folder / FILE).write_text(content, encoding="utf-8")
    return argv


def _with_tokens(tokens: dict[str, np.ndarray], spoil: Spoil, folder: Path) -> Sequence[str]:
    """Write a round, and a file of its tokens."""
    file = (folder / FILE).with_suffix(".safetensors")
    save_file(tokens, file)
    spoil(file)
    return _written(_lines(HEAD, COMPLETION), REWARDS, folder)


AT = f"{FILE}, line 1"
SEPARATED = json.dumps({**ROW, "completion": "a\u2028b\x85c"}, ensure_ascii=False)
LINES: Table[object] = {
    "5,000 digits": ("9" * 5000, AT),
    "an unpaired surrogate in a name": ({**ROW, "\udfff": 1}, AT),
    "a surrogate pair": ({**ROW, "completion": "\U0001f600"},),
    "other separators of lines": (SEPARATED,),
    "tokens of 30 digits": ({**ROW, "completion_ids": [10**30]}, AT),
    "escape codes": ({**ROW, "completion": "\x1b[2J\x07"},),
}
ARRAYS: Table[dict[str, np.ndarray]] = {
    "whole": (TOKENS,),
    "of a negative length": ({**TOKENS, "lengths": np.array([-5])},),
    "of a length out of bounds": ({**TOKENS, "lengths": np.array([10**15])},),
    "under other names": ({"more": np.zeros(3)},),
}
CASES = [
    *table("a line", LINES, lambda line: partial(_written, _lines(line), REWARDS)),
    *table("tokens", ARRAYS, lambda held: partial(_with_tokens, held, bool)),
]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_a_file_of_completions_is_scored_or_refused(case: Case, nothing: Path) -> None:
    judge(case, nothing)


@examples(20)
@given(bad_file, st.sampled_from([REWARDS, SAMPLE]))
def test_bad_file_of_completions_is_refused(nothing: Path, how: str, argv: list[str]) -> None:
    def build(folder: Path) -> Sequence[str]:
        _written(_lines(ROW), argv, folder)
        BAD[how](folder / FILE)
        return argv

    judge(Case(how, build, names=(FILE,)), nothing)


@examples(8)
@given(bad_file)
def test_bad_file_of_tokens_is_ignored(nothing: Path, how: str) -> None:
    if how != "UTF-16":
        judge(Case(how, partial(_with_tokens, TOKENS, BAD[how]), "works", leaves=("*",)), nothing)


@examples(50)
@given(st.sampled_from((*ROUNDS, [ROW])).flatmap(lambda held: st.tuples(st.just(held), spoiled(held))))
def test_wrong_value_in_stored_completions_is_named(tmp_path: Path, changed: tuple[Any, Any]) -> None:
    """What is read has the types that rewards are promised, or the error names file and line."""
    lines = put(changed[0], *changed[1])
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        items = read_completions(tmp_path / FILE)
    except DataError as error:
        items = []
        named = FILE in error.message
    else:
        named = True
    assert named
    for item in items:
        assert isinstance(item.completion, str)
        assert all(isinstance(message["role"], str) and "content" in message for message in item.messages)
        assert all(type(token) is int and token >= 0 for token in item.completion_ids)
        assert isinstance(item.finish_reason, str)
        assert isinstance(item.columns, dict)


def test_round_with_other_line_separators_is_read_back(tmp_path: Path) -> None:
    prompt = Prompt(0, 0, np.array([1], np.int32), [{"role": "user", "content": "a\u2028b"}], {"note": "c\x85d"})
    completion = RolloutCompletion(0, 0, np.array([2, 3], np.int32), np.zeros(2, np.float32), "stop", "e\u2029f\x1cg")
    write_round(tmp_path, Round(0, 0, [prompt], [completion]), "made so")
    found = read_round(tmp_path, 0, "made so")
    assert found is not None
    assert [each.messages for each in found.prompts] == [prompt.messages]
    assert [each.text for each in found.completions] == [completion.text]
    assert read_completions(tmp_path / "round-000000.jsonl")[0].completion == completion.text
