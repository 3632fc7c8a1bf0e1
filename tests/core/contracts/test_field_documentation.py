"""Fields of contracts are documented in docstrings, which `help()` shows; it does not show strings after fields."""

from __future__ import annotations

import ast
import pydoc
import re
from itertools import pairwise
from pathlib import Path

import pytest

from swift import contracts, hookspecs
from swift.data import batch

FILES = [*sorted(Path(contracts.__file__).parent.glob("*.py")), Path(hookspecs.__file__), Path(batch.__file__)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_string_follows_a_field(file: Path) -> None:
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    for each in classes:
        for field, following in pairwise(each.body):
            if isinstance(field, ast.Assign | ast.AnnAssign):
                assert not isinstance(following, ast.Expr), (
                    f"{file.name}:{following.lineno}: move it into the docstring"
                )


def test_documented_fields_exist() -> None:
    documented = 0
    for name in contracts.__all__:
        each = getattr(contracts, name)
        if isinstance(each, type):
            fields = re.findall(r"^- `(\w+)`:", pydoc.getdoc(each), re.MULTILINE)
            known = {name for base in each.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ()))}
            assert {*fields} <= known, each
            documented += len(fields)
    assert documented > 250
