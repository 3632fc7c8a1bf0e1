"""What is asked of a model, and files of answers that are continued, where they are damaged or hostile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import spoil
from judge import Case, judge, sampled

from swift.cli.main import run

Words = Sequence[str]
Build = Callable[[Path], Words]

INFER = ["infer", "--model", "model", "--max_new_tokens", "1"]
EVAL = ["eval", "--model", "model", "--max_new_tokens", "1"]


def typed(words: Sequence[str], folder: Path) -> Sequence[str]:
    return words


def rows(line: str, words: Sequence[str], folder: Path) -> Sequence[str]:
    """Writes a data set with one good row and another line."""
    good = '{"query": "Hello", "response": "Hi"}'
    (folder / "rows.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    return [*words, "--dataset", "rows.jsonl"]


CASES = [
    Case(f"{flag} {name}", partial(typed, [*words, flag, value]), "refused", (flag,))
    for words in (INFER, [*INFER, "--prompt", "Hello"])
    for flag, value, name in (
        ("--system", "\udce9", "with a byte of Latin-1"),
        ("--prompt", "a \ud800", "with half a surrogate pair"),
        ("--columns", '{"a":' * 5000, "deep"),
        ("--columns", "9" * 5000, "of digits"),
        ("--columns", '{"a": 5}', "to a number"),
        ("--columns", '{"a": null}', "to null"),
        ("--columns", "[]", "a list"),
        ("--engine_options", '{"a":' * 5000, "deep"),
        ("--engine_options", "null", "null"),
    )
    if len(words) == len(INFER) or flag == "--system"
]
CASES = [
    case if index < 9 else Case(f"{case.name} beside a prompt", case.build, "refused", case.names)
    for index, case in enumerate(CASES)
]
CASES += [
    Case(f"chat: {name}", partial(typed, ["chat", "--model", "model", "--max_new_tokens", "1"]), expected, stdin=said)
    for name, said, expected in (
        ("Latin-1", b"caf\xe9\n", "refused"),
        ("an encoded surrogate", b"Hello\n\xed\xa0\x80\n", "refused"),
        ("NUL", b"a\0b\n", "works"),
        ("blanks", b" \n\n\t\n", "works"),
        ("nothing", b"", "works"),
        ("escape codes", b"\x1b[2J\n", "works"),
        ("no end of the line", b"Hello", "works"),
    )
]
CASES += [
    Case(f"{words[0]} {' '.join(words[5:])} on {name}", partial(rows, line, words), "either", ("rows.jsonl",))
    for words in (INFER, EVAL, [*EVAL, "--metric", "loss"])
    for name, line in {
        "raw text": '{"text": "Once upon a time"}',
        "no column that is understood": '{"body": "a"}',
        "an empty question": '{"query": "", "response": "a"}',
        "a message that is a text": '{"messages": ["user"]}',
        "a last message that is null": '{"messages": [{"role": "user", "content": "a"}, null]}',
        "a role that is a list": '{"messages": [{"role": ["user"], "content": "a"}]}',
        "no content": '{"messages": [{"role": "user"}]}',
        "a history that is a number": '{"query": "a", "history": 5}',
        "a system message that is a list": '{"query": "a", "system": []}',
        "tools that are a number": '{"query": "a", "tools": 5}',
        "half a surrogate pair in another column": '{"query": "a", "response": "b", "note": "\\udc00"}',
        "NaN in another column": '{"query": "a", "response": "b", "note": [NaN, 1e400]}',
        "an answer that is a number": '{"query": "a", "response": 5}',
        "an empty line of an object": "{}",
    }.items()
]


# ---------------------------------------------------------------- files of answers


def answered(change: Callable[[Path, Path], object], folder: Path, *, words: Sequence[str] = INFER) -> Sequence[str]:
    """Answers two questions into a file, changes it or what stands beside it, and goes on."""
    command = [*rows('{"query": "Bye", "response": "Bye"}', words, folder), "--result_path", "answers.jsonl"]
    assert run(command) == 0
    change(folder / "answers.jsonl", folder / "answers.jsonl.settings.json")
    return command


def line(change: Callable[[dict[str, object]], object]) -> Callable[[Path, Path], object]:
    """Changes what the first line says."""

    def act(answers: Path, _settings: Path) -> None:
        first, *others = answers.read_text(encoding="utf-8").splitlines()
        said = json.loads(first)
        change(said)
        answers.write_text("\n".join([json.dumps(said), *others]) + "\n", encoding="utf-8")

    return act


def row(value: object) -> Callable[[Path, Path], object]:
    return line(lambda said: said["source_row"].update(row=value))  # type: ignore[attr-defined]


def text(content: bytes) -> Callable[[Path, Path], object]:
    return lambda answers, _settings: answers.write_bytes(content)


def settings(content: bytes) -> Callable[[Path, Path], object]:
    return lambda _answers, beside: beside.write_bytes(content)


def pipe(answers: Path, _settings: Path) -> None:
    answers.unlink()
    os.mkfifo(answers)


def pipe_beside(_answers: Path, beside: Path) -> None:
    beside.unlink()
    os.mkfifo(beside)


def swapped(answers: Path, _settings: Path) -> None:
    answers.write_bytes(b"".join(reversed(answers.read_bytes().splitlines(keepends=True))))


ANSWERS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "as it was": (lambda answers, beside: None, "works"),
    "in another order": (swapped, "works"),
    "cut off in the last line": (
        lambda answers, beside: os.truncate(answers, answers.stat().st_size - 5),
        "works",
    ),
    "empty": (text(b""), "works"),
    "a pipe": (pipe, "refused"),
    "a line of a word": (text(b"hello\n"), "refused"),
    "a line of NULs": (text(bytes(100) + b"\n"), "refused"),
    "a deep line": (text(b"[" * 100_000 + b"\n"), "refused"),
    "a line of digits": (text(b'{"source_row": {"row": ' + b"9" * 5000 + b"}}\n"), "refused"),
    "a line of Latin-1": (text(b'{"source_row": "\xe9"}\n'), "refused"),
    "source_row a list": (line(lambda said: said.update(source_row=[])), "refused"),
    "source_row null": (line(lambda said: said.update(source_row=None)), "refused"),
    "row -1": (row(-1), "refused"),
    "row 0.0": (row(0.0), "refused"),
    "row true": (row(True), "refused"),
    "row a text": (row("0"), "refused"),
    "row beyond": (row(5), "refused"),
    "row vast": (row(10**30), "refused"),
    "row of another": (row(1), "refused"),
    "settings a pipe": (pipe_beside, "refused"),
    "settings cut off": (settings(b"{"), "refused"),
    "settings a list": (settings(b"[]"), "refused"),
    "settings deep": (settings(b"[" * 100_000), "refused"),
    "settings of digits": (settings(b"9" * 5000), "refused"),
    "settings of Latin-1": (settings(b'{"a": "\xe9"}'), "refused"),
}
CASES += [
    Case(f"answers: {name}", partial(answered, change), expected, ("answers.jsonl",))  # type: ignore[arg-type]
    for name, (change, expected) in ANSWERS.items()
]
CASES += [
    Case(f"judged answers: {name}", partial(answered, change, words=EVAL), expected, names)  # type: ignore[arg-type]
    for name, change, expected, names in (
        ("as they were", lambda answers, beside: None, "works", ()),
        ("without a judgement", line(lambda said: said.pop("right")), "refused", ("--overwrite",)),
        ("a judgement that is a text", line(lambda said: said.update(right="yes")), "refused", ("--overwrite",)),
        ("an answer that is a number", line(lambda said: said.update(answer=5)), "works", ()),
    )
]


# ---------------------------------------------------------------- chat templates that leave out what is asked


def templated(template: str, words: Sequence[str], folder: Path) -> Words:
    """Gives the model this chat template."""
    (folder / "model/chat_template.jinja").write_text(template, encoding="utf-8")
    return rows('{"query": "Once more", "response": "Hi"}', words, folder)


TEMPLATES = {
    "writes the same of everything": "constant",
    "writes all messages but the last": "{% for message in messages[:-1] %}{{ message.content }}{% endfor %}.",
    "writes roles alone": "{% for message in messages %}{{ message.role }}{% endfor %}",
}
CASES += [
    Case(
        f"{words[0]}: a chat template that {name}",
        partial(templated, template, words),
        "refused",
        ("model/chat_template.jinja", "leaves the last message out"),
    )
    for words in (INFER, EVAL)
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


def scored(
    line: str, command: str, folder: Path, *, good: str = "", labels: int = 1, words: Sequence[str] = ()
) -> Words:
    """Gives the model a head for scores, and a data set with perhaps a good row and another line."""
    import torch

    names = {str(index): name for index, name in enumerate(("red", "green", "blue")[:labels])}
    spoil.edit(folder / "model/config.json", architectures=["Qwen3ForSequenceClassification"], id2label=names)
    weights = folder / "model/model.safetensors"
    spoil.put_tensors(weights, {**spoil.tensors_of(weights), "score.weight": torch.ones(labels, 64)})
    (folder / "rows.jsonl").write_text("".join(f"{each}\n" for each in (good, line) if each), encoding="utf-8")
    return [command, "--model", "model", "--dataset", "rows.jsonl", *words]


PAIR = '{"query": "What is red?", "document": "Blood", "label": 1}'
SCORED = {
    "half a surrogate pair in the text": '{"text": "a \\ud800"}',
    "half a surrogate pair in the query": '{"query": "\\ud800", "document": "d"}',
    "half a surrogate pair in another column": '{"text": "a", "label": "\\udc00"}',
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
        partial(scored, '{"text": "abcdefghij"}', "infer", words=["--max_length", "5"]),
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
        ("rows.jsonl:1", "this model has one class for each text"),
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
        partial(rows, '{"query": "a"}', [*EVAL, *words]),
        "works",
        prints=(said,),
    )
    for name, words, said in (
        ("", [], "Skipping 1 of 2 rows"),
        (" by the loss", ["--metric", "loss"], "1 of 2 rows cannot be used"),
    )
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_question_is_answered_or_refused_clearly(case: Case, template: Path) -> None:
    judge(case, template)
