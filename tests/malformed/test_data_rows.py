"""Rows of data sets with a value of the wrong type, size, depth or encoding at every key that is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, Expected, judge
from spoil import Keys, put
from strategies import examples

VALUES = (
    *("null", "0", "-1.5", '""', '"a text"', '"a \\u0000 b"', '"\\u001b[2J\\u0007"', "", "{}", "[]", "[null, null]"),
    *('"[1, {\\"a\\": null}]"', '"{\\"a\\": "', '[[], [[1], ["a"]]]', '["ab", "cd"]'),
    '{"role": 1, "content": {"text": []}}',
)
"""What may be refused at some keys, as JSON or what claims to be."""
LONG = (json.dumps("x" * 3000), json.dumps("[" * 1500 + "]" * 1500))
"""What is too long for a prompt."""
NEVER_LEARNED = (
    *("1e400", "NaN", "9" * 400, "9" * 5000, '"a \\ud800 b"', '{"\\udfff": 1}'),
    *("[" * 150 + "]" * 150, "[" * 100_000 + "]" * 100_000),
)
"""Of these no sample can be made, wherever they stand and something of the row is read from there."""

PROMPT = {"role": "user", "content": "What is two and two?"}
RESPONSE = {"role": "assistant", "content": "Four."}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TALK: dict[str, Any] = {
    "messages": [PROMPT, {**RESPONSE, "loss": 1, "reasoning_content": "Hm."}],
    "system": "Be brief.",
    "tools": [],
    "weight": 0.5,
}
CALLING: dict[str, Any] = {
    "messages": [PROMPT, {**RESPONSE, "tool_calls": [CALL]}, {"role": "tool", "content": "4"}, RESPONSE],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
}
SHARED: dict[str, Any] = {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}
PAIRS: dict[str, Any] = {"instruction": "Add.", "input": "2, 2", "output": "4", "history": [["a", "b"]], "images": []}
RANKED: dict[str, Any] = {"messages": [PROMPT, RESPONSE], "rejected_response": "Five.", "margin": 1.0}
REJECTED: dict[str, Any] = {"messages": [PROMPT, RESPONSE], "rejected_messages": [PROMPT, {**RESPONSE, "content": "5"}]}
CHOSEN: dict[str, Any] = {"prompt": "Two and two?", "chosen": "4", "rejected": "5"}
LISTED: dict[str, Any] = {"chosen": [PROMPT, RESPONSE], "rejected": [PROMPT, {**RESPONSE, "content": "5"}]}
JUDGED: dict[str, Any] = {"query": "Two and two?", "response": "4", "label": True}

CALLED = ("messages", 1, "tool_calls")
READ: dict[str, list[tuple[dict[str, Any], list[Keys]]]] = {
    "sft": [
        (TALK, [("messages",), ("messages", 0), ("messages", 0, "role"), ("messages", 0, "content")]),
        (TALK, [("messages", 1, "content"), ("messages", 1, "reasoning_content"), ("messages", 1, "loss")]),
        (TALK, [("weight",), ("system",), ("tools",)]),
        (CALLING, [("tools", 0), CALLED, (*CALLED, 0), (*CALLED, 0, "function"), (*CALLED, 0, "function", "name")]),
        (CALLING, [(*CALLED, 0, "function", "arguments"), ("messages", 2, "content")]),
        (SHARED, [("conversations",), ("conversations", 1, "from"), ("conversations", 1, "value")]),
        (PAIRS, [("instruction",), ("input",), ("output",), ("history",), ("history", 0), ("images",)]),
    ],
    "pt": [({"text": "Once upon a time."}, [("text",)])],
    "dpo": [
        (RANKED, [("rejected_response",), ("margin",)]),
        (REJECTED, [("rejected_messages",)]),
        (CHOSEN, [("prompt",), ("chosen",)]),
        (LISTED, [("rejected",)]),
    ],
    "kto": [(JUDGED, [("label",), ("response",)])],
}
"""The objective, good rows, and the keys in them that are read."""
COMMANDS = {"dpo": ("rlhf", "--rlhf_type", "dpo"), "kto": ("rlhf", "--rlhf_type", "kto")}
QUESTIONS: list[tuple[dict[str, Any], Keys]] = [
    ({"messages": [PROMPT]}, ("messages",)),
    ({"messages": [PROMPT]}, ("messages", 0)),
    ({"messages": [PROMPT]}, ("messages", 0, "content")),
    ({"query": "Two and two?", "response": "4"}, ("query",)),
    ({"query": "Two and two?", "response": "4"}, ("response",)),
    ({"query": "Two and two?", "response": "4", "system": ""}, ("system",)),
    ({"query": "Two and two?", "response": "4", "note": ""}, ("note",)),
]
ASKING = (["infer", "--max_new_tokens", "1"], ["eval", "--max_new_tokens", "1"], ["eval", "--metric", "loss"])
UNREAD = {("images",), ("messages", 1, "reasoning_content")}
"""What may hold anything, since nothing is learned or generated from there."""

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Renders tools and reasoning, which the tiny model's own template does not."""
SLOT = "THE VALUE GOES HERE"


def _line(row: dict[str, Any], keys: Keys, value: str) -> str:
    """Return a line in which the value at `keys` is replaced by some JSON."""
    return json.dumps(put(row, keys, SLOT)).replace(json.dumps(SLOT), value)


def _training(objective: str, row: dict[str, Any], line: str, folder: Path) -> list[str]:
    """Show three samples, the last of which is the spoiled one."""
    good = json.dumps(row)
    (folder / "rows.jsonl").write_text(f"{good}\n{good}\n{line}\n", encoding="utf-8")
    (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    flags = ["--model", "model", "--model.chat_template", "template.jinja", "--dataset", "rows.jsonl", "--strict"]
    command = COMMANDS.get(objective, (objective,))
    return ["config", "show", *command, *flags, "--max_length", "4096", "--sample", "3"]


def _inference(argv: list[str], line: str, folder: Path) -> list[str]:
    (folder / "rows.jsonl").write_text(f'{{"query": "Hello", "response": "Hi"}}\n{line}\n', encoding="utf-8")
    return [*argv, "--model", "model", "--dataset", "rows.jsonl"]


values = st.sampled_from((*VALUES, *NEVER_LEARNED))
ROWS = [(each, row, keys) for each, read in READ.items() for row, each_keys in read for keys in each_keys]


@examples(50)
@given(st.sampled_from(ROWS), values | st.sampled_from(LONG))
def test_row_is_learned_or_refused_by_its_line(
    template: Path, read: tuple[str, dict[str, Any], Keys], value: str
) -> None:
    objective, row, keys = read
    expected: Expected = "refused" if value in NEVER_LEARNED and keys not in UNREAD else "either"
    build = partial(_training, objective, row, _line(row, keys, value))
    judge(Case(f"{keys} is {value:.40}", build, expected, ("rows.jsonl:3",)), template)


@examples(50)
@given(st.sampled_from(QUESTIONS), values, st.sampled_from(ASKING))
def test_question_is_processed_or_refused_by_its_line(
    template: Path, question: tuple[dict[str, Any], Keys], value: str, argv: list[str]
) -> None:
    build = partial(_inference, argv, _line(*question, value))
    expected: Expected = "refused" if value in NEVER_LEARNED and question[1] != ("note",) else "either"
    expected = expected if argv[0] == "infer" else "either"  # an evaluation leaves a row out
    judge(Case(f"{question[1]} is {value:.40}", build, expected, ("rows.jsonl",)), template)


@pytest.mark.parametrize("label", [[1], "a\0b", [1] * 50_000], ids=["list", "NUL", "long list"])
def test_invalid_class_is_refused(label: object, template: Path) -> None:
    def build(folder: Path) -> Sequence[str]:
        rows = [{"text": "Good.", "label": 1}, {"text": "Bad.", "label": label}]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        task = ["--model.task", "seq_cls", "--model.num_labels", "2"]
        return ["config", "show", "sft", "--model", "model", "--dataset", "rows.jsonl", *task, "--sample", "2"]

    judge(Case("an invalid class", build, names=("rows.jsonl:2",)), template)
