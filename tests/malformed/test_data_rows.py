"""Rows of data sets with a value of the wrong type, size, depth or encoding in every keys that is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge
from spoil import Keys, put
from strategies import examples

VALUES: dict[str, str] = {
    "null": "null",
    "zero": "0",
    "negative": "-1.5",
    "an empty string": '""',
    "a string": '"a text"',
    "NUL": '"a \\u0000 b"',
    "escape codes": '"\\u001b[2J\\u0007"',
    "JSON in a string": '"[1, {\\"a\\": null}]"',
    "malformed JSON in a string": '"{\\"a\\": "',
    "deep JSON in a string": json.dumps("[" * 1500 + "]" * 1500),
    "an empty list": "[]",
    "a list of lists": '[[], [[1], ["a"]]]',
    "a list of null": "[null, null]",
    "a list of pairs of letters": '["ab", "cd"]',
    "an empty object": "{}",
    "an object": '{"role": 1, "content": {"text": []}}',
    "no value": "",
    "3,000 letters": json.dumps("x" * 3000),
}
"""What may be refused in some each_keys, as JSON or what claims to be."""
NEVER_LEARNED = {
    "infinite": "1e400",
    "NaN": "NaN",
    "an integer of 400 digits": "9" * 400,
    "an integer of 5,000 digits": "9" * 5000,
    "an unpaired surrogate": '"a \\ud800 b"',
    "a key with an unpaired surrogate": '{"\\udfff": 1}',
    "150 levels": "[" * 150 + "]" * 150,
    "100,000 levels": "[" * 100_000 + "]" * 100_000,
}
"""Of these no sample can be made, wherever they stand and something of the row is read from there."""
LONG = {"3,000 letters", "deep JSON in a string"}
"""What is too long for a prompt."""

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
"""The objective, good rows, and the each_keys in them that are read."""
COMMANDS = {"dpo": ("rlhf", "--rlhf_type", "dpo"), "kto": ("rlhf", "--rlhf_type", "kto")}
QUESTIONS: list[tuple[dict[str, Any], Keys]] = [
    ({"messages": [PROMPT]}, ("messages",)),
    ({"messages": [PROMPT]}, ("messages", 0)),
    ({"messages": [PROMPT]}, ("messages", 0, "content")),
    ({"query": "Two and two?"}, ("query",)),
    ({"query": "Two and two?", "system": ""}, ("system",)),
    ({"query": "Two and two?", "note": ""}, ("note",)),
]
UNREAD = {("images",), ("messages", 1, "reasoning_content"), ("note",)}
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


def _inference(line: str, folder: Path) -> list[str]:
    (folder / "rows.jsonl").write_text(f'{{"query": "Hello"}}\n{line}\n', encoding="utf-8")
    return ["infer", "--model", "model", "--dataset", "rows.jsonl", "--max_new_tokens", "1"]


def _judge(keys: Keys, value: str, number: int, build: Callable[[Path], list[str]], template: Path) -> None:
    never = value in NEVER_LEARNED and keys not in UNREAD
    expected: Literal["refused", "either"] = "refused" if never else "either"
    judge(Case(f"{keys} is {value}", build, expected, (f"rows.jsonl:{number}",)), template)


values = st.sampled_from(sorted(VALUES)) | st.sampled_from(sorted(NEVER_LEARNED))


ROWS = [(each, row, keys) for each, read in READ.items() for row, each_keys in read for keys in each_keys]


@examples(160)
@given(st.sampled_from(ROWS), values)
def test_row_is_learned_or_refused_by_its_line(
    template: Path, read: tuple[str, dict[str, Any], Keys], value: str
) -> None:
    objective, row, keys = read
    line = _line(row, keys, {**VALUES, **NEVER_LEARNED}[value])
    _judge(keys, value, 3, partial(_training, objective, row, line), template)


@examples(40)
@given(st.sampled_from(QUESTIONS), values.filter(lambda value: value not in LONG))
def test_question_is_processed_or_refused_by_its_line(
    template: Path, question: tuple[dict[str, Any], Keys], value: str
) -> None:
    line = _line(*question, {**VALUES, **NEVER_LEARNED}[value])
    _judge(question[1], value, 2, partial(_inference, line), template)


@pytest.mark.parametrize("label", [[1], "a\0b", [1] * 50_000], ids=["list", "NUL", "long list"])
def test_invalid_class_is_refused(label: object, template: Path) -> None:
    def build(folder: Path) -> Sequence[str]:
        rows = [{"text": "Good.", "label": 1}, {"text": "Bad.", "label": label}]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        task = ["--model.task", "seq_cls", "--model.num_labels", "2"]
        return ["config", "show", "sft", "--model", "model", "--dataset", "rows.jsonl", *task, "--sample", "2"]

    judge(Case("an invalid class", build, names=("rows.jsonl:2",)), template)
