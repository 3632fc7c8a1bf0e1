"""Which architectures an installed LMDeploy runs, read from the tables in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from swift.errors import ModelError, did_you_mean
from swift_infer.servers import Interpreter, parsed

_PYTORCH = Path("pytorch/models/module_map.py")
_TURBOMIND = Path("turbomind/supported_models.py")
_TABLE = "MODULE_MAP"


def architectures_of(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return names as config.json has them, of the PyTorch engine and of TurboMind; empty where there is no table."""
    pytorch, turbomind = parsed([folder / _PYTORCH]), parsed([folder / _TURBOMIND])
    return frozenset(chain(*map(_of_pytorch, pytorch))), frozenset(chain(*map(_of_turbomind, turbomind)))


def check_architecture(name: str, interpreter: Interpreter) -> None:
    """Refuse a model that neither of LMDeploy's two engines has."""
    pytorch, turbomind = architectures_of(interpreter.folder)
    known = pytorch | turbomind
    if known and name not in known:
        raise ModelError(
            f"{interpreter} does not run {name}.{did_you_mean(name, sorted(known))}",
            hint="Serve it with vLLM (--engine vllm), or type: swift infer MODEL, which needs neither.",
        )


def check_adapted(name: str, interpreter: Interpreter) -> None:
    """Refuse adapters on a model that only TurboMind has: it takes none."""
    pytorch, turbomind = architectures_of(interpreter.folder)
    if name in turbomind - pytorch:
        raise ModelError(
            f"{interpreter} runs {name} in TurboMind alone, which takes no adapters.",
            hint="Merge them and serve the result: swift export RUN --to hf --out merged",
        )


def _of_pytorch(tree: ast.Module) -> Iterator[str]:
    """Yield the keys of `MODULE_MAP.update({...})`."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{_TABLE}.update":
            for table in call.args:
                if isinstance(table, ast.Dict):
                    yield from (str(key.value) for key in table.keys if isinstance(key, ast.Constant))


def _of_turbomind(tree: ast.Module) -> Iterator[str]:
    """Yield the names of `SUPPORTED_ARCHS = dict(...)`."""
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call) and line.value.keywords:
            yield from (keyword.arg for keyword in line.value.keywords if keyword.arg)
