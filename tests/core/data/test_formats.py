"""Formats: how rows of all kinds become conversations."""

from __future__ import annotations

from typing import Any

import pytest
from named_encodings import encoding_of

from swift.data.conversation import ROLES, Conversation, RoleTags, Unusable
from swift.data.formats import rename
from swift.errors import DataError

QA = [("user", "q"), ("assistant", "a")]
CALL = '{"name": "add", "arguments": {"a": 1}}'


def said(conversation: Conversation | None) -> list[tuple[str, str]]:
    assert conversation is not None
    return [(message["role"], message["content"]) for message in conversation.messages]


def openai(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def sharegpt(*turns: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"from": role, "value": content} for role, content in turns]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": openai(*QA)}, QA),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, *openai(QA[1])]}, QA),
        ({"messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'}, QA),
        ({"conversations": sharegpt(("human", "q"), ("gpt", "a"))}, QA),
        ({"conversations": sharegpt(("human", "q"), ("gpt", "a")), "system": "s"}, [("system", "s"), *QA]),
        ({"messages": openai(("developer", "s"), *QA)}, [("system", "s"), *QA]),
        ({"instruction": "q", "output": "a"}, QA),
        ({"instruction": "q", "input": "", "output": "a"}, QA),
        ({"instruction": "q", "input": "more", "output": "a"}, [("user", "q\nmore"), ("assistant", "a")]),
        ({"query": "q", "response": "a", "system": "s"}, [("system", "s"), *QA]),
        ({"query": "q", "response": "a", "history": [["q0", "a0"]]}, [("user", "q0"), ("assistant", "a0"), *QA]),
        (
            {"query": "q", "response": "a", "history": [["q0", "a0"]], "tools": []},
            [("user", "q0"), ("assistant", "a0"), *QA],
        ),
        ({"prompt": "q", "completion": "a"}, QA),
        ({"prompt": openai(QA[0]), "completion": openai(QA[1])}, QA),
        ({"question": "q", "answer": "a"}, QA),
        ({"text": "a"}, [("assistant", "a")]),
    ],
)
def test_formats_are_detected(row: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert said(encoding_of("chat").understand(row, "row 1").conversation) == expected


def test_tool_call_messages_become_assistant_tool_calls() -> None:
    """Tool calls written as messages of their own become the assistant's."""
    turns = [("human", "1+1?"), ("gpt", "Let me see."), ("function_call", CALL), ("observation", "2"), ("gpt", "Two.")]
    conversation = encoding_of("chat").understand({"conversations": sharegpt(*turns)}, "row 1").conversation
    assert [role for role, _ in said(conversation)] == ["user", "assistant", "tool", "assistant"]
    assert conversation.messages[1]["content"] == "Let me see."
    assert conversation.messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]


def test_string_arguments_and_bare_tools_are_normalized() -> None:
    """OpenAI's string arguments become objects and bare tools get their wrapper."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    row = {
        "messages": [*openai(QA[0]), {"role": "assistant", "tool_calls": [call]}, *openai(("tool", "2"), QA[1])],
        "tools": [{"name": "add", "parameters": {}}],
    }
    conversation = encoding_of("chat").understand(row, "row 1").conversation
    assert conversation.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert conversation.tools == ({"type": "function", "function": {"name": "add", "parameters": {}}},)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": openai(QA[0])}, "roles out of order"),
        ({"messages": openai(*QA, QA[1])}, "roles out of order"),
        ({"messages": openai(QA[0], QA[0], QA[1])}, "roles out of order"),
        ({"messages": openai(*QA, ("system", "s"), *QA)}, "roles out of order"),
        ({"messages": openai(("tool", "2"), QA[1])}, "roles out of order"),
        ({"messages": openai(("narrator", "q"), QA[1])}, "unknown role"),
        ({"messages": openai(QA[0], ("assistant", " "))}, "empty completion"),
        ({"messages": openai(("user", ""), QA[1])}, "empty question"),
        ({"messages": ["q", "a"]}, "malformed message"),
        ({"messages": [{"role": "user", "content": 3}, *openai(QA[1])]}, "malformed message"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, *openai(QA[1])]}, "no images"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}, *openai(QA[1])]}, "no videos"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}, *openai(QA[1])]}, "not only text"),
        ({"messages": [{"role": "user", "content": [{"type": ["image"]}]}, *openai(QA[1])]}, "not only text"),
        ({"messages": [*openai(QA[0]), {"role": "assistant", "content": "a", "loss": "x"}]}, "malformed message"),
        ({"messages": [{"role": "user", "content": "q", "loss": True}, *openai(QA[1])]}, "malformed message"),
        ({"messages": openai(("system", "s"), *QA), "system": "other"}, "two system messages"),
        ({"messages": openai(*QA), "tools": "[{"}, "malformed JSON"),
        ({"conversations": sharegpt(("human", "q"), ("function_call", "add(1)"))}, "malformed JSON"),
        ({"conversations": sharegpt(("human", "q"), ("function_call", '{"x": 1}'))}, "malformed tool call"),
        ({"instruction": "q", "output": ""}, "empty completion"),
        ({"instruction": "q", "output": 4}, "not a string"),
        ({"query": "q", "response": "a", "history": [["q0"]]}, "malformed history"),
    ],
)
def test_a_row_that_cannot_be_used_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable) as unusable:
        encoding_of("chat").understand(row, "row 1")
    assert unusable.value.reason == reason
    assert unusable.value.detail


GOOD, BAD = [("user", "q"), ("assistant", "good")], [("user", "q"), ("assistant", "bad")]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": openai(*GOOD), "rejected_response": "bad"},
        {"messages": openai(*GOOD), "rejected_messages": openai(*BAD)},
        {"chosen_messages": openai(*GOOD), "rejected_messages": openai(*BAD)},
        {"query": "q", "response": "good", "rejected_response": "bad"},
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": "q", "chosen": openai(*GOOD), "rejected": openai(*BAD)},
        {"prompt": openai(GOOD[0]), "chosen": openai(GOOD[1]), "rejected": openai(BAD[1])},
        {"prompt": "q", "chosen": openai(GOOD[1]), "rejected": openai(BAD[1])},
        {"chosen": openai(*GOOD), "rejected": openai(*BAD)},
        {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"},
        {
            "conversations": sharegpt(("human", "q")),
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        },
    ],
)
def test_pairs_are_detected(row: dict[str, Any]) -> None:
    sample = encoding_of("preference").understand(row, "row 1")
    assert said(sample.conversation) == GOOD
    assert said(sample.rejected) == BAD
    assert not sample.extras


@pytest.mark.parametrize(
    ("encoding", "row", "reason"),
    [
        ("preference", {"prompt": "q", "chosen": "same", "rejected": "same"}, "chosen equals rejected"),
        (
            "preference",
            {"chosen": openai(*GOOD), "rejected": openai(("user", "other"), BAD[1])},
            "chosen and rejected have different prompts",
        ),
        ("preference", {"prompt": "q", "chosen": "good", "rejected": "bad", "margin": "wide"}, "malformed margin"),
        ("kto", {"prompt": "q", "completion": "a", "label": "maybe"}, "malformed label"),
    ],
)
def test_unusable_pairs_and_labels_have_a_reason(encoding: str, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable) as unusable:
        encoding_of(encoding).understand(row, "row 1")
    assert unusable.value.reason == reason


def test_labels_are_read_as_truth() -> None:
    for label, value in ((True, 1.0), (False, 0.0), ("true", 1.0), ("False", 0.0), (1, 1.0)):
        row = {"prompt": "q", "completion": "a", "label": label}
        assert encoding_of("kto").understand(row, "r").values == {"label": value}


@pytest.mark.parametrize(
    ("row", "encoding", "message"),
    [
        ({"a": "q", "b": "a"}, "chat", "no known columns; the columns are a, b"),
        ({"messages": openai(*QA)}, "preference", "no rejected completion"),
        ({"chosen": "good", "rejected": "bad"}, "preference", "no question"),
        ({"messages": openai(*QA)}, "kto", "no boolean column 'label'"),
    ],
)
def test_unknown_format_lists_columns_and_known_formats(row: dict[str, Any], encoding: str, message: str) -> None:
    """An unknown format says which columns there are and what is understood."""
    with pytest.raises(DataError, match=message) as error:
        encoding_of(encoding).check_format(row, "data.jsonl:1")
    assert error.value.message.startswith("data.jsonl:1: ")
    assert "messages (or conversations)" in str(error.value.hint)
    assert "--columns" in error.value.hint


def test_columns_are_renamed_and_empty_ones_are_not_there() -> None:
    assert rename({"q": "x", "a": "y", "n": None}, {"q": "query", "a": "response"}, "r") == {
        "query": "x",
        "response": "y",
    }


def test_two_columns_for_one_target_are_an_error() -> None:
    with pytest.raises(DataError, match="'query' and 'q' both mean 'query'"):
        rename({"query": "x", "q": "y"}, {"q": "query"}, "r")
    with pytest.raises(DataError, match="'instruction' and 'prompt' both mean"):
        encoding_of("chat").understand({"instruction": "x", "prompt": "y", "output": "z"}, "r")
    with pytest.raises(DataError, match="'messages' and 'conversations' both mean"):
        encoding_of("chat").understand({"messages": openai(*QA), "conversations": openai(*QA)}, "r")


def test_columns_that_no_format_uses_are_kept_as_extras() -> None:
    row = {"messages": openai(*QA), "solution": 42, "system": "s", "tools": None}
    assert encoding_of("chat").understand(rename(row, {}, "r"), "r").extras == {"solution": 42}


def test_roles_of_a_dataset_info_are_read_by_its_tags() -> None:
    tags = RoleTags(("who", "role"), ("what", "content"), {**ROLES, "kunde": "user", "helfer": "assistant"})
    messages = [{"who": "kunde", "what": "q"}, {"who": "helfer", "what": "good"}]
    assert said(encoding_of("chat").understand({"messages": messages}, "r", tags).conversation) == GOOD
    sample = encoding_of("preference").understand({"messages": messages, "rejected_response": "bad"}, "r", tags)
    assert said(sample.conversation) == GOOD
    assert said(sample.rejected) == BAD
