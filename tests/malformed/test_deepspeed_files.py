"""DeepSpeed's JSON, damaged: sections that are lists or switches, numbers that are none, files that never end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge import Case, judge, sampled

pytest.importorskip("swift_backend_deepspeed")

from swift_backend_deepspeed.value_kinds import KINDS

SECTIONS: tuple[Any, ...] = ([], [1], True, False, 5, "text", "", [{"a": 1}])
SWITCHES: tuple[Any, ...] = (5, "true", "", [], {}, 1.5, [True])
NUMBERS: tuple[Any, ...] = (True, "5e8", "", [], {}, -1, 1e300, 10**30, float("nan"), float("inf"), -float("inf"))
TEXTS: tuple[Any, ...] = (5, True, [], {}, "", "\ud800", "a\0b")
BETAS: tuple[Any, ...] = (
    5,
    True,
    [],
    [0.9],
    [0.9, 0.9, 0.9],
    [0.9, 2],
    ["a", "b"],
    [None, None],
    {},
    "0.9",
    [1.0, 1.0],
)


def _values(wanted: str) -> tuple[Any, ...]:
    if wanted == "an object":
        return SECTIONS
    if wanted == "true or false":
        return SWITCHES
    if wanted == "a text":
        return TEXTS
    if wanted.startswith("a list"):
        return BETAS
    return NUMBERS


def _nested(place: str, key: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = {key: value}
    for section in reversed(place.split(".") if place else []):
        content = {section: content}
    return content


def _file(content: str | bytes, *more: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "ds.json").write_bytes(content.encode() if isinstance(content, str) else content)
        return ["config", "show", "sft", "--deepspeed", "ds.json", *more]

    return build


def _keys() -> Iterator[Case]:
    for place, kinds in KINDS.items():
        for key, (wanted, _fits) in kinds.items():
            for number, value in enumerate(_values(wanted)):
                text = json.dumps(_nested(place, key, value))
                path = f"{place}.{key}".lstrip(".")
                yield Case(f"{path}: {number} {str(value)[:30]!a}", _file(text), names=("ds.json", key))


DOCUMENTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "nothing": ("", ("ds.json:1",)),
    "only blanks": ("  \n\n ", ("ds.json",)),
    "a list": ("[]", ("ds.json",)),
    "a number": ("5", ("ds.json",)),
    "null": ("null", ("ds.json",)),
    "a text": ('"zero2"', ("ds.json",)),
    "cut off": ('{"zero_optimization": {"stage": 2', ("ds.json:1",)),
    "a comma too many": ('{"gradient_clipping": 1.0,}', ("ds.json:1",)),
    "a comment": ('{\n// clip\n"gradient_clipping": 1.0}', ("ds.json:2",)),
    "single quotes": ("{'gradient_clipping': 1.0}", ("ds.json:1",)),
    "two objects": ("{}{}", ("ds.json:1",)),
    "lists nested 100,000 deep": ("[" * 100_000, ("ds.json", "deep")),
    "objects nested 100,000 deep": ('{"a":' * 100_000, ("ds.json", "deep")),
    "objects nested 50 deep": ('{"a":' * 50 + "1" + "}" * 50, ("ds.json", "deep")),
    "a number of 5,000 digits": ('{"train_batch_size": ' + "9" * 5000 + "}", ("ds.json",)),
    "1e999": ('{"gradient_clipping": 1e999}', ("ds.json", "gradient_clipping")),
    "NaN": ('{"gradient_clipping": NaN}', ("ds.json", "gradient_clipping")),
    "-Infinity": ('{"optimizer": {"params": {"lr": -Infinity}}}', ("ds.json", "lr")),
    "NaN where nobody looks": ('{"aio": {"block_size": NaN}}', ("ds.json", "block_size")),
    "a key twice": ('{"fp16": {"enabled": true, "enabled": false}}', ("ds.json", "enabled")),
    "a lone surrogate": ('{"communication_data_type": "\\ud800"}', ("ds.json", "communication_data_type")),
    "a lone surrogate as key": ('{"\\ud800": 1}', ("ds.json",)),
    "an empty key": ('{"": 1}', ("ds.json",)),
    "a very long key": (json.dumps({"k" * 10_000: 1}), ("ds.json",)),
    "UTF-16": ('{"gradient_clipping": 1.0}'.encode("utf-16"), ("ds.json", "UTF-8")),
    "Latin-1": ('{"communication_data_type": "caf\xe9"}'.encode("latin-1"), ("ds.json", "UTF-8")),
    "NUL bytes": (b"\0" * 100, ("ds.json",)),
    "YAML": ("zero_optimization:\n  stage: 2\n", ("ds.json:1",)),
    "2 MB": ('{"a": "' + "x" * (2 << 20) + '"}', ("ds.json", "bytes")),
    "stage true": ('{"zero_optimization": {"stage": true}}', ("ds.json", "stage")),
    "stage 2.5": ('{"zero_optimization": {"stage": 2.5}}', ("ds.json", "stage")),
    "stage 10**30": ('{"zero_optimization": {"stage": 1' + "0" * 30 + "}}", ("ds.json", "stage")),
    "a learning rate beyond reason": ('{"optimizer": {"params": {"lr": 1e9}}}', ("ds.json", "optimizer.params.lr")),
    "betas of one": ('{"optimizer": {"params": {"betas": [1.0, 0.9]}}}', ("ds.json", "betas")),
    "a batch beyond reason": ('{"train_batch_size": 1000000000000}', ("ds.json", "train_batch_size")),
    "an optimizer that is none": ('{"optimizer": {"type": ["AdamW"]}}', ("ds.json", "optimizer.type")),
    "a scheduler that is none": ('{"scheduler": {"type": {"a": 1}}}', ("ds.json", "scheduler.type")),
    "tensor parallel beyond reason": ('{"tensor_parallel": {"autotp_size": 1e12}}', ("ds.json", "autotp_size")),
}


def _documents() -> Iterator[Case]:
    for name, (content, names) in DOCUMENTS.items():
        yield Case(f"document: {name}", _file(content), names=names)
    nulls = {"zero_optimization": {"stage": 2, "offload_optimizer": None}, "fp16": None, "gradient_clipping": None}
    yield Case("document: null leaves open", _file(json.dumps(nulls)), "works")
    yield Case("document: a byte order mark", _file(b"\xef\xbb\xbf{}"), "works")


def _files() -> Iterator[Case]:
    def fifo(folder: Path) -> list[str]:
        os.mkfifo(folder / "ds.json")
        return ["config", "show", "--deepspeed", "ds.json"]

    def directory(folder: Path) -> list[str]:
        (folder / "ds.json").mkdir()
        return ["config", "show", "--deepspeed", "ds.json"]

    def endless(folder: Path) -> list[str]:
        with (folder / "ds.json").open("wb") as file:
            file.truncate(1 << 40)
        return ["config", "show", "--deepspeed", "ds.json"]

    def said(value: str) -> Callable[[Path], list[str]]:
        return lambda _: ["config", "show", "--deepspeed", value]

    def in_yaml(value: str) -> Callable[[Path], list[str]]:
        def build(folder: Path) -> list[str]:
            (folder / "run.yaml").write_text(f"backend:\n  name: deepspeed\n  config: {value}\n")
            return ["config", "show", "run.yaml"]

        return build

    yield Case("file: a pipe", fifo, names=("ds.json", "pipe"))
    yield Case("file: a folder", directory, names=("ds.json", "folder"))
    yield Case("file: a sparse terabyte", endless, names=("ds.json", "bytes"))
    yield Case("file: /dev/zero", said("/dev/zero"), names=("/dev/zero",))
    yield Case("file: not there", said("gone.json"), names=("gone.json",))
    yield Case("file: a NUL in its name", said("a\0b.json"))
    yield Case("file: half a character in its name", said("\udc80.json"))
    yield Case("file: a name of 5,000 characters", said("x" * 5000))
    yield Case("file: a path of 5,000 characters", said("a/" * 2500 + "ds.json"))
    for value in ("5", "true", "[]", "{zero_optimization: []}", "{fp16: true}", "{nonsense: 1}", "{1: 2}", '"\\0"'):
        yield Case(f"in YAML: {value}", in_yaml(value))


CASES = [*_documents(), *_files(), *_keys()]


@pytest.mark.parametrize("case", sampled(CASES))
def test_deepspeeds_json_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)


def test_every_known_key_of_a_section_has_a_kind() -> None:
    from swift_backend_deepspeed.known_keys import KNOWN

    free = {"pipeline_loading_checkpoint", "log_level", "compile"}
    for place in ("zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        assert not KNOWN[place] - KINDS[place].keys() - free, place
    for place in ("fp16", "bf16", "optimizer", "scheduler", "activation_checkpointing", ""):
        assert not KNOWN[place] - KINDS[place].keys() - free, place
