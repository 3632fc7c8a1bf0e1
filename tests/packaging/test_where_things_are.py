"""The table 'Where things are' of CONTRIBUTING.md: each file is there, and defines what the table says."""

from __future__ import annotations

import ast
import re

import import_rules

PAGE = import_rules.ROOT / "CONTRIBUTING.md"
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<file>[^`]+)` \| `(?P<name>[^`]+)` \|$", re.MULTILINE)
EXPORTERS = ("gguf", "lmdeploy", "sglang", "vllm")
FOLDERS = {"core": "swift", **{f"export-{name}": f"swift_export_{name}" for name in EXPORTERS}}

rows = [match.groups() for match in ROW.finditer(PAGE.read_text().partition("## Where things are")[2])]


def test_table_of_contributing_is_true() -> None:
    """Each file of the table defines the name beside it; the table stays short."""
    assert 10 < len(rows) <= 30
    for _, file, name in rows:
        package, _, inside = file.partition("/")
        module = FOLDERS.get(package, f"swift_{package.replace('-', '_')}")
        path = import_rules.ROOT / "packages" / package / "src" / module / inside
        assert name in defined(ast.parse(path.read_text())), file


def defined(module: ast.Module) -> set[str]:
    """Names that a module defines itself, rather than importing them."""
    found = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found
