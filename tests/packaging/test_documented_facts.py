"""Hints, package descriptions and the page about the checkpoint format match the code."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import pytest
from tiny_runs import write_model

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
READS_PICKLES = re.compile(r"\btorch\.load\(|\bpickle\.(?:loads?|Unpickler)\b")


def test_hint_for_incomplete_weights_names_real_functions(tmp_path: Path) -> None:
    from swift.errors import ModelError
    from swift_infer import open_engine

    engine = open_engine("transformers", write_model(tmp_path / "tiny"), device="cpu")
    try:
        with pytest.raises(ModelError) as caught:
            engine.update_weights(iter(()))
    finally:
        engine.close()
    named = re.findall(r"swift(?:\.\w+)+", caught.value.hint or "")
    assert named
    for dotted in named:
        _found(dotted)


def _found(dotted: str) -> object:
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            known = getattr(found, "__dataclass_fields__", {})
            found = known[name] if name in known else getattr(found, name)
        return found
    raise AssertionError(f"there is no {dotted}")


def test_packages_register_entry_points() -> None:
    for project in sorted({*ROOT.glob("packages/*/pyproject.toml")} - {ROOT / "packages/testing/pyproject.toml"}):
        name = re.search(r'^name = "(.+)"', project.read_text(encoding="utf-8"), re.M)
        assert name is not None
        groups = {point.group for point in metadata.distribution(name[1]).entry_points}
        is_kit = name[1] == "swift-testing"  # which tests plugins, and is none
        assert any(group.startswith("swift.") for group in groups) is not is_kit, name[1]


def test_pickle_readers_match_the_format_page() -> None:
    page = (ROOT / "docs/explanation/checkpoint-format.md").read_text(encoding="utf-8")
    readers = {path.name for path in SOURCES if READS_PICKLES.search(path.read_text(encoding="utf-8"))}
    # What others pickled is opened by one reader, and Megatron's facts beside it; the third reads what it has just
    # written. `swift convert` alone gets to any of them. What processes of one run tell each other is in no file.
    assert readers - {"comms.py"} == {"untrusted_pickle.py", "native.py", "trainer_folder.py"}
    assert "swift convert" in page


def test_public_class_names_are_unique() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: where for name, where in found.items() if len(where) > 1}
