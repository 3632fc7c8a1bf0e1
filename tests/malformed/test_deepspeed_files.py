"""DeepSpeed's JSON, damaged: values of wrong kinds, invalid numbers, files that never end."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spoil
import strategies
from hypothesis import given
from hypothesis import strategies as st
from judge import Build, Case, Table, judge, sampled, table
from strategies import examples

pytest.importorskip("swift_backend_deepspeed")

from swift_backend_deepspeed.known_keys import KINDS

RIGHT = {
    "an object": ("mapping", "null"),
    "true or false": ("switch", "null"),
    "a string": ("text", "null"),
    "a list": ("list", "null"),
}
"""What a key takes → kinds of values that may be right; other keys take numbers."""
INVALID: dict[str, tuple[Any, ...]] = {
    "an object": (),
    "true or false": (),
    "a string": ("", "\ud800", "a\0b"),
    "a list": ([], [0.9], [0.9, 0.9, 0.9], [0.9, 2], ["a", "b"], [None, None], [1.0, 1.0]),
}
"""What a key takes → values of that kind that are invalid."""
NUMBERS = (-1, 1e300, 10**30, math.nan, math.inf, -math.inf)


def _wrong(section: tuple[str, str]) -> st.SearchStrategy[tuple[str, str, Any]]:
    wanted = KINDS[section[0]][section[1]][0]
    kind = "a list" if wanted.startswith("a list") else wanted
    right = RIGHT.get(kind, ("number", "null"))
    others = [value for name, values in strategies.KINDS.items() if name not in right for value in values]
    return st.tuples(st.just(section[0]), st.just(section[1]), st.sampled_from([*others, *INVALID.get(kind, NUMBERS)]))


def _written(content: str | bytes, folder: Path) -> list[str]:
    (folder / "ds.json").write_bytes(content.encode() if isinstance(content, str) else content)
    return ["config", "show", "sft", "--deepspeed", "ds.json"]


@examples(50)
@given(st.sampled_from([(section, key) for section, keys in KINDS.items() for key in keys]).flatmap(_wrong))
def test_wrong_value_of_a_key_is_refused(template: Path, spoiled: tuple[str, str, Any]) -> None:
    section, key, value = spoiled
    content: dict[str, Any] = {key: value}
    for name in reversed(section.split(".") if section else []):
        content = {name: content}
    judge(Case(f"{section}.{key}", partial(_written, json.dumps(content)), names=("ds.json", key)), template)


@examples(16)
@given(strategies.bad_file)
def test_deepspeed_json_that_is_no_object_is_refused(template: Path, name: str) -> None:
    def build(folder: Path) -> list[str]:
        (folder / "ds.json").write_text('{"gradient_clipping": 1.0}')
        spoil.BAD[name](folder / "ds.json")
        return ["config", "show", "--deepspeed", "ds.json"]

    judge(Case(name, build, names=("ds.json",)), template)


DOCUMENTS: Table[str | bytes] = {
    "nothing": ("", "ds.json:1"),
    "a comment": ('{\n// clip\n"gradient_clipping": 1.0}', "ds.json:2"),
    "NaN in a section that is not read": ('{"aio": {"block_size": NaN}}', "ds.json", "block_size"),
    "a key twice": ('{"fp16": {"enabled": true, "enabled": false}}', "ds.json", "enabled"),
    "an unpaired surrogate as key": ('{"\\ud800": 1}', "ds.json"),
    "a very long key": (json.dumps({"k" * 10_000: 1}), "ds.json"),
    "2 MB": ('{"a": "' + "x" * (2 << 20) + '"}', "ds.json", "bytes"),
    "stage 2.5": ('{"zero_optimization": {"stage": 2.5}}', "ds.json", "stage"),
    "a learning rate out of bounds": ('{"optimizer": {"params": {"lr": 1e9}}}', "ds.json", "optimizer.params.lr"),
    "betas of one": ('{"optimizer": {"params": {"betas": [1.0, 0.9]}}}', "ds.json", "betas"),
    "a batch out of bounds": ('{"train_batch_size": 1000000000000}', "ds.json", "train_batch_size"),
    "tensor parallel out of bounds": ('{"tensor_parallel": {"autotp_size": 1e12}}', "ds.json", "autotp_size"),
    "null is the default": ('{"zero_optimization": {"stage": 2, "offload_optimizer": null}, "fp16": null}',),
}
FILES: Table[str] = {
    "an endless one": ("/dev/zero", "/dev/zero"),
    "one that is not there": ("gone.json", "gone.json"),
    "a NUL in its name": ("a\0b.json", "json"),
    "a path of 5,000 characters": ("a/" * 2500 + "ds.json", "a/a/a"),
}


def _in_yaml(value: str) -> Build:
    def build(folder: Path) -> list[str]:
        (folder / "run.yaml").write_text(f"backend:\n  name: deepspeed\n  config: {value}\n")
        return ["config", "show", "run.yaml"]

    return build


YAML: Table[str] = {"a number": ("5", "not a number"), "a key that is a number": ("{1: 2}", "run.yaml")}
CASES = [
    *table("document", DOCUMENTS, lambda content: partial(_written, content)),
    *table("file", FILES, lambda name: lambda _: ["config", "show", "--deepspeed", name]),
    *table("in YAML", YAML, _in_yaml),
]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_deepspeed_json_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)
