"""Functions of other libraries, taken out of their packages: the packages themselves import Ray and much else.

A wheel is downloaded without what it depends on, and unpacked beside the other inputs. Of a module only the named
functions and classes are executed, in a namespace that has torch, numpy and what is handed in. Decorators, which
register them, are left out.
"""

from __future__ import annotations
import __future__

import ast
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import WORK

HOME = WORK / "peers"


def unpacked(name: str, version: str) -> Path:
    """The folder of a package's modules, as its wheel has them."""
    folder = HOME / f"{name}-{version}"
    if not folder.is_dir():
        wheels = HOME / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(wheels), f"{name}=={version}"], check=True)
        (wheel,) = wheels.glob(f"{name}-{version}-*.whl")
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
        unfinished.rename(folder)
    (module,) = (each for each in folder.glob(f"**/{name}/__init__.py") if "tests" not in each.parts)
    return module.parent


def functions(file: Path, *names: str, **given: Any) -> SimpleNamespace:
    """Functions and classes of a module; a dotted name is a method, called with its object first."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "np": np, "defaultdict": defaultdict, **given}
    for name in names:
        body: list[ast.stmt] = tree.body
        for part in name.split("."):
            node = next(each for each in body if getattr(each, "name", None) == part)
            body = getattr(node, "body", [])
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        node.decorator_list = []
        module = ast.Module([node], [])
        # Annotations stay text: they name types that are not here.
        code = compile(module, str(file), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
        exec(code, space)
    return SimpleNamespace(**{name.split(".")[-1]: space[name.split(".")[-1]] for name in names}, space=space)
