"""Prompts of `swift infer` and `swift eval`, and files of results that are resumed, damaged or hostile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import spoil
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge, sampled
from strategies import examples, wrong

from swift.cli.main import run

Argv = Sequence[str]
Build = Callable[[Path], Argv]

INFER = ["infer", "--model", "model", "--max_new_tokens", "1"]
EVAL = ["eval", "--model", "model", "--max_new_tokens", "1"]


def typed(argv: Sequence[str], folder: Path) -> Sequence[str]:
    return argv


def rows(line: str, argv: Sequence[str], folder: Path) -> Sequence[str]:
    """Write a data set with one good row and another line."""
    good = '{"query": "Hello", "response": "Hi"}'
    (folder / "rows.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    return [*argv, "--dataset", "rows.jsonl"]


CASES = [
    Case(f"{flag} {name}", partial(typed, [*INFER, flag, value]), "refused", (flag,))
    for flag, value, name in (
        ("--system", "\udce9", "with a byte of Latin-1"),
        ("--prompt", "a \ud800", "with an unpaired surrogate"),
        ("--columns", '{"a":' * 5000, "deep"),
        ("--columns", '{"a": 5}', "to a number"),
        ("--columns", "[]", "a list"),
        ("--engine_options", '{"a":' * 5000, "deep"),
        ("--engine_options", "null", "null"),
    )
]
CASES += [
    Case(f"chat: {name}", partial(typed, ["chat", "--model", "model", "--max_new_tokens", "1"]), expected, stdin=text)
    for name, text, expected in (
        ("Latin-1", b"caf\xe9\n", "refused"),
        ("an encoded surrogate", b"Hello\n\xed\xa0\x80\n", "refused"),
        ("NUL", b"a\0b\n", "works"),
        ("blanks", b" \n\n\t\n", "works"),
        ("nothing", b"", "works"),
        ("escape codes", b"\x1b[2J\n", "works"),
        ("no end of the line", b"Hello", "works"),
    )
]
QUESTIONS = (
    '{"text": "Once upon a time"}',
    '{"body": "a"}',
    '{"query": "", "response": "a"}',
    '{"messages": ["user"]}',
    '{"messages": [{"role": "user", "content": "a"}, null]}',
    '{"messages": [{"role": ["user"], "content": "a"}]}',
    '{"messages": [{"role": "user"}]}',
    '{"query": "a", "history": 5}',
    '{"query": "a", "system": []}',
    '{"query": "a", "tools": 5}',
    '{"query": "a", "response": "b", "note": "\\udc00"}',
    '{"query": "a", "response": "b", "note": [NaN, 1e400]}',
    '{"query": "a", "response": 5}',
    "{}",
)


@examples(20)
@given(st.sampled_from(QUESTIONS), st.sampled_from((INFER, EVAL, [*EVAL, "--metric", "loss"])))
def test_odd_question_is_handled_clearly(template: Path, line: str, argv: list[str]) -> None:
    judge(Case(line, partial(rows, line, argv), "either", ("rows.jsonl",)), template)


# ---------------------------------------------------------------- files of results


def resumed(change: Callable[[Path, Path], object], folder: Path, *, argv: Sequence[str] = INFER) -> Sequence[str]:
    """Write the results of two questions, change the file or its settings, and resume."""
    command = [*rows('{"query": "Bye", "response": "Bye"}', argv, folder), "--result_path", "results.jsonl"]
    assert run(command) == 0
    change(folder / "results.jsonl", folder / "results.jsonl.settings.json")
    return command


def line(change: Callable[[dict[str, object]], object]) -> Callable[[Path, Path], object]:
    """Change what the first line says."""

    def act(results: Path, _settings: Path) -> None:
        first, *others = results.read_text(encoding="utf-8").splitlines()
        text = json.loads(first)
        change(text)
        results.write_text("\n".join([json.dumps(text), *others]) + "\n", encoding="utf-8")

    return act


def row(value: object) -> Callable[[Path, Path], object]:
    return line(lambda text: text["source_row"].update(row=value))  # type: ignore[attr-defined]


def text(content: bytes) -> Callable[[Path, Path], object]:
    return lambda results, _settings: results.write_bytes(content)


def pipe(results: Path, _settings: Path) -> None:
    results.unlink()
    os.mkfifo(results)


def pipe_for_settings(_answers: Path, settings: Path) -> None:
    settings.unlink()
    os.mkfifo(settings)


def swapped(results: Path, _settings: Path) -> None:
    results.write_bytes(b"".join(reversed(results.read_bytes().splitlines(keepends=True))))


RESULTS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "unchanged": (lambda results, settings: None, "works"),
    "in another order": (swapped, "works"),
    "cut off in the last line": (
        lambda results, settings: os.truncate(results, results.stat().st_size - 5),
        "works",
    ),
    "empty": (text(b""), "works"),
    "a pipe": (pipe, "refused"),
    "a line of a word": (text(b"hello\n"), "refused"),
    "a deep line": (text(b"[" * 100_000 + b"\n"), "refused"),
    "a line of digits": (text(b'{"source_row": {"row": ' + b"9" * 5000 + b"}}\n"), "refused"),
    "a line of Latin-1": (text(b'{"source_row": "\xe9"}\n'), "refused"),
    "row beyond": (row(5), "refused"),
    "row of another": (row(1), "refused"),
    "settings a pipe": (pipe_for_settings, "refused"),
}


@examples(14)
@given(st.sampled_from((("source_row",), ("source_row", "row"), ("source_row", "hash"))), wrong() | st.just(spoil.GONE))
def test_wrong_value_in_a_result_is_refused(template: Path, keys: spoil.Keys, value: object) -> None:
    """The file of results is not continued, and not lost."""

    def change(results: Path, _settings: Path) -> None:
        first, *others = results.read_text(encoding="utf-8").splitlines()
        changed = json.dumps(spoil.put(json.loads(first), keys, value))
        results.write_text("\n".join([changed, *others]) + "\n", encoding="utf-8")

    whole = keys == ("source_row", "row") and type(value) is int and value == 0
    expected: Literal["works", "refused"] = "works" if whole else "refused"
    judge(Case(f"{keys}", partial(resumed, change), expected, ("results.jsonl",)), template)


@examples(10)
@given(st.sampled_from(sorted(spoil.NOT_AN_OBJECT)))
def test_bad_settings_of_results_are_refused(template: Path, how: str) -> None:
    change = lambda _answers, settings: spoil.BAD[how](settings)  # noqa: E731
    judge(Case(how, partial(resumed, change), names=("results.jsonl",)), template)


CASES += [
    Case(f"results: {name}", partial(resumed, change), expected, ("results.jsonl",))  # type: ignore[arg-type]
    for name, (change, expected) in RESULTS.items()
]
CASES += [
    Case(f"judged results: {name}", partial(resumed, change, argv=EVAL), expected, names)  # type: ignore[arg-type]
    for name, change, expected, names in (
        ("unchanged", lambda results, settings: None, "works", ()),
        ("without a judgement", line(lambda text: text.pop("right")), "refused", ("--overwrite",)),
        ("a judgement that is a string", line(lambda text: text.update(right="yes")), "refused", ("--overwrite",)),
        ("a response that is a number", line(lambda text: text.update(response=5)), "works", ()),
    )
]


# ---------------------------------------------------------------- chat templates that leave out what is asked


def templated(template: str, argv: Sequence[str], folder: Path) -> Argv:
    """Give the model this chat template."""
    (folder / "model/chat_template.jinja").write_text(template, encoding="utf-8")
    return rows('{"query": "Once more", "response": "Hi"}', argv, folder)


TEMPLATES = {
    "writes the same of everything": "constant",
    "writes all messages but the last": "{% for message in messages[:-1] %}{{ message.content }}{% endfor %}.",
    "writes roles alone": "{% for message in messages %}{{ message.role }}{% endfor %}",
}
CASES += [
    Case(
        f"{argv[0]}: a chat template that {name}",
        partial(templated, template, argv),
        "refused",
        ("model/chat_template.jinja", "omits the last message"),
    )
    for argv in (INFER, EVAL)
    for name, template in TEMPLATES.items()
]
CASES.append(
    Case(
        "infer: a chat template that writes messages in another form",
        partial(templated, "{% for message in messages %}{{ message.content | upper }}{% endfor %}", INFER),
        "works",
    )
)


# ---------------------------------------------------------------- models that score


def scored(line: str, command: str, folder: Path, *, good: str = "", labels: int = 1, argv: Sequence[str] = ()) -> Argv:
    """Give the model a head for scores, and a data set with perhaps a good row and another line."""
    import torch

    names = {str(index): name for index, name in enumerate(("red", "green", "blue")[:labels])}
    spoil.edit(folder / "model/config.json", architectures=["Qwen3ForSequenceClassification"], id2label=names)
    weights = folder / "model/model.safetensors"
    spoil.put_tensors(weights, {**spoil.tensors_of(weights), "score.weight": torch.ones(labels, 64)})
    (folder / "rows.jsonl").write_text("".join(f"{each}\n" for each in (good, line) if each), encoding="utf-8")
    return [command, "--model", "model", "--dataset", "rows.jsonl", *argv]


PAIR = '{"query": "What is red?", "document": "Blood", "label": 1}'
SCORED = {
    "an unpaired surrogate in the text": '{"text": "a \\ud800"}',
    "an unpaired surrogate in the query": '{"query": "\\ud800", "document": "d"}',
    "an unpaired surrogate in another column": '{"text": "a", "label": "\\udc00"}',
    "a document that is a number": '{"query": "a", "document": 1.5}',
    "a document that is a list": '{"query": "a", "document": ["b"]}',
    "an empty document": '{"query": "a", "document": " "}',
    "an empty query": '{"query": "", "document": "b"}',
    "a text longer than the model": '{"text": "' + "x" * 3_000_000 + '"}',
}
CASES += [
    Case(f"infer, scoring: {name}", partial(scored, line, "infer", good=PAIR), "refused", ("rows.jsonl:2",))
    for name, line in SCORED.items()
]
CASES += [
    Case(
        "infer, scoring: a text longer than --max_length",
        partial(scored, '{"text": "abcdefghij"}', "infer", argv=["--max_length", "5"]),
        "refused",
        ("rows.jsonl:1", "--max_length"),
    ),
    Case(
        "infer: a question longer than the model",
        partial(rows, '{"query": "' + "x" * 200_000 + '"}', INFER),
        "refused",
        ("512 positions",),
    ),
    Case(
        "eval, scoring: a list of classes for a model of one class",
        partial(scored, '{"text": "a b c", "label": [1]}', "eval", labels=3),
        "refused",
        ("rows.jsonl:1", "assigns one class to each text"),
    ),
]
CASES += [
    Case(
        f"eval, scoring: {name}",
        partial(scored, line, "eval", good=good, labels=labels),
        "works",
        prints=("1 of 2 rows cannot be used", "rows.jsonl:2"),
    )
    for name, labels, good, line in (
        ("a label that is no class", 3, '{"text": "a b c", "label": 1}', '{"text": "a b c", "label": "pink"}'),
        ("an empty document", 1, PAIR, '{"query": "a", "document": "", "label": 1}'),
        ("half a pair", 1, '{"query": "q", "chosen": "a", "rejected": "b"}', '{"query": "q", "chosen": "a"}'),
    )
]
CASES += [
    Case(
        f"eval{name}: a row that cannot be used",
        partial(rows, '{"query": "a"}', [*EVAL, *argv]),
        "works",
        prints=(text,),
    )
    for name, argv, text in (
        ("", [], "1 of 2 "),
        (" by the loss", ["--metric", "loss"], "1 of 2 rows cannot be used"),
    )
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_question_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)
