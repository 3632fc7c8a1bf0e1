"""Rows of data sets with a value of the wrong type, size, depth or encoding in every place that is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from draws import drawn, judge_all
from judge import Case, judge, sampled

VALUES: dict[str, str] = {
    "null": "null",
    "zero": "0",
    "negative": "-1.5",
    "infinite": "1e400",
    "NaN": "NaN",
    "an integer of 400 digits": "9" * 400,
    "an integer of 5,000 digits": "9" * 5000,
    "an empty text": '""',
    "a text": '"a text"',
    "half of a surrogate pair": '"a \\ud800 b"',
    "a key of half a surrogate pair": '{"\\udfff": 1}',
    "NUL": '"a \\u0000 b"',
    "escape codes": '"\\u001b[2J\\u0007"',
    "JSON in a text": '"[1, {\\"a\\": null}]"',
    "broken JSON in a text": '"{\\"a\\": "',
    "deep JSON in a text": json.dumps("[" * 1500 + "]" * 1500),
    "an empty list": "[]",
    "a list of lists": '[[], [[1], ["a"]]]',
    "a list of null": "[null, null]",
    "a list of pairs of letters": '["ab", "cd"]',
    "an empty object": "{}",
    "an object": '{"role": 1, "content": {"text": []}}',
    "150 levels": "[" * 150 + "]" * 150,
    "100,000 levels": "[" * 100_000 + "]" * 100_000,
    "no value": "",
    "3,000 letters": json.dumps("x" * 3000),
}
"""What is put into each place, as JSON or what claims to be."""

PROMPT = {"role": "user", "content": "What is two and two?"}
ANSWER = {"role": "assistant", "content": "Four."}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TALK: dict[str, Any] = {
    "messages": [PROMPT, {**ANSWER, "loss": 1, "reasoning_content": "Hm."}],
    "system": "Be brief.",
    "tools": [],
}
CALLING: dict[str, Any] = {
    "messages": [PROMPT, {**ANSWER, "tool_calls": [CALL]}, {"role": "tool", "content": "4"}, ANSWER],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
}
SHARED: dict[str, Any] = {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}
PAIRS: dict[str, Any] = {"instruction": "Add.", "input": "2, 2", "output": "4", "history": [["a", "b"]], "images": []}
RANKED: dict[str, Any] = {"messages": [PROMPT, ANSWER], "rejected_response": "Five.", "margin": 1.0}
REJECTED: dict[str, Any] = {"messages": [PROMPT, ANSWER], "rejected_messages": [PROMPT, {**ANSWER, "content": "5"}]}
CHOSEN: dict[str, Any] = {"prompt": "Two and two?", "chosen": "4", "rejected": "5"}
LISTED: dict[str, Any] = {"chosen": [PROMPT, ANSWER], "rejected": [PROMPT, {**ANSWER, "content": "5"}]}
JUDGED: dict[str, Any] = {"query": "Two and two?", "response": "4", "label": True}

SFT, PT, DPO, KTO = ["sft"], ["pt"], ["rlhf", "--rlhf_type", "dpo"], ["rlhf", "--rlhf_type", "kto"]
PLACES: list[tuple[list[str], dict[str, Any], tuple[str | int, ...]]] = [
    (SFT, TALK, ("messages",)),
    (SFT, TALK, ("messages", 0)),
    (SFT, TALK, ("messages", 0, "role")),
    (SFT, TALK, ("messages", 0, "content")),
    (SFT, TALK, ("messages", 1, "content")),
    (SFT, TALK, ("messages", 1, "reasoning_content")),
    (SFT, TALK, ("messages", 1, "loss")),
    (SFT, {**TALK, "weight": 0.5}, ("weight",)),
    (SFT, TALK, ("system",)),
    (SFT, TALK, ("tools",)),
    (SFT, CALLING, ("tools", 0)),
    (SFT, CALLING, ("messages", 1, "tool_calls")),
    (SFT, CALLING, ("messages", 1, "tool_calls", 0)),
    (SFT, CALLING, ("messages", 1, "tool_calls", 0, "function")),
    (SFT, CALLING, ("messages", 1, "tool_calls", 0, "function", "name")),
    (SFT, CALLING, ("messages", 1, "tool_calls", 0, "function", "arguments")),
    (SFT, CALLING, ("messages", 2, "content")),
    (SFT, SHARED, ("conversations",)),
    (SFT, SHARED, ("conversations", 1, "from")),
    (SFT, SHARED, ("conversations", 1, "value")),
    (SFT, PAIRS, ("instruction",)),
    (SFT, PAIRS, ("input",)),
    (SFT, PAIRS, ("output",)),
    (SFT, PAIRS, ("history",)),
    (SFT, PAIRS, ("history", 0)),
    (SFT, PAIRS, ("images",)),
    (PT, {"text": "Once upon a time."}, ("text",)),
    (DPO, RANKED, ("rejected_response",)),
    (DPO, RANKED, ("margin",)),
    (DPO, REJECTED, ("rejected_messages",)),
    (DPO, CHOSEN, ("prompt",)),
    (DPO, CHOSEN, ("chosen",)),
    (DPO, LISTED, ("rejected",)),
    (KTO, JUDGED, ("label",)),
    (KTO, JUDGED, ("response",)),
]
"""The command, a good row, and the place in it that is replaced."""

ASKED: list[tuple[dict[str, Any], tuple[str | int, ...]]] = [
    ({"messages": [PROMPT]}, ("messages",)),
    ({"messages": [PROMPT]}, ("messages", 0)),
    ({"messages": [PROMPT]}, ("messages", 0, "content")),
    ({"query": "Two and two?"}, ("query",)),
    ({"query": "Two and two?", "system": ""}, ("system",)),
    ({"query": "Two and two?", "note": ""}, ("note",)),
]
"""The same for questions."""

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Has a place for tools and reasoning, which the tiny model's own template has not."""

SLOT = "THE VALUE GOES HERE"


def spoiled(row: dict[str, Any], place: Sequence[str | int], value: str) -> str:
    """A line in which the value at `place` is replaced by some JSON."""
    row = copy.deepcopy(row)
    target: Any = row
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = SLOT
    return json.dumps(row).replace(json.dumps(SLOT), value)


def training(command: list[str], row: dict[str, Any], line: str) -> Callable[[Path], list[str]]:
    """Shows three samples, the last of which is the spoiled one."""

    def build(folder: Path) -> list[str]:
        good = json.dumps(row)
        (folder / "rows.jsonl").write_text(f"{good}\n{good}\n{line}\n", encoding="utf-8")
        (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
        flags = [
            "--model",
            "model",
            "--model.chat_template",
            "template.jinja",
            "--dataset",
            "rows.jsonl",
            "--strict",
            "--max_length",
            "4096",
        ]
        return ["config", "show", *command, *flags, "--sample", "3"]

    return build


def asking(line: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "rows.jsonl").write_text(f'{{"query": "Hello"}}\n{line}\n', encoding="utf-8")
        return ["infer", "--model", "model", "--dataset", "rows.jsonl", "--max_new_tokens", "1"]

    return build


def named(place: Sequence[str | int]) -> str:
    return ".".join(map(str, place))


NEVER_LEARNED = {
    "infinite",
    "NaN",
    "an integer of 400 digits",
    "an integer of 5,000 digits",
    "half of a surrogate pair",
    "a key of half a surrogate pair",
    "150 levels",
    "100,000 levels",
}
"""Of these no sample can be made, wherever they stand and something of the row is read from there."""
UNREAD = ("images", "messages.1.reasoning_content", "note")
"""What may hold anything, since nothing is learned or asked from there."""


def expected(place: Sequence[str | int], value: str) -> Literal["refused", "either"]:
    return "refused" if value in NEVER_LEARNED and named(place) not in UNREAD else "either"


@pytest.mark.parametrize(
    ("command", "row", "place"), PLACES, ids=[f"{command[-1]} {named(place)}" for command, _, place in PLACES]
)
def test_a_row_is_learned_from_or_refused_by_its_line(
    command: list[str], row: dict[str, Any], place: tuple[str | int, ...], template: Path
) -> None:
    title = f"{command[-1]} {named(place)}"
    names = [*drawn(title, sorted(VALUES.keys() - NEVER_LEARNED), 7), *drawn(title, sorted(NEVER_LEARNED), 3)]
    builds = {name: training(command, row, spoiled(row, place, VALUES[name])) for name in names}
    cases = [Case(name, build, expected(place, name), ("rows.jsonl:3",)) for name, build in builds.items()]
    judge_all(cases, template)


@pytest.mark.parametrize(("row", "place"), ASKED, ids=[named(place) for _, place in ASKED])
def test_a_question_is_asked_or_refused_by_its_line(
    row: dict[str, Any], place: tuple[str | int, ...], template: Path
) -> None:
    usual = sorted(VALUES.keys() - NEVER_LEARNED - {"3,000 letters", "deep JSON in a text"})  # too long
    names = [*drawn(named(place), usual, 5), *drawn(named(place), sorted(NEVER_LEARNED), 2)]
    lines = {name: spoiled(row, place, VALUES[name]) for name in names}
    cases = [Case(name, asking(line), expected(place, name), ("rows.jsonl:2",)) for name, line in lines.items()]
    judge_all(cases, template)


def labelled(label: object, folder: Path) -> Sequence[str]:
    """Shows texts of which the second has this label."""
    rows = [{"text": "Good.", "label": 1}, {"text": "Bad.", "label": label}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = ["--model.task", "seq_cls", "--model.num_labels", "2"]
    return ["config", "show", "sft", "--model", "model", "--dataset", "rows.jsonl", *task, "--sample", "2"]


CASES = [
    Case(f"a class that is {name}", partial(labelled, label), "refused", ("rows.jsonl:2",))
    for name, label in (("a list", [1]), ("a text with NUL", "a\0b"), ("a long list", [1] * 50_000))
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_label_that_is_no_class_is_refused(case: Case, template: Path) -> None:
    judge(case, template)
