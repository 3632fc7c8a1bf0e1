"""Configurations that cannot be used: values of wrong kinds, invalid or excessive YAML, odd flags and files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spoil
from hypothesis import given
from hypothesis import strategies as st
from judge import Build, Case, Table, judge, sampled, table
from strategies import examples, not_a_file

from swift.config.fields import Field, core_fields, model_fields
from swift.config.sections import Config
from swift.plugins.load import load_objective

LONG = "x" * 5000
STRINGS = ("5", "1.5", "true", "[a]", "{a: b}", '"\\0"', '"\\ud800"')
IN_FILES = {
    "switch": ("2", "maybe", "[true]", "{a: 1}", ".nan", "1.0e+300", '"\\0"', '"\\ud800"'),
    "number": (*STRINGS[2:6], '""', "abc", ".nan", "-.inf", "-1", "1.0e+300", "1" + "0" * 25, "2024-01-01"),
    "choice": ("nonsense", "5", "[a]", "{a: b}", '"\\0"', '"\\ud800"', "1.0e+300"),
    "list": ("5", "true", "[1]", "[[a]]", "{a: b}", '["\\0"]', '["\\ud800"]', '[""]', "[null]"),
    "mapping": ("5", "true", "[a]", "text", "{1: a}", '{a: "\\0"}', '{"\\ud800": a}', "[{a: b}]", "{a: .nan}"),
    "prompt": STRINGS,
    "text": (*STRINGS, '""', '"  "', LONG, "a/" + LONG),
}
"""Kind of a key → invalid values in YAML."""
TYPED = {
    "switch": ("maybe", "\ud800", "a\0b", "-7", LONG),
    "choice": ("maybe", "\ud800", "a\0b", "-7", LONG),
    "number": ("abc", "nan", "-inf", "1e400", "9" * 5000, "-7", "true", "\ud800", "0x10"),
    "list": ('["a", 1]', '["a", []]', '["' * 2500, "\ud800", "a\0b", LONG),
    "mapping": ("[]", "{", '{"a": NaN}', "[" * 5000, '{"a": ' * 5000, "\ud800", '{"a":' + "9" * 5000 + "}"),
    "prompt": ("\ud800", "a\0b"),
    "text": ("\ud800", "a\0b", LONG),
}
"""Kind of a key → invalid values on the command line."""
BEYOND = (
    ("train.seed", "4294967296"), ("train.timeout_minutes", "1.0e-9"), ("train.max_steps", "99999999999"),
    ("train.epochs", "0"), ("train.micro_batch", "1000000000"), ("train.global_batch", "1.5"), ("optim.lr", "1.0e+9"),
    ("optim.beta1", "1"), ("optim.beta2", "1.0"), ("checkpoint.save_steps", "0"), ("checkpoint.save_steps", "1.0e+30"),
    ("data.max_length", "1000000000000"), ("data.workers", "1000000"), ("data.split_ratio", "1.5"),
    ("tuner.rank", "10000000"), ("tuner.dropout", "1.0"), ("parallel.tp", "100000000"),
    ("export.shard_size_gb", "1.0e-12"), ("logging.run_name", '"../../up"'), ("logging.run_name", "/tmp/up"),
    ("logging.run_name", '"."'),
)  # fmt: skip
"""Values of the right kind that are out of bounds."""


def _kind(field: Field) -> str:
    if field.kind in ("switch", "list", "mapping"):
        return field.kind
    if field.type_name in ("integer", "number"):
        return "number"
    return "choice" if " | " in field.type_name else "prompt" if field.key == "data.system" else "text"


def _in_file(text: str, *names: str, **expected: Any) -> Case:
    def build(folder: Path) -> list[str]:
        (folder / "run.yaml").write_text(text, encoding="utf-8")
        return ["config", "show", "run.yaml"]

    return Case(ascii(text[:80]), build, names=names, **expected)


def _typed(*argv: str, names: tuple[str, ...] = ()) -> Case:
    return Case(ascii(argv)[:80], lambda _: ["config", "show", *argv], names=names)


def _settings(values: dict[str, tuple[str, ...]]) -> st.SearchStrategy[tuple[str, str]]:
    """Return keys, each with an invalid value for its kind."""
    keys = st.sampled_from(sorted(core_fields().items()))
    return keys.flatmap(lambda each: st.tuples(st.just(each[0]), st.sampled_from(values[_kind(each[1])])))


@examples(50)
@given(_settings(IN_FILES))
def test_wrong_value_in_a_file_is_refused(template: Path, setting: tuple[str, str]) -> None:
    (section, _, name), value = setting[0].partition("."), setting[1]
    # A key of a mapping that is not a string is named by itself.
    names = ("run.yaml:3",) if value == "{1: a}" else ("run.yaml:3", name)
    judge(_in_file(f"# a run\n{section}:\n  {name}: {value}\n", *names), template)


@examples(len(BEYOND))
@given(st.sampled_from(BEYOND))
def test_value_out_of_bounds_is_refused(template: Path, setting: tuple[str, str]) -> None:
    section, _, name = setting[0].partition(".")
    judge(_in_file(f"{section}:\n  {name}: {setting[1]}\n", "run.yaml:2", name), template)


@examples(50)
@given(_settings(TYPED))
def test_wrong_value_of_a_flag_is_refused(template: Path, setting: tuple[str, str]) -> None:
    judge(_typed(f"--{setting[0]}", setting[1], names=(f"--{setting[0]}",)), template)


@examples(25)
@given(st.data())
def test_wrong_option_of_an_objective_is_refused(template: Path, data: st.DataObject) -> None:
    """Options of a plugin are validated in a second phase."""
    fields = list(model_fields(load_objective("grpo").config_model or Config, "objective"))
    field = data.draw(st.sampled_from(fields))
    value = data.draw(st.sampled_from(TYPED[_kind(field)]))
    key = f"objective.{field.key.removeprefix('objective.')}"
    judge(_typed("--objective", "grpo", f"--{key}", value, names=(key.partition(".")[2],)), template)


@examples(30)
@given(
    st.sampled_from(sorted(Config.model_fields)),
    st.sampled_from(("[]", "5", "true", '"\\ud800"', "[{a: b}]", "{nonsense: 1}", '{"": 1}', "{a.b: 1}", "{1: 2}")),
)
def test_section_that_is_no_mapping_is_refused(template: Path, section: str, value: str) -> None:
    judge(_in_file(f"{section}: {value}\n", "run.yaml:1"), template)


ALIASES = {
    "--nproc": ("0", "1e3", "9" * 5000, "1000000", "two", "", "\ud800"),
    "--sequence_parallel_size": ("0", "two", ""),
    "--report_to": ("", "a\0b", LONG),
    "--bf16": ("maybe", "2"),
    "--lr_scheduler_type": ("", "7"),
    "--max_steps": ("-2", "1e30"),
    "--columns": ("{", "[" * 100_000, '{"a": {"b": "c"}}', '{"a": 1e999}'),
    "--resume_from_checkpoint": ("\ud800", "a\0b", LONG),
    "--fsdp": ("nonsense", ""),
    "--backend": ("", "a\0b"),
    "--backend.nonsense": ("1", "[" * 5000),
    "--objective.label_smoothing": ("true", "nan", "-1", "1"),
    "--backend.cpu_threads": ("0", "1e9", "true"),
}


@examples(30)
@given(st.sampled_from([(flag, value) for flag, values in ALIASES.items() for value in values]))
def test_wrong_value_of_an_alias_is_refused(template: Path, setting: tuple[str, str]) -> None:
    judge(_typed(*setting, names=(setting[0],)), template)


@examples(8)
@given(st.sampled_from(("--", "---", "--=5", "-z", "stray", "--" + LONG, "--\ud800", "--a\0b")))
def test_argument_that_is_no_flag_is_refused(template: Path, argument: str) -> None:
    judge(_typed(argument), template)


def _bomb(first: str, begin: str = "", end: str = "") -> str:
    """Twelve levels of anchors, each of which stands for nine of the one before."""
    lines = [f"a{n}: &a{n} {begin}[{', '.join([f'*a{n - 1}'] * 9)}]{end}" for n in range(1, 12)]
    return "\n".join([f"a0: &a0 {first}", *lines])


DOCUMENTS: Table[str | bytes] = {
    "aliases that explode": (_bomb("[x, x, x, x, x, x, x, x, x]"), "run.yaml:", "aliases"),
    "merges that explode": (_bomb("{x: 1}", "{<<: ", "}"), "run.yaml:", "aliases"),
    "an anchor inside itself": ("train: &a\n  epochs: *a\n", "run.yaml:"),
    "an alias to nothing": ("train:\n  epochs: *nothing\n", "run.yaml:2"),
    "lists nested 100,000 deep": ("train: " + "[" * 100_000, "run.yaml:1", "deep"),
    "dashes nested 10,000 deep": ("train:\n" + "- " * 10_000, "run.yaml:", "deep"),
    "1e400": ("train:\n  epochs: 1.0e+400\n", "run.yaml:2", "epochs"),
    "5,000 digits": ("train:\n  max_steps: 1" + "0" * 5000, "run.yaml:2", "digits"),
    "a number of base 60": ("train:\n  max_steps: 1:30\n", "run.yaml:2", "1:30"),
    "an octal number": ("train:\n  max_steps: 0100\n", "run.yaml:2", "0100"),
    "a tab": ("train:\n\tepochs: 1\n", "run.yaml:2"),
    "a key twice": ("train:\n  epochs: 1\n  epochs: 2\n", "run.yaml:3", "train.epochs"),
    "a control character": (b"train:\n  epochs: \x07\n", "run.yaml:2"),
    "UTF-16": ("train: {epochs: 1}".encode("utf-16"), "run.yaml", "UTF-8"),
    "Latin-1": ("data:\n  system: caf\xe9\n".encode("latin-1"), "run.yaml", "UTF-8"),
    "an unpaired surrogate": ('data:\n  system: "\\udc80"\n', "run.yaml:2", "data.system"),
    "an unpaired surrogate as key": ('data:\n  "\\ud800": 1\n', "run.yaml:2"),
    "a Python object": ("train: !!python/object/apply:os.system ['touch canary']\n", "run.yaml:1", "python"),
    "an unknown tag": ("data:\n  system: !secret x\n", "run.yaml:2", "!secret"),
    "binary": ("data:\n  system: !!binary aGVsbG8=\n", "run.yaml:2", "binary"),
    "an invalid integer": ("train:\n  seed: !!int abc\n", "run.yaml:2", "!!int"),
    "an invalid mapping": ("train: !!map [1]\n", "run.yaml:1"),
    "a list as key": ("? [a, b]\n: 1\n", "run.yaml:1"),
    "a number as key": ("5: 1\n", "run.yaml:1", "5"),
    "a very long key": (f"{'k' * 1000}: 1\n", "run.yaml:1"),
    "a list": ("- a\n- b\n", "run.yaml:1"),
    "two documents": ("train: {epochs: 1}\n---\ntrain: {epochs: 2}\n", "run.yaml:2"),
    "a directive": ("%YAML 99.9\n---\ntrain: {epochs: 1}\n", "run.yaml:1"),
    "2 MB": ("# " + "x" * (2 << 20), "run.yaml", "bytes"),
    "50,000 entries": ("data:\n  train: [" + "a, " * 50_000 + "a]\n", "run.yaml:2", "20,000"),
    "a dotted key and its section": ("optim.lr: 1\noptim:\n  lr: 2\n", "run.yaml:3", "optim.lr"),
    "an alias and its key": ("seed: 1\ntrain:\n  seed: 2\n", "run.yaml:1", "run.yaml:3"),
    "an unknown key like a known one": ("train:\n  epoch: 1\n", "run.yaml:2", "epochs"),
    "nothing": ("",),
    "a byte order mark": ("\ufefftrain: {epochs: 1}\n",),
    "an alias": ("train: &t {epochs: 1}\nobjective: {name: sft}\n",),
    "a merge": ("train:\n  <<: {epochs: 1}\n  seed: 2\n",),
    "a date as string": ("logging:\n  run_name: 2024-01-01\n",),
    "empty sections": ("train:\noptim: ~\n",),
}
FILES: Table[list[str]] = {
    "an endless one": (["--config", "/dev/zero"], "/dev/zero"),
    "one that is not there": (["--config", "gone.yaml"], "gone.yaml"),
    "a NUL in its name": (["--config", "a\0b.yaml"], "a"),
    "a path of 5,000 characters": (["--config", "a/" * 2500 + "run.yaml"], "run.yaml"),
    "an unpaired surrogate in its name": (["--config", "\udc80.yaml"], "yaml"),
    "no name": (["--config", ""], "cannot be read"),
    "two": (["a.yaml", "b.yaml"], "a.yaml", "b.yaml"),
}


def _written(content: str | bytes) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / "run.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
        return ["config", "show", "--config", "run.yaml"]

    return build


CASES = [*table("YAML", DOCUMENTS, _written), *table("file", FILES, lambda argv: lambda _: ["config", "show", *argv])]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_a_configuration_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)


SEED = (
    "train:\n  epochs: 2\n  seed: 7\noptim: {lr: 1.0e-5, beta1: 0.9}\ndata:\n  columns:\n    a: query\n  train: [x]\n"
)
PIECES = (
    *("[", "{", "]", "}", ":", "- ", "&a ", "*a", "!!", "!", "'", '"', "\t", "\n", "%", "|", ">", "? ", ", ", "#"),
    *("\u2028", "\x85", "\ufffe", "\0", "~", "<<: ", "1e999", "\\", "@", "`", "---\n", "...\n", "=", "0x", "é"),
)


@examples(50)
@given(
    st.lists(st.tuples(st.integers(0, len(SEED)), st.sampled_from(PIECES), st.integers(0, 9)), min_size=1, max_size=4)
)
def test_random_damage_is_handled_clearly(template: Path, edits: list[tuple[int, str, int]]) -> None:
    """Put pieces into a good configuration, and take a few characters out behind them."""
    text = SEED
    for at, piece, cut in edits:
        text = text[:at] + piece + text[at + cut :]
    judge(_in_file(text, "run.yaml", expected="either"), template)


# ---------------------------------------------------------------- files and folders that a configuration names

LOOP = "{% for a in range(99999) %}"
NO_FILES = ("a pipe", "a folder", "/dev/zero", "a link to itself", "Latin-1", "nothing there", "data.jsonl/x")


def _naming(flag: str, name: str, folder: Path) -> list[str]:
    (folder / "a folder").mkdir()
    os.mkfifo(folder / "a pipe")
    (folder / "Latin-1").write_bytes(b"caf\xe9")
    (folder / "a link to itself").symlink_to("a link to itself")
    (folder / "malformed").write_text("{% if %}")
    (folder / "endless").write_text(LOOP * 3 + "{% endfor %}" * 3)
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    flags = ["--dataset", "data.jsonl", "--max_steps", "1", "--backend.device", "cpu"]
    return ["sft", "--model", "model", *flags, flag, name]


@pytest.mark.parametrize("flag", ["--chat_template", "--data.cache", "--output_dir", "--resume_from_checkpoint"])
@examples(7)
@given(st.sampled_from(NO_FILES))
def test_file_that_a_configuration_names_is_refused(flag: str, template: Path, name: str) -> None:
    made = flag in ("--data.cache", "--output_dir") and name in ("a folder", "nothing there")
    names = (name,) if "--c" in flag or "--r" in flag else (name, flag)
    judge(Case(name, partial(_naming, flag, name), "works" if made else "refused", () if made else names), template)


@pytest.mark.parametrize("name", ["malformed", "endless", "sparse"])
def test_chat_template_that_is_unusable_is_refused(name: str, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift.models.tokenizer.PATIENCE", 1.0)
    judge(Case(name, partial(_naming, "--chat_template", name), names=(name,)), template)


@examples(6)
@given(not_a_file)
def test_configuration_that_is_no_file_is_refused(template: Path, name: str) -> None:
    def build(folder: Path) -> list[str]:
        spoil.NOT_A_FILE[name](folder / "run.yaml")
        return ["config", "show", "run.yaml"]

    judge(Case(name, build, names=("run.yaml",)), template)
