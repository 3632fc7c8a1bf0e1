"""DeepSpeed's JSON, damaged: values of wrong kinds, invalid numbers, files that never end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spoil
import strategies
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge, sampled
from strategies import examples

pytest.importorskip("swift_backend_deepspeed")

from swift_backend_deepspeed.value_kinds import KINDS

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


@examples(150)
@given(st.sampled_from([(section, key) for section, keys in KINDS.items() for key in keys]).flatmap(_wrong))
def test_wrong_value_of_a_key_is_refused(template: Path, spoiled: tuple[str, str, Any]) -> None:
    section, key, value = spoiled
    content: dict[str, Any] = {key: value}
    for name in reversed(section.split(".") if section else []):
        content = {name: content}
    judge(Case(f"{section}.{key}", partial(_written, json.dumps(content)), names=("ds.json", key)), template)


@examples(6)
@given(strategies.not_a_file)
def test_deepspeed_json_that_is_no_file_is_refused(template: Path, name: str) -> None:
    def build(folder: Path) -> list[str]:
        spoil.NOT_A_FILE[name](folder / "ds.json")
        return ["config", "show", "--deepspeed", "ds.json"]

    judge(Case(name, build, names=("ds.json",)), template)


DOCUMENTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "nothing": ("", ("ds.json:1",)),
    "a list": ("[]", ("ds.json",)),
    "a number": ("5", ("ds.json",)),
    "cut off": ('{"zero_optimization": {"stage": 2', ("ds.json:1",)),
    "a comment": ('{\n// clip\n"gradient_clipping": 1.0}', ("ds.json:2",)),
    "lists nested 100,000 deep": ("[" * 100_000, ("ds.json", "deep")),
    "objects nested 50 deep": ('{"a":' * 50 + "1" + "}" * 50, ("ds.json", "deep")),
    "a number of 5,000 digits": ('{"train_batch_size": ' + "9" * 5000 + "}", ("ds.json",)),
    "1e999": ('{"gradient_clipping": 1e999}', ("ds.json", "gradient_clipping")),
    "NaN": ('{"gradient_clipping": NaN}', ("ds.json", "gradient_clipping")),
    "NaN in a section that is not read": ('{"aio": {"block_size": NaN}}', ("ds.json", "block_size")),
    "a key twice": ('{"fp16": {"enabled": true, "enabled": false}}', ("ds.json", "enabled")),
    "an unpaired surrogate": ('{"communication_data_type": "\\ud800"}', ("ds.json", "communication_data_type")),
    "an unpaired surrogate as key": ('{"\\ud800": 1}', ("ds.json",)),
    "a very long key": (json.dumps({"k" * 10_000: 1}), ("ds.json",)),
    "UTF-16": ('{"gradient_clipping": 1.0}'.encode("utf-16"), ("ds.json", "UTF-8")),
    "Latin-1": ('{"communication_data_type": "caf\xe9"}'.encode("latin-1"), ("ds.json", "UTF-8")),
    "2 MB": ('{"a": "' + "x" * (2 << 20) + '"}', ("ds.json", "bytes")),
    "stage true": ('{"zero_optimization": {"stage": true}}', ("ds.json", "stage")),
    "stage 2.5": ('{"zero_optimization": {"stage": 2.5}}', ("ds.json", "stage")),
    "a learning rate out of bounds": ('{"optimizer": {"params": {"lr": 1e9}}}', ("ds.json", "optimizer.params.lr")),
    "betas of one": ('{"optimizer": {"params": {"betas": [1.0, 0.9]}}}', ("ds.json", "betas")),
    "a batch out of bounds": ('{"train_batch_size": 1000000000000}', ("ds.json", "train_batch_size")),
    "an invalid optimizer": ('{"optimizer": {"type": ["AdamW"]}}', ("ds.json", "optimizer.type")),
    "tensor parallel out of bounds": ('{"tensor_parallel": {"autotp_size": 1e12}}', ("ds.json", "autotp_size")),
}


def _cases() -> Iterator[Case]:
    for name, (content, names) in DOCUMENTS.items():
        yield Case(f"document: {name}", partial(_written, content), names=names)
    nulls = {"zero_optimization": {"stage": 2, "offload_optimizer": None}, "fp16": None, "gradient_clipping": None}
    yield Case("document: null is the default", partial(_written, json.dumps(nulls)), "works")
    yield Case("document: a byte order mark", partial(_written, b"\xef\xbb\xbf{}"), "works")
    for what, name in (
        ("/dev/zero", "/dev/zero"),
        ("not there", "gone.json"),
        ("a NUL in its name", "a\0b.json"),
        ("an unpaired surrogate in its name", "\udc80.json"),
        ("a path of 5,000 characters", "a/" * 2500 + "ds.json"),
    ):
        names = (name,) if what in ("/dev/zero", "not there") else ()
        yield Case(f"file: {what}", lambda _, name=name: ["config", "show", "--deepspeed", name], names=names)
    for value in ("5", "{zero_optimization: []}", "{1: 2}", '"\\0"'):

        def in_yaml(folder: Path, value: str = value) -> list[str]:
            (folder / "run.yaml").write_text(f"backend:\n  name: deepspeed\n  config: {value}\n")
            return ["config", "show", "run.yaml"]

        yield Case(f"in YAML: {value}", in_yaml)


@pytest.mark.parametrize("case", sampled(list(_cases()), every=4))
def test_deepspeed_json_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)


def test_every_known_key_of_a_section_has_a_kind() -> None:
    from swift_backend_deepspeed.known_keys import KNOWN

    free = {"pipeline_loading_checkpoint", "log_level", "compile"}
    for section in ("zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        assert not KNOWN[section] - KINDS[section].keys() - free, section
    for section in ("fp16", "bf16", "optimizer", "scheduler", "activation_checkpointing", ""):
        assert not KNOWN[section] - KINDS[section].keys() - free, section
