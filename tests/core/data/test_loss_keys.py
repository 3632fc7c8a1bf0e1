"""Keys of messages and columns of rows that decide about the loss: learned as they are meant, or counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from encode_row import encode_row, encoder_of, learned_runs
from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.contracts import ModelView
from swift.data import encode_corpus as tokenise
from swift.data.batch import Batch
from swift.data.conversation import Unusable
from swift.data.pipeline import PreparedData, prepare_data
from swift.data.report import DataReport
from swift.data.samples import Encoded
from swift.data.schedules import BatchLayout, EpochSchedule
from swift.errors import DataError
from swift.objectives.likelihood import LikelihoodOptions, Sft
from swift_testing.tokenizer import byte_tokenizer

THINKS = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{% endif %}{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Writes reasoning after the last question only, as Qwen3's does."""
NAMES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
    "{% if m.name and m.name != m.role %}{{ ' ' + m.name }}{% endif %}{{ '\\n' }}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HOSTILE = [math.nan, math.inf, -1, -0.5, 1e9, 10**400, "x", "nan", "-1", "", [], {}, [1.0]]
WEIGHT_KEYS = ["loss", "loss_scale", "weight", "loss_weight", "train"]


def user(content: str = "q?", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def bot(content: str = "A.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tokenizer_with(template: str | None) -> Any:
    tokenizer = byte_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def encoded(
    row: dict[str, Any], template: str | None = None, encoding: str = "chat", **section: Any
) -> tuple[Encoded, ...]:
    """Samples of one row."""
    return encode_row(encoder_of(tokenizer_with(template), encoding, **section), row)


def prepared(tmp_path: Path, rows: list[Any], template: str | None = None, **section: Any) -> PreparedData:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = DataSection(train=(str(path),), cache=tmp_path / "cache", **section)
    encoding = "chat"
    return prepare_data(settings, tokenizer_with(template), encoding=encoding_of(encoding), seed=1, say=lambda _: None)


def reported(tmp_path: Path, rows: list[Any], template: str | None = None, **section: Any) -> DataReport:
    """The report on rows, read whole; that of a stream must be the same, and so must a cached one."""
    report = prepared(tmp_path, rows, template, **section).report
    again = prepared(tmp_path, rows, template, **section).report
    stream = prepared(tmp_path, rows, template, streaming=True, **section).stream
    assert stream is not None
    list(stream.epoch(0))
    for other in (again, stream.report):
        for name in ("unused_keys", "without_reasoning", "formats", "unused_columns", "rejected"):
            assert getattr(other, name) == getattr(report, name), name
    return report


def learned(samples: tuple[Encoded, ...]) -> list[tuple[str, float]]:
    return [run for sample in samples for each in sample.segments for run in learned_runs(byte_tokenizer(), each)]


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(("key", "off"), [*zip(WEIGHT_KEYS, [False, 0, 0.0, "false", "0"], strict=True)])
def test_a_message_weighs_its_number(key: str, off: object) -> None:
    turns = [bot("no", **{key: off}), bot("yes", **{key: True}), bot("half", **{key: 0.5}), bot("two", **{key: "2"})]
    row = {"messages": [message for turn in turns for message in (user(**{key: 0.0}), turn)]}
    assert learned(encoded(row)) == [("yes<|im_end|>", 1.0), ("half<|im_end|>", 0.5), ("two<|im_end|>", 2.0)]


def test_two_weights_of_a_message_must_agree() -> None:
    assert learned(encoded({"messages": [user(), bot(weight=1, train=True)]})) == [("A.<|im_end|>", 1.0)]
    with pytest.raises(Unusable, match="'weight' and 'train' of message 2 differ"):
        encoded({"messages": [user(), bot(weight=1, train=False)]})


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:12])
def test_an_invalid_weight_is_a_reason(value: object) -> None:
    for key in WEIGHT_KEYS:
        with pytest.raises(Unusable, match=f"the '{key}' of message 2 is") as error:
            encoded({"messages": [user(), bot(**{key: value})]})
        assert error.value.reason == "malformed message"
    for column in ("weight", "sample_weight", "loss_weight", "loss_scale"):
        with pytest.raises(Unusable, match="the weight of the row is") as error:
            encoded({"messages": [user(), bot()], column: value})
        assert error.value.reason == "malformed weight"


def test_a_text_then_calls_need_one_weight() -> None:
    """One turn of the assistant in two messages, of which one is off, cannot be learned by half."""
    call = {"from": "function_call", "value": '{"name": "add", "arguments": {}}'}
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "loss_weight": 0.0}, call]
    with pytest.raises(Unusable, match="has another loss weight"):
        encoded({"conversations": [*turns, {"from": "observation", "value": "2"}, {"from": "gpt", "value": "a"}]})


@pytest.mark.parametrize(
    ("row", "encoding", "expected"),
    [
        ({"messages": [user(), bot("a", loss=0.5), user(), bot("b")]}, "chat", [("a", 0.125), ("b", 0.25)]),
        ({"prompt": "q", "completion": "a"}, "chat", [("a", 0.25)]),
        ({"text": "abc"}, "text", [("bc", 0.25)]),
        ({"messages": [bot("abc", loss=0.5)]}, "text", [("bc", 0.125)]),
    ],
)
def test_a_row_weight_scales_every_token(row: dict[str, Any], encoding: str, expected: list[Any]) -> None:
    for column in ("weight", "sample_weight"):
        made = learned(encoded({**row, column: 0.25}, encoding=encoding))
        assert made == [(f"{text}<|im_end|>", weight) for text, weight in expected]


def test_a_row_of_weight_0_teaches_nothing(tmp_path: Path) -> None:
    rows = [{"messages": [user(), bot()], "weight": weight} for weight in (1, 0, 0.5)]
    report = reported(tmp_path, rows)
    assert (report.samples, report.rejected["nothing to learn"].count) == (2, 1)
    assert report.unused_columns == []


@pytest.mark.parametrize("packing", [False, True])
def test_weighted_rows_give_torchs_loss(tmp_path: Path, packing: bool) -> None:
    """Over a global batch, in two slices, padded and packed: the sum of weight · -log p over the sum of weights."""
    rows = [
        {"messages": [user("one?"), bot("first")], "weight": 0.25},
        {"messages": [user("two?"), bot("a", weight=0.5), user(), bot("longer")], "weight": 3},
        {"messages": [user("three?"), bot("x" * 9)]},
        {"messages": [user("four?"), bot("no", train=False), user(), bot("yes")], "weight": "0.1"},
    ]
    answers = [[("first", 0.25)], [("a", 1.5), ("longer", 3.0)], [("x" * 9, 1.0)], [("no", 0.0), ("yes", 0.1)]]
    torch.manual_seed(0)
    table = torch.randn(400, 400, dtype=torch.float64).log_softmax(-1)  # a model that sees the last token alone

    expected = total = 0.0
    tokenizer = byte_tokenizer()
    for row, weighted in zip(rows, answers, strict=True):
        before, turns = "", iter(weighted)
        for message in row["messages"]:
            before += f"<|im_start|>{message['role']}\n"
            if message["role"] == "assistant":
                text, weight = next(turns)
                prompt = tokenizer(before)["input_ids"]
                whole = tokenizer(f"{before}{text}<|im_end|>")["input_ids"]
                for at in range(len(prompt), len(whole)):
                    expected -= weight * table[whole[at - 1], whole[at]].item()
                    total += weight
            before += f"{message['content']}<|im_end|>\n"

    train = prepared(tmp_path, rows, packing=packing, max_length=150).train
    assert train is not None
    objective = Sft(LikelihoodOptions())
    rows_of_batch = len(rows) if not packing else 2
    layout = BatchLayout(global_rows=rows_of_batch, micro_rows=1, seed=3, max_length=150, packing=packing)
    plan = EpochSchedule(train.samples, objective, layout)
    loss = 0.0
    batches: list[Batch] = [plan.batch(1, rank, 2) for rank in range(2)]
    for batch in batches:
        for micro in batch.micro_batches():
            logps = table[micro.input_ids].gather(-1, micro.targets[..., None])[..., 0]
            loss += float(objective.loss(ModelView(token_logps=logps), micro).loss)
    assert {sample.sample_id for batch in batches for row in batch.rows for sample in row} == set(range(4))
    assert batches[0].weight == pytest.approx(total, rel=1e-7)
    assert loss / batches[0].weight == pytest.approx(expected / total, rel=1e-6)


def test_pairs_take_no_fractional_weights() -> None:
    """Preference objectives count a token or do not: half a weight would be learned as a whole one."""
    pair = {"messages": [user(), bot("good", weight=0.5)], "rejected_response": "bad"}
    with pytest.raises(Unusable, match="their weights are 0 or 1"):
        encoded(pair, encoding="preference")
    sample = encoding_of("preference").understand({**pair, "messages": [user(), bot("good")], "weight": 0.5}, "r")
    assert dict(sample.extras) == {"weight": 0.5}  # the report names it as a column that is not used


# ---------------------------------------------------------------- reasoning


@pytest.mark.parametrize(
    ("key", "reasoning"), [("reasoning_content", "2+3=5"), ("reasoning", "5"), ("thinking", "q?"), ("reasoning", "q?")]
)
def test_reasoning_that_a_template_drops_is_counted(tmp_path: Path, key: str, reasoning: str) -> None:
    """Also where the reasoning happens to be in the text, as part of something else."""
    report = reported(tmp_path, [{"messages": [user(), bot("5", **{key: reasoning})]}, {"messages": [user(), bot()]}])
    (rejected,) = report.rejected.values()
    assert (report.samples, rejected.count, rejected.location) == (1, 1, f"{tmp_path / 'a.jsonl'}:1")
    assert f"the chat template does not write the '{key}' of message 2" in rejected.detail
    assert "--model.chat_template FILE" in rejected.detail
    with pytest.raises(DataError, match=rf"a\.jsonl:1: left out by the template: .*'{key}'"):
        prepared(tmp_path, [{"messages": [user(), bot("5", **{key: reasoning})]}], strict=True)


CHAIN = {"messages": [user("a?"), bot("A.", reasoning_content="hm"), user("b?"), bot("B.", reasoning_content="so")]}


def test_reasoning_is_learned_in_every_learned_turn(tmp_path: Path) -> None:
    samples = encoded(CHAIN, THINKS)
    texts = [byte_tokenizer().decode(sample.segments[0].input_ids) for sample in samples]
    first = "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n"
    assert texts == [
        f"{first}<think>hm</think>A.<|im_end|>\n",
        f"{first}A.<|im_end|>\n<|im_start|>user\nb?<|im_end|>\n<|im_start|>assistant\n<think>so</think>B.<|im_end|>\n",
    ]
    assert learned(samples) == [("<think>hm</think>A.<|im_end|>", 1.0), ("<think>so</think>B.<|im_end|>", 1.0)]
    report = reported(tmp_path, [CHAIN], THINKS, strict=True)
    assert (report.turn_by_turn, report.without_reasoning, report.unused_keys) == (1, 0, {})


def test_skipped_reasoning_is_noted(tmp_path: Path) -> None:
    rows = [CHAIN, {"messages": [user(), bot()]}, CHAIN]
    report = reported(tmp_path, rows, THINKS, loss_on="last_round")
    assert (report.samples, report.without_reasoning) == (3, 2)
    assert any(line.startswith("2 conversations are learned without the reasoning of") for line in report.lines())


def test_learned_reasoning_of_earlier_turn_must_be_rendered(tmp_path: Path) -> None:
    """Reasoning of an earlier turn that is learned must be written."""
    row = {"messages": [user(), bot(reasoning_content="hm"), user(), bot("B.")]}
    with pytest.raises(Unusable, match="does not write the 'reasoning_content' of message 2"):
        encoded(row)
    report = reported(tmp_path, [row], loss_on="last_round")
    assert (report.samples, report.without_reasoning) == (1, 1)


# ---------------------------------------------------------------- other keys of messages


def test_unused_keys_are_reported_once_with_first_position(tmp_path: Path) -> None:
    rows = [{"messages": [user(), bot()]}, *[{"messages": [user(mood="glad"), bot(x=1, y="")]} for _ in range(3)]]
    report = reported(tmp_path, rows)
    place = f"{tmp_path / 'a.jsonl'}:2"
    assert report.unused_keys == {"x": place, "mood": place}
    assert report.samples == 4
    assert f"Keys of messages that are not used: x (first {place}), mood (first {place})" in report.lines()
    (tmp_path / "moved").mkdir()
    section = {"cache": tmp_path / "cache", "train": (str(tmp_path / "moved" / "a.jsonl"),)}
    (tmp_path / "a.jsonl").rename(section["train"][0])
    moved = prepare_data(DataSection(**section), byte_tokenizer(), encoding="chat", seed=1, say=lambda _: None).report
    assert set(moved.unused_keys.values()) == {f"{tmp_path / 'moved' / 'a.jsonl'}:2"}


def test_strict_makes_an_unused_key_an_error(tmp_path: Path) -> None:
    rows = [{"messages": [user(), bot()]}, {"messages": [user(mood="glad"), bot()]}]
    expected = r"a\.jsonl:2: the key 'mood' of a message is not used"
    with pytest.raises(DataError, match=expected) as error:
        prepared(tmp_path, rows, strict=True)
    assert "--model.chat_template FILE" in str(error.value.hint)
    stream = prepared(tmp_path, rows, strict=True, streaming=True).stream
    assert stream is not None
    with pytest.raises(DataError, match=expected):
        list(stream.epoch(0))


def test_keys_that_the_template_writes_are_used(tmp_path: Path) -> None:
    rows = [{"messages": [user(name=name), bot()]} for name in ("", "Ann", "Bo")]
    assert reported(tmp_path, rows, NAMES, strict=True).unused_keys == {}
    rows.append({"messages": [user(name="user", mood="glad"), bot()]})  # of which this name alone is not written
    assert set(reported(tmp_path, rows, NAMES).unused_keys) == {"mood"}
    assert set(reported(tmp_path, rows).unused_keys) == {"name", "mood"}


def test_unused_keys_of_ranks_have_first_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenise, "CHUNK", 2)
    monkeypatch.setattr(tokenise, "_IN_PROCESS", 2)
    rows = [{"messages": [user(**({"mood": "glad"} if index > 3 else {})), bot()]} for index in range(12)]
    assert prepared(tmp_path, rows, workers=3).report.unused_keys == {"mood": f"{tmp_path / 'a.jsonl'}:5"}


# ---------------------------------------------------------------- rejected completions, formats, parts


@pytest.mark.parametrize(("encoding", "label"), [("chat", False), ("text", "false"), ("chat", "False")])
def test_a_rejected_completion_is_not_learned(encoding: str, label: object) -> None:
    for row in ({"messages": [user(), bot("bad")]}, {"prompt": "q", "completion": "bad"}):
        with pytest.raises(Unusable, match="swift rlhf --rlhf_type kto"):
            encoded({**row, "label": label}, encoding=encoding)


def test_labels_that_are_not_ktos_are_left_alone(tmp_path: Path) -> None:
    good = {"messages": [user(), bot("good")], "label": True}
    assert reported(tmp_path, [good, {**good, "label": False}]).rejected["a rejected completion"].count == 1
    assert reported(tmp_path, [good]).unused_columns == []
    assert reported(tmp_path, [{**good, "label": 0}, {"text": "t", "label": False}]).unused_columns == ["label"]


def test_rows_of_several_formats_are_counted(tmp_path: Path) -> None:
    rows: list[Any] = [{"messages": [user(), bot()]}] * 3
    assert "several formats" not in "\n".join(reported(tmp_path, rows).lines())
    rows += [{"text": "t"}, {"query": "q", "response": "a"}, {"messages": [user(), bot()], "label": True}]
    assert "Rows of several formats: 3 × messages, 1 × text, 1 × question and answer, 1 × messages with label" in (
        reported(tmp_path, rows).lines()
    )


def test_parts_of_llama_factorys_v1_are_read() -> None:
    def parts(role: str, *pairs: tuple[str, str]) -> dict[str, Any]:
        return {"role": role, "content": [{"type": kind, "value": value} for kind, value in pairs]}

    call = '{"name": "add", "arguments": {"a": 1}}'
    row = {
        "messages": [
            parts("user", ("text", "1+1?")),
            parts("assistant", ("reasoning", "hm"), ("text", "Let me see."), ("tool_call", call)),
            parts("tool", ("text", "2")),
            parts("assistant", ("text", "Two.")),
        ]
    }
    conversation = encoding_of("chat").understand(row, "r").conversation
    assert [message["content"] for message in conversation.messages] == ["1+1?", "Let me see.", "2", "Two."]
    assert conversation.messages[1]["reasoning_content"] == "hm"
    function = {"name": "add", "arguments": {"a": 1}}
    assert conversation.messages[1]["tool_calls"] == [{"type": "function", "function": function}]


def test_an_unknown_part_is_named_by_type_and_keys() -> None:
    with pytest.raises(Unusable, match="a part of the type 'smell' with the keys type, strength"):
        encoded({"messages": [user([{"type": "smell", "strength": 3}]), bot()]})  # type: ignore[arg-type]
