"""Prompts of `swift infer` and `swift eval`, and files of results that are resumed, damaged or hostile."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spoil
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, Expected, Table, judge, sampled, table
from strategies import examples, not_an_object, wrong

from swift.cli.main import run

INFER = ["infer", "--model", "model", "--max_new_tokens", "1"]
FILE = "results.jsonl"
EVAL = ["eval", "--model", "model", "--max_new_tokens", "1"]


def typed(argv: Sequence[str], folder: Path) -> Sequence[str]:
    return argv


def rows(line: str, argv: Sequence[str], folder: Path) -> Sequence[str]:
    """Write a data set with one good row and another line."""
    good = '{"query": "Hello", "response": "Hi"}'
    (folder / "rows.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    return [*argv, "--dataset", "rows.jsonl"]


FLAGS: Table[tuple[str, str]] = {
    "a byte of Latin-1": (("--system", "\udce9"), "--system"),
    "an unpaired surrogate": (("--prompt", "a \ud800"), "--prompt"),
    "deep columns": (("--columns", '{"a":' * 5000), "--columns"),
    "a column that is a number": (("--columns", '{"a": 5}'), "--columns"),
    "options that are null": (("--engine_options", "null"), "--engine_options"),
}
CASES = table("flags", FLAGS, lambda flags: partial(typed, [*INFER, *flags]))
CASES += [
    Case(f"chat: {text!r}", partial(typed, ["chat", "--model", "model", "--max_new_tokens", "1"]), expected, stdin=text)
    for text, expected in (
        *((b"caf\xe9\n", "refused"), (b"Hello\n\xed\xa0\x80\n", "refused"), (b"a\0b\n", "works")),
        *((b" \n\n\t\n", "works"), (b"", "works"), (b"\x1b[2J\n", "works"), (b"Hello", "works")),
    )
]
# ---------------------------------------------------------------- files of results


def resumed(change: Callable[[Path, Path], object], folder: Path, *, argv: Sequence[str] = INFER) -> Sequence[str]:
    """Write the results of two questions, change the file or its settings, and resume."""
    command = [*rows('{"query": "Bye", "response": "Bye"}', argv, folder), "--result_path", FILE]
    assert run(command) == 0
    change(folder / FILE, folder / f"{FILE}.settings.json")
    return command


def line(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], object]:
    """Change what the first line says."""

    def act(results: Path, _settings: Path) -> None:
        first, *others = results.read_text(encoding="utf-8").splitlines()
        text = json.loads(first)
        changed = change(text)
        first = json.dumps(changed if isinstance(changed, dict) else text)
        results.write_text("\n".join([first, *others]) + "\n", encoding="utf-8")

    return act


def row(value: object) -> Callable[[Path, Path], object]:
    return line(lambda text: text["source_row"].update(row=value))


def text(content: bytes) -> Callable[[Path, Path], object]:
    return lambda results, _settings: results.write_bytes(content)


def swapped(results: Path, _settings: Path) -> None:
    results.write_bytes(b"".join(reversed(results.read_bytes().splitlines(keepends=True))))


RESULTS: Table[Callable[[Path, Path], object]] = {
    "unchanged": (lambda results, settings: None,),
    "in another order": (swapped,),
    "cut off in the last line": (lambda results, settings: os.truncate(results, results.stat().st_size - 5),),
    "empty": (text(b""),),
    "a pipe": (lambda results, settings: spoil.BAD["a pipe"](results), FILE),
    "a line of digits": (text(b'{"source_row": {"row": ' + b"9" * 5000 + b"}}\n"), FILE),
    "row beyond": (row(5), FILE),
    "row of another": (row(1), FILE),
    "settings a pipe": (lambda results, settings: spoil.BAD["a pipe"](settings), FILE),
}
JUDGED: Table[Callable[[Path, Path], object]] = {
    "unchanged": (lambda results, settings: None,),
    "without a judgement": (line(lambda text: text.pop("right")), "--overwrite"),
    "a judgement that is a string": (line(lambda text: text.update(right="yes")), "--overwrite"),
    "a response that is a number": (line(lambda text: text.update(response=5)),),
}
CASES += table("results", RESULTS, lambda change: partial(resumed, change))
CASES += table("judged results", JUDGED, lambda change: partial(resumed, change, argv=EVAL))


@examples(14)
@given(st.sampled_from((("source_row",), ("source_row", "row"), ("source_row", "hash"))), wrong() | st.just(spoil.GONE))
def test_wrong_value_in_a_result_is_refused(template: Path, keys: spoil.Keys, value: object) -> None:
    """The file of results is not continued, and not lost."""

    whole = keys == ("source_row", "row") and type(value) is int and value == 0
    expected: Expected = "works" if whole else "refused"
    judge(
        Case(f"{keys}", partial(resumed, line(lambda text: spoil.put(text, keys, value))), expected, (FILE,)), template
    )


@examples(10)
@given(not_an_object)
def test_bad_settings_of_results_are_refused(template: Path, how: str) -> None:
    change = lambda _answers, settings: spoil.BAD[how](settings)  # noqa: E731
    judge(Case(how, partial(resumed, change), names=(FILE,)), template)


# ---------------------------------------------------------------- chat templates that leave out what is asked


def templated(template: str, argv: Sequence[str], folder: Path) -> Sequence[str]:
    """Give the model this chat template."""
    (folder / "model/chat_template.jinja").write_text(template, encoding="utf-8")
    return rows('{"query": "Once more", "response": "Hi"}', argv, folder)


LEFT_OUT = ("model/chat_template.jinja", "omits the last message")
TEMPLATES: Table[str] = {
    "the same of everything": ("constant", *LEFT_OUT),
    "all messages but the last": ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}.", *LEFT_OUT),
    "roles alone": ("{% for m in messages %}{{ m.role }}{% endfor %}", *LEFT_OUT),
    "another form": ("{% for m in messages %}{{ m.content | upper }}{% endfor %}",),
}
CASES += table("a chat template writes", TEMPLATES, lambda template: partial(templated, template, INFER))
CASES.append(Case("eval: a chat template", partial(templated, "constant", EVAL), names=LEFT_OUT))


# ---------------------------------------------------------------- models that score


def scored(
    line: str, command: str, folder: Path, *, good: str = "", labels: int = 1, argv: Sequence[str] = ()
) -> Sequence[str]:
    """Give the model a head for scores, and a data set with perhaps a good row and another line."""
    import torch

    names = {str(index): name for index, name in enumerate(("red", "green", "blue")[:labels])}
    spoil.edit(folder / "model/config.json", architectures=["Qwen3ForSequenceClassification"], id2label=names)
    weights = folder / "model/model.safetensors"
    spoil.put_tensors(weights, {**spoil.tensors_of(weights), "score.weight": torch.ones(labels, 64)})
    (folder / "rows.jsonl").write_text("".join(f"{each}\n" for each in (good, line) if each), encoding="utf-8")
    return [command, "--model", "model", "--dataset", "rows.jsonl", *argv]


PAIR = '{"query": "What is red?", "document": "Blood", "label": 1}'
SCORED: Table[str] = {
    "an unpaired surrogate in the text": ('{"text": "a \\ud800"}', "rows.jsonl:2"),
    "a document that is a list": ('{"query": "a", "document": ["b"]}', "rows.jsonl:2"),
    "an empty document": ('{"query": "a", "document": " "}', "rows.jsonl:2"),
    "an empty query": ('{"query": "", "document": "b"}', "rows.jsonl:2"),
    "a text longer than the model": ('{"text": "' + "x" * 3_000_000 + '"}', "rows.jsonl:2"),
}
CASES += table("infer, scoring", SCORED, lambda line: partial(scored, line, "infer", good=PAIR))
LONG = partial(scored, '{"text": "abcdefghij"}', "infer", argv=["--max_length", "5"])
CLASSES = partial(scored, '{"text": "a b c", "label": [1]}', "eval", labels=3)
FURTHER: Table[Callable[[Path], Sequence[str]]] = {
    "a text longer than --max_length": (LONG, "rows.jsonl:1", "--max_length"),
    "a question longer than the model": (partial(rows, '{"query": "' + "x" * 200_000 + '"}', INFER), "512 positions"),
    "several classes of a text": (CLASSES, "rows.jsonl:1", "this model assigns one class to each text"),
}
CASES += table("rows", FURTHER)
SKIPPED = {
    "a label that is no class": partial(
        scored, '{"text": "a b c", "label": "pink"}', "eval", good='{"text": "a b c", "label": 1}', labels=3
    ),
    "an empty document": partial(scored, '{"query": "a", "document": "", "label": 1}', "eval", good=PAIR),
    "half a pair": partial(
        scored, '{"query": "q", "chosen": "a"}', "eval", good='{"query": "q", "chosen": "a", "rejected": "b"}'
    ),
    "no response": partial(rows, '{"query": "a"}', EVAL),
    "no response, by the loss": partial(rows, '{"query": "a"}', [*EVAL, "--metric", "loss"]),
}
CASES += [Case(f"eval: {name}", build, "works", prints=("1 of 2 ",)) for name, build in SKIPPED.items()]


@pytest.mark.parametrize("case", sampled(CASES))
def test_question_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)
