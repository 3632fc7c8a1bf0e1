"""Configurations that cannot be used: values of wrong kinds, invalid or excessive YAML, odd flags.

Classes of defect: a value of the wrong kind, out of bounds or that no key can take, for every key, in a file and on the
command line; a section that is no mapping; YAML that is invalid, unsafe, too deep, too large or expands; a file that is
none; a misspelt or damaged flag; random damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import spoil
from draws import drawn, judge_all
from judge import Case, judge, sampled

from swift.config.fields import Field, core_fields, model_fields
from swift.config.sections import Config
from swift.plugins.load import load_objective

LONG = "x" * 5000
TEXTS = ("5", "1.5", "true", "[a]", "{a: b}", '"\\0"', '"\\ud800"')
NUMBERS = (*TEXTS[2:6], '""', "abc", ".nan", "-.inf", "-1", "1.0e+300", "1" + "0" * 25, "2024-01-01")
IN_FILES = {
    "switch": ("2", "maybe", "[true]", "{a: 1}", ".nan", "1.0e+300", '"\\0"', '"\\ud800"'),
    "number": NUMBERS,
    "choice": ("nonsense", "5", "[a]", "{a: b}", '"\\0"', '"\\ud800"', "1.0e+300"),
    "list": ("5", "true", "[1]", "[[a]]", "{a: b}", '["\\0"]', '["\\ud800"]', '[""]', "[null]"),
    "mapping": ("5", "true", "[a]", "text", "{1: a}", '{a: "\\0"}', '{"\\ud800": a}', "[{a: b}]", "{a: .nan}"),
    "prompt": TEXTS,
    "text": (*TEXTS, '""', '"  "', LONG, "a/" + LONG),
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
BEYOND: dict[str, tuple[str, ...]] = {
    "train.seed": ("-5", "4294967296"),
    "train.timeout_minutes": ("0", "1.0e+12", "1.0e-9"),
    "train.max_steps": ("0", "99999999999"),
    "train.epochs": ("0", "1.0e+9"),
    "train.micro_batch": ("0", "1000000000"),
    "train.global_batch": ("0", "1.5", "1000000000"),
    "optim.lr": ("0", "1.0e+9"),
    "optim.beta1": ("1", "1.5"),
    "optim.beta2": ("1.0",),
    "checkpoint.save_steps": ("0", "1.0e+30"),
    "data.max_length": ("0", "1000000000000"),
    "data.workers": ("1000000",),
    "data.split_ratio": ("1.0", "1.5"),
    "tuner.rank": ("0", "10000000"),
    "tuner.dropout": ("1.0",),
    "parallel.tp": ("0", "100000000"),
    "export.shard_size_gb": ("0", "1.0e-12"),
    "logging.run_name": ('"../../elsewhere"', "/tmp/elsewhere", '"."'),
}
"""Of the right kind, and beyond what can be meant."""


def _kind(field: Field) -> str:
    if field.kind in ("switch", "list", "mapping"):
        return field.kind
    if field.type_name in ("integer", "number"):
        return "number"
    return "choice" if " | " in field.type_name else "prompt" if field.key == "data.system" else "text"


def _shown(value: str) -> str:
    value = value.encode("ascii", "backslashreplace").decode()
    return value if len(value) < 40 else f"{value[:30]}... of {len(value)}"


def _in_file(text: str, *names: str, title: str = "", command: str = "show") -> Case:
    def build(folder: Path) -> list[str]:
        (folder / "run.yaml").write_text(text, encoding="utf-8")
        return ["config", command, "run.yaml"]

    return Case(title or _shown(text), build, names=names)


def _typed(*words: str, names: tuple[str, ...]) -> Case:
    return Case(_shown(" ".join(words)), lambda _: ["config", "show", *words], names=names)


@pytest.mark.parametrize("section", Config.model_fields)
def test_wrong_value_of_a_key_is_refused(section: str, template: Path) -> None:
    """Every key of a section: three wrong values in a file, all that are out of bounds, and one as a flag."""
    cases = []
    for key, field in core_fields().items():
        at, _, name = key.partition(".")
        if at != section:
            continue
        for value in (*drawn(key, IN_FILES[_kind(field)], 3), *BEYOND.get(key, ())):
            # A key of a mapping that is no text is named by itself.
            names = ("run.yaml:3",) if value == "{1: a}" else ("run.yaml:3", name)
            cases.append(_in_file(f"# a run\n{at}:\n  {name}: {value}\n", *names, title=f"{key}: {_shown(value)}"))
        cases += [_typed(f"--{key}", value, names=(f"--{key}",)) for value in drawn(key, TYPED[_kind(field)], 1)]
    judge_all(cases, template)


def test_wrong_option_of_an_objective_is_refused(template: Path) -> None:
    """Options of a plugin, which are validated in the second phase."""
    fields = model_fields(load_objective("grpo").config_model or Config, "objective")
    values = [(each.key, value) for each in fields for value in drawn(each.key, TYPED[_kind(each)], 1)]
    judge_all([_typed("--objective", "grpo", f"--{k}", v, names=(k.partition(".")[2],)) for k, v in values], template)


@pytest.mark.parametrize("section", Config.model_fields)
def test_section_that_is_no_mapping_is_refused(section: str, template: Path) -> None:
    """The name of some sections is an alias of one of their keys: `model: PATH`."""
    values = ("[]", "5", "true", '"\\ud800"', "[{a: b}]", "{nonsense: 1}", '{"": 1}', "{a.b: 1}", "{1: 2}")
    judge_all([_in_file(f"{section}: {value}\n", "run.yaml:1") for value in drawn(section, values, 3)], template)


ALIASES = {
    "--nproc": ("0", "-1", "1e3", "9" * 5000, "1000000", "two", "", "\ud800"),
    "--sequence_parallel_size": ("0", "two", "9" * 5000, "", "\ud800"),
    "--report_to": ("", "\ud800", "a\0b", LONG),
    "--bf16": ("maybe", "2", "\ud800"),
    "--train_type": ("", "\ud800", LONG),
    "--lr_scheduler_type": ("", "7", LONG),
    "--max_steps": ("-2", "1e30", "9" * 5000),
    "--seed": ("-1", str(2**64), "1.5"),
    "--columns": ("{", "[]", "[" * 100_000, '{"a": {"b": "c"}}', '{"a": 1e999}'),
    "--resume_from_checkpoint": ("\ud800", "a\0b", LONG),
    "--fsdp": ("nonsense", "", LONG),
    "--objective": ("", "a\0b", LONG),
    "--backend": ("", "a\0b", LONG),
    "--backend.nonsense": ("1", "\ud800", "[" * 5000),
    "--objective.nonsense": ("1", "\ud800"),
    "--objective.label_smoothing": ("true", "nan", "1e30", "-1", "1"),
    "--backend.cpu_threads": ("0", "1e9", "1000000", "true"),
}


def test_wrong_value_of_an_alias_is_refused(template: Path) -> None:
    judge_all([_typed(flag, value, names=(flag,)) for flag, values in ALIASES.items() for value in values], template)


def test_words_that_are_no_flags_are_refused(template: Path) -> None:
    words = (["--"], ["---"], ["--=5"], ["-z"], ["stray"], ["--" + LONG, "1"], ["--\ud800", "1"], ["--a\0b", "1"])
    judge_all([_typed(*each, names=()) for each in words], template)


def _bomb(first: str, begin: str = "", end: str = "") -> str:
    """Twelve levels of anchors, each of which stands for nine of the one before."""
    lines = [f"a{n}: &a{n} {begin}[{', '.join([f'*a{n - 1}'] * 9)}]{end}" for n in range(1, 12)]
    return "\n".join([f"a0: &a0 {first}", *lines])


DOCUMENTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "aliases that explode": (_bomb("[x, x, x, x, x, x, x, x, x]"), ("run.yaml:", "aliases")),
    "merges that explode": (_bomb("{x: 1}", "{<<: ", "}"), ("run.yaml:", "aliases")),
    "an anchor inside itself": ("train: &a\n  epochs: *a\n", ("run.yaml:",)),
    "a list inside itself": ("data:\n  train: &a [*a]\n", ("run.yaml:2",)),
    "a merge of itself": ("train: &a\n  <<: *a\n", ("run.yaml:",)),
    "an alias to nothing": ("train:\n  epochs: *nothing\n", ("run.yaml:2",)),
    "lists nested 100,000 deep": ("train: " + "[" * 100_000, ("run.yaml:1", "deep")),
    "mappings nested 1,000 deep": ("{a: " * 1000 + "1" + "}" * 1000, ("run.yaml:1", "deep")),
    "blocks nested 500 deep": ("".join(f"{' ' * n}a:\n" for n in range(500)), ("run.yaml:", "deep")),
    "dashes nested 10,000 deep": ("train:\n" + "- " * 10_000, ("run.yaml:", "deep")),
    "1e400": ("train:\n  epochs: 1e400\n", ("run.yaml:2", "epochs")),
    "1.0e+400": ("train:\n  epochs: 1.0e+400\n", ("run.yaml:2", "epochs")),
    "10**5000": ("train:\n  max_steps: 1" + "0" * 5000, ("run.yaml:2", "digits")),
    "0x of 5,000 digits": ("train:\n  max_steps: 0x1" + "0" * 5000, ("run.yaml:2", "digits")),
    "sixty-based": ("train:\n  max_steps: 1:30\n", ("run.yaml:2", "1:30")),
    "octal": ("train:\n  max_steps: 0100\n", ("run.yaml:2", "0100")),
    "a tab": ("train:\n\tepochs: 1\n", ("run.yaml:2",)),
    "a key twice": ("train:\n  epochs: 1\n  epochs: 2\n", ("run.yaml:3", "train.epochs")),
    "a section twice": ("train:\n  epochs: 1\ntrain:\n  seed: 2\n", ("run.yaml:3", "train")),
    "a NUL byte": (b"train:\n  epochs: \x001\n", ("run.yaml:2",)),
    "a control character": (b"train:\n  epochs: \x07\n", ("run.yaml:2",)),
    "UTF-16": ("train: {epochs: 1}".encode("utf-16"), ("run.yaml", "UTF-8")),
    "UTF-16 without a mark": ("train: {epochs: 1}".encode("utf-16-be"), ("run.yaml",)),
    "Latin-1": ("data:\n  system: caf\xe9\n".encode("latin-1"), ("run.yaml", "UTF-8")),
    "a lone surrogate": ('data:\n  system: "\\udc80"\n', ("run.yaml:2", "data.system")),
    "a lone surrogate as key": ('data:\n  "\\ud800": 1\n', ("run.yaml:2",)),
    "a Python object": ("train: !!python/object/apply:os.system ['touch canary']\n", ("run.yaml:1", "python")),
    "a Python name": ("data:\n  system: !!python/name:os.system\n", ("run.yaml:2", "python")),
    "a Python object as key": ("? !!python/object:os.x {}\n: 1\n", ("run.yaml:1",)),
    "a tag of nobody": ("data:\n  system: !secret x\n", ("run.yaml:2", "!secret")),
    "binary": ("data:\n  system: !!binary aGVsbG8=\n", ("run.yaml:2", "binary")),
    "a set": ("data:\n  train: !!set {a, b}\n", ("run.yaml:2", "set")),
    "an ordered mapping": ("data:\n  train: !!omap [a: b]\n", ("run.yaml:2", "omap")),
    "an integer that is none": ("train:\n  seed: !!int abc\n", ("run.yaml:2", "!!int")),
    "a float that is none": ("train:\n  epochs: !!float abc\n", ("run.yaml:2", "!!float")),
    "a switch that is none": ("train:\n  compile: !!bool maybe\n", ("run.yaml:2", "!!bool")),
    "a date that is none": ("train:\n  seed: !!timestamp abc\n", ("run.yaml:2", "timestamp")),
    "a mapping that is none": ("train: !!map [1]\n", ("run.yaml:1",)),
    "a list as key": ("? [a, b]\n: 1\n", ("run.yaml:1",)),
    "a mapping as key": ("? {a: b}\n: 1\n", ("run.yaml:1",)),
    "a number as key": ("5: 1\n", ("run.yaml:1", "5")),
    "a switch as key": ("on: 1\n", ("run.yaml:1", "on")),
    "null as key": ("~: 1\n", ("run.yaml:1",)),
    "an empty key": ('"": 1\n', ("run.yaml:1",)),
    "a date as key": ("2024-01-01: 1\n", ("run.yaml:1",)),
    "a very long key": (f"{'k' * 1000}: 1\n", ("run.yaml:1",)),
    "a list": ("- a\n- b\n", ("run.yaml:1",)),
    "a text": ("just words\n", ("run.yaml:1",)),
    "a number": ("5\n", ("run.yaml:1",)),
    "two documents": ("train: {epochs: 1}\n---\ntrain: {epochs: 2}\n", ("run.yaml:2",)),
    "a bracket that is not closed": ("train: {epochs: 1\n", ("run.yaml:",)),
    "a quote that is not closed": ('train: {metric_for_best: "loss}\n', ("run.yaml:",)),
    "a directive": ("%YAML 99.9\n---\ntrain: {epochs: 1}\n", ("run.yaml:1",)),
    "2 MB": ("# " + "x" * (2 << 20), ("run.yaml", "bytes")),
    "50,000 entries": ("data:\n  train: [" + "a, " * 50_000 + "a]\n", ("run.yaml:2", "20,000")),
    "a dotted key beside its section": ("optim.lr: 1\noptim:\n  lr: 2\n", ("run.yaml:3", "optim.lr")),
    "an alias beside its key": ("seed: 1\ntrain:\n  seed: 2\n", ("run.yaml:1", "run.yaml:3")),
    "an unknown key with a near one": ("train:\n  epoch: 1\n", ("run.yaml:2", "epochs")),
    "a HTML page": ("<!DOCTYPE html>\n<html><body>404</body></html>\n", ("run.yaml:",)),
    "a ZIP archive": (b"PK\x03\x04" + bytes(range(256)), ("run.yaml",)),
}
GOOD_DOCUMENTS = {
    "nothing": "",
    "comments": "# nothing\n",
    "a byte order mark": "\ufefftrain: {epochs: 1}\n",
    "an alias": "train: &t {epochs: 1}\nobjective: {name: sft}\n",
    "a merge": "train:\n  <<: {epochs: 1}\n  seed: 2\n",
    "a date as text": "logging:\n  run_name: 2024-01-01\n",
    "empty sections": "train:\noptim: ~\n",
}


def _documents() -> Iterator[Case]:
    def written(content: str | bytes) -> Callable[[Path], list[str]]:
        def build(folder: Path) -> list[str]:
            data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            (folder / "run.yaml").write_bytes(data)
            return ["config", "show", "--config", "run.yaml"]

        return build

    for name, (content, names) in DOCUMENTS.items():
        yield Case(f"YAML: {name}", written(content), names=names)
    for name, good in GOOD_DOCUMENTS.items():
        yield Case(f"YAML: {name}", written(good), "works")


def _files() -> Iterator[Case]:
    for what, change in spoil.NOT_A_FILE.items():

        def build(folder: Path, change: Callable[[Path], object] = change) -> list[str]:
            change(folder / "run.yaml")
            return ["config", "show", "run.yaml"]

        yield Case(f"file: {what}", build, names=("run.yaml",))
    for what, name, *names in (
        ("/dev/zero", "/dev/zero", "/dev/zero"),
        ("not there", "gone.yaml", "gone.yaml"),
        ("a NUL in its name", "a\0b.yaml"),
        ("a name of 5,000 characters", LONG + ".yaml", "xxx"),
        ("a path of 5,000 characters", "a/" * 2500 + "run.yaml"),
        ("an unpaired surrogate in its name", "\udc80.yaml"),
        ("no name", ""),
    ):
        yield Case(f"file: {what}", lambda _, name=name: ["config", "show", "--config", name], names=tuple(names))
    yield Case("files: two", lambda _: ["config", "show", "a.yaml", "b.yaml"], names=("a.yaml", "b.yaml"))


CASES = [*_documents(), *_files()]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_a_configuration_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)


SEED = (
    "train:\n  epochs: 2\n  seed: 7\noptim: {lr: 1.0e-5, beta1: 0.9}\ndata:\n  columns:\n    a: query\n  train: [x]\n"
)
PIECES = (
    *("[", "{", "]", "}", ":", "- ", "&a ", "*a", "!!", "!", "'", '"', "\t", "\n", "%", "|", ">", "? ", ", ", "#"),
    *("\u2028", "\x85", "\ufffe", "\0", "~", "<<: ", "1e999", "\\", "@", "`", "---\n", "...\n", "=", "0x", "é"),
)


def _mutated(number: int) -> Case:
    """A good configuration with a few characters put in, taken away or doubled."""
    draw, text = Random(f"mutated {number}"), SEED
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text) + 1)
        inserted, cut, doubled = draw.choice(PIECES), text[at + draw.randint(1, 9) :], text[:at]
        text = draw.choice([text[:at] + inserted + text[at:], text[:at] + cut, doubled * 2])
    good = _in_file(text)
    return Case(f"mutated {number}", good.build, "either", ("run.yaml",))


def test_random_damage_is_answered_clearly(template: Path) -> None:
    judge_all([_mutated(number) for number in range(60)], template)
