"""DeepSpeed's JSON, damaged: sections that are lists or switches, numbers that are none, files that never end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spoil
from draws import KINDS as KINDS_OF_JSON
from draws import drawn, judge_all
from judge import Case, judge, sampled

pytest.importorskip("swift_backend_deepspeed")

from swift_backend_deepspeed.value_kinds import KINDS

RIGHT = {
    "an object": ("mapping", "null"),
    "true or false": ("switch", "null"),
    "a text": ("text", "null"),
    "a list": ("list", "null"),
}
"""What a key takes → kinds of values that may be right; other keys take numbers."""
BAD_TEXTS = ("", "\ud800", "a\0b")
NO_BETAS: tuple[Any, ...] = ([], [0.9], [0.9, 0.9, 0.9], [0.9, 2], ["a", "b"], [None, None], [1.0, 1.0])
NO_NUMBERS: tuple[Any, ...] = (-1, 1e300, 10**30, math.nan, math.inf, -math.inf)


def _values(path: str, wanted: str) -> list[Any]:
    """Two values of other kinds, and one of the right kind that is invalid."""
    kind = "a list" if wanted.startswith("a list") else wanted
    of_the_kind: tuple[Any, ...] = {
        "an object": (),
        "true or false": (),
        "a text": BAD_TEXTS,
        "a list": NO_BETAS,
    }.get(kind, NO_NUMBERS)
    others = [
        value
        for name, values in KINDS_OF_JSON.items()
        for value in values
        if name not in RIGHT.get(kind, ("number", "null"))
    ]
    return [*drawn(path, others, 2), *drawn(path, of_the_kind, 1)]


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


@pytest.mark.parametrize("section", KINDS, ids=lambda section: section or "top")
def test_wrong_value_of_a_key_is_refused(section: str, template: Path) -> None:
    cases = []
    for key, (wanted, _fits) in KINDS[section].items():
        path = f"{section}.{key}".lstrip(".")
        for value in _values(path, wanted):
            build = _file(json.dumps(_nested(section, key, value)))
            cases.append(Case(f"{path}: {str(value)[:30]!a}", build, names=("ds.json", key)))
    judge_all(cases, template)


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
    for what, change in spoil.NOT_A_FILE.items():

        def build(folder: Path, change: Callable[[Path], object] = change) -> list[str]:
            change(folder / "ds.json")
            return ["config", "show", "--deepspeed", "ds.json"]

        yield Case(f"file: {what}", build, names=("ds.json",))
    for what, name in (
        ("/dev/zero", "/dev/zero"),
        ("not there", "gone.json"),
        ("a NUL in its name", "a\0b.json"),
        ("an unpaired surrogate in its name", "\udc80.json"),
        ("a name of 5,000 characters", "x" * 5000),
        ("a path of 5,000 characters", "a/" * 2500 + "ds.json"),
    ):
        names = (name,) if what in ("/dev/zero", "not there") else ()
        yield Case(f"file: {what}", lambda _, name=name: ["config", "show", "--deepspeed", name], names=names)
    for value in ("5", "[]", "{zero_optimization: []}", "{fp16: true}", "{nonsense: 1}", "{1: 2}", '"\\0"'):

        def in_yaml(folder: Path, value: str = value) -> list[str]:
            (folder / "run.yaml").write_text(f"backend:\n  name: deepspeed\n  config: {value}\n")
            return ["config", "show", "run.yaml"]

        yield Case(f"in YAML: {value}", in_yaml)


CASES = [*_documents(), *_files()]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_deepspeeds_json_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)


def test_every_known_key_of_a_section_has_a_kind() -> None:
    from swift_backend_deepspeed.known_keys import KNOWN

    free = {"pipeline_loading_checkpoint", "log_level", "compile"}
    for place in ("zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        assert not KNOWN[place] - KINDS[place].keys() - free, place
    for place in ("fp16", "bf16", "optimizer", "scheduler", "activation_checkpointing", ""):
        assert not KNOWN[place] - KINDS[place].keys() - free, place
