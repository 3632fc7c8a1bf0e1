"""Configurations that nobody should be trained by: values of wrong kinds, YAML that is none or too much, odd flags."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judge import Case, judge, sampled

from swift.config.fields import Field, core_fields, model_fields
from swift.config.sections import Config
from swift.plugins.load import load_objective

LONG = "x" * 5000
NUMBERS = (
    "true",
    '""',
    "abc",
    ".nan",
    "-.inf",
    "-1",
    "1.0e+300",
    "1" + "0" * 25,
    "[1]",
    "{a: 1}",
    '"\\0"',
    "2024-01-01",
)
SWITCHES = ("2", "maybe", "[true]", "{a: 1}", ".nan", "1.0e+300", '"\\0"', '"\\ud800"')
CHOICES = ("nonsense", "5", "[a]", "{a: b}", '"\\0"', '"\\ud800"', "1.0e+300")
TEXTS = ("5", "1.5", "true", "[a]", "{a: b}", '"\\0"', '"\\ud800"')
NAMES = (*TEXTS, '""', '"  "', LONG, "a/" + LONG)
LISTS = ("5", "true", "[1]", "[[a]]", "{a: b}", '["\\0"]', '["\\ud800"]', '[""]', "[null]")
MAPPINGS = ("5", "true", "[a]", "text", "{1: a}", '{a: "\\0"}', '{"\\ud800": a}', "[{a: b}]", "{a: .nan}")
WHOLE_SECTIONS = ("[]", "5", "true", "text", '"\\ud800"', "[{a: b}]", "{nonsense: 1}", '{"": 1}', "{a.b: 1}", "{1: 2}")
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


def _values(field: Field) -> tuple[str, ...]:
    if field.kind == "switch":
        return SWITCHES
    if field.kind == "list":
        return LISTS
    if field.kind == "mapping":
        return MAPPINGS
    if field.type_name in ("integer", "number"):
        return NUMBERS
    if " | " in field.type_name:
        return CHOICES
    return TEXTS if field.key == "data.system" else NAMES


def _in_file(key: str, value: str, verb: str = "show") -> Case:
    section, _, name = key.partition(".")

    def build(folder: Path) -> list[str]:
        (folder / "run.yaml").write_text(f"# a run\n{section}:\n  {name}: {value}\n", encoding="utf-8")
        return ["config", verb, "train", "run.yaml"]

    # A key of a mapping that is no text is said by itself.
    return Case(f"{key}: {_short(value)}", build, names=("run.yaml:3", *(() if value == "{1: a}" else (name,))))


def _short(value: str) -> str:
    return value if len(value) < 40 else f"{value[:30]}... of {len(value)}"


def _fields() -> Iterator[Case]:
    for key, field in core_fields().items():
        for value in (*_values(field), *BEYOND.get(key, ())):
            # 'null' leaves an optional key open, and -1 is ms-swift's word for 'no limit of steps', as a flag only.
            yield _in_file(key, value)


def _sections() -> Iterator[Case]:
    for section in Config.model_fields:
        for value in (
            "[]",
            "5",
            "true",
            "text",
            '"\\ud800"',
            "[{a: b}]",
            "{nonsense: 1}",
            '{"": 1}',
            "{a.b: 1}",
            "{1: 2}",
        ):

            def build(folder: Path, section: str = section, value: str = value) -> list[str]:
                (folder / "run.yaml").write_text(f"{section}: {value}\n", encoding="utf-8")
                return ["config", "show", "run.yaml"]

            # A section's name is an alias of one of its keys for some (`model: PATH`), whose texts are right.
            names = ("run.yaml:1",)
            name = f"section {section}: {value}"
            if value == "text" and section in ("objective", "backend"):
                yield Case(name, build, names=("'text'",), exit_code=3)
            else:
                works = section == "model" and value == "text"
                yield Case(name, build, "works" if works else "refused", () if works else names)


def _on_the_command_line() -> Iterator[Case]:
    for key, field in core_fields().items():
        for value in _typed(field):
            said = f"--{key}"
            optional = value == "" and field.optional
            yield Case(
                f"{said} {_short(value.encode('ascii', 'backslashreplace').decode())}",
                lambda _, said=said, value=value: ["config", "show", said, value],
                "either" if optional else "refused",
                (said,),
            )


def _typed(field: Field) -> tuple[str, ...]:
    if field.kind == "switch" or " | " in field.type_name:
        return ("maybe", "\ud800", "a\0b", "-7", LONG)
    if field.type_name in ("integer", "number"):
        return ("abc", "nan", "-inf", "1e400", "9" * 5000, "-7", "true", "", "\ud800", "0x10")
    if field.kind == "list":
        return ('["a", 1]', '["a", []]', '["' * 2500, "", "\ud800", "a\0b", LONG)
    if field.kind == "mapping":
        return ("[]", "{", '{"a": NaN}', "[" * 5000, '{"a": ' * 5000, "\ud800", '{"a":' + "9" * 5000 + "}")
    return ("\ud800", "a\0b", LONG) if field.key != "data.system" else ("\ud800", "a\0b")


def _of_online_learning() -> Iterator[Case]:
    """Values of the options of a plugin's objective, which are validated in the second phase."""
    for field in model_fields(load_objective("grpo").config_model or Config, "objective"):
        name = field.key.removeprefix("objective.")
        for value in _typed(field)[:3]:
            yield Case(
                f"grpo, --{field.key} {_short(value.encode('ascii', 'backslashreplace').decode())}",
                lambda _, said=f"--{field.key}", value=value: ["config", "show", "--objective", "grpo", said, value],
                names=(name,),
            )


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


def _aliases() -> Iterator[Case]:
    for said, values in ALIASES.items():
        for value in values:
            shown = _short(value.encode("ascii", "backslashreplace").decode())
            yield Case(
                f"{said} {shown}", lambda _, said=said, value=value: ["config", "show", said, value], names=(said,)
            )
    for words in (["--"], ["---"], ["--=5"], ["-z"], ["stray"], ["--" + LONG, "1"], ["--\ud800", "1"], ["--a\0b", "1"]):
        shown = _short(" ".join(words).encode("ascii", "backslashreplace").decode())
        yield Case(f"words {shown}", lambda _, words=words: ["config", "show", *words])


def _bomb(levels: int = 12) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def _merge_bomb(levels: int = 12) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


DOCUMENTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "aliases that explode": (_bomb(), ("run.yaml:", "aliases")),
    "merges that explode": (_merge_bomb(), ("run.yaml:", "aliases")),
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
    def named(name: str) -> Callable[[Path], list[str]]:
        return lambda _: ["config", "show", "--config", name]

    def fifo(folder: Path) -> list[str]:
        os.mkfifo(folder / "run.yaml")
        return ["config", "show", "run.yaml"]

    def directory(folder: Path) -> list[str]:
        (folder / "run.yaml").mkdir()
        return ["config", "show", "run.yaml"]

    def loop(folder: Path) -> list[str]:
        (folder / "run.yaml").symlink_to("run.yaml")
        return ["config", "show", "run.yaml"]

    def endless(folder: Path) -> list[str]:
        with (folder / "run.yaml").open("wb") as file:
            file.truncate(1 << 40)
        return ["config", "show", "run.yaml"]

    def linked(folder: Path) -> list[str]:
        (folder / "run.yaml").symlink_to("/dev/zero")
        return ["config", "show", "run.yaml"]

    yield Case("file: a pipe", fifo, names=("run.yaml", "pipe"))
    yield Case("file: a folder", directory, names=("run.yaml", "folder"))
    yield Case("file: a link to itself", loop, names=("run.yaml",))
    yield Case("file: a sparse terabyte", endless, names=("run.yaml", "bytes"))
    yield Case("file: a link to /dev/zero", linked, names=("run.yaml", "device"))
    yield Case("file: /dev/zero", named("/dev/zero"), names=("/dev/zero",))
    yield Case("file: not there", named("gone.yaml"), names=("gone.yaml",))
    yield Case("file: a NUL in its name", named("a\0b.yaml"))
    yield Case("file: a name of 5,000 characters", named(LONG + ".yaml"), names=("xxx",))
    yield Case("file: a path of 5,000 characters", named("a/" * 2500 + "run.yaml"))
    yield Case("file: half a character in its name", named("\udc80.yaml"))
    yield Case("file: no name", named(""))
    yield Case("files: two", lambda _: ["config", "show", "a.yaml", "b.yaml"], names=("a.yaml", "b.yaml"))


SEED = (
    "train:\n  epochs: 2\n  seed: 7\noptim: {lr: 1.0e-5, beta1: 0.9}\ndata:\n  columns:\n    a: query\n  train: [x]\n"
)


def _mutated() -> Iterator[Case]:
    """A good configuration with a few characters put in, taken away or doubled: anything but an unclear answer."""
    pieces = [
        "[",
        "{",
        "]",
        "}",
        ":",
        "- ",
        "&a ",
        "*a",
        "!!",
        "!",
        "'",
        '"',
        "\t",
        "\n",
        "%",
        "|",
        ">",
        "? ",
        ", ",
        "#",
    ]
    pieces += ["\u2028", "\x85", "\ufffe", "\0", "~", "<<: ", "1e999", "\\", "@", "`", "---\n", "...\n", "=", "0x", "é"]
    for number in range(150):
        draw = random.Random(f"mutated {number}")
        text = SEED
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text) + 1)
            inserted, cut, doubled = draw.choice(pieces), text[at + draw.randint(1, 9) :], text[:at]
            text = draw.choice([text[:at] + inserted + text[at:], text[:at] + cut, doubled * 2])

        def build(folder: Path, text: str = text) -> list[str]:
            (folder / "run.yaml").write_text(text, encoding="utf-8")
            return ["config", "show", "run.yaml"]

        yield Case(f"mutated {number}", build, "either", ("run.yaml",))


CASES = [
    *_documents(),
    *_files(),
    *_sections(),
    *_fields(),
    *_on_the_command_line(),
    *_of_online_learning(),
    *_aliases(),
    *_mutated(),
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_configuration_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)


def test_the_generator_has_not_shrunk() -> None:
    assert len(CASES) > 1200
    assert json.dumps([case.name for case in CASES])
