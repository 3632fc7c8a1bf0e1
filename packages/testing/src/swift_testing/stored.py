"""References that several processes share: the workers of one test session compute each of them once between them.

Computing a reference takes seconds, and every kit of a session needs the same ones. Where `SWIFT_TESTING_REFERENCES`
names a folder, results are written there and read by later processes; without it each process computes its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from swift_testing.reference import Expected, Recipe, run_reference

FOLDER = "SWIFT_TESTING_REFERENCES"
"""Environment variable with a folder of this session."""


def shared_reference(about: str, recipe: Recipe, compute: Callable[[Recipe], Expected] = run_reference) -> Expected:
    """Return the results of a recipe; `about` tells those with the same model apart."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return compute(recipe)
    return stored(Path(folder) / f"{_digest(about, recipe)}.safetensors", recipe, compute)


def stored(file: Path, recipe: Recipe, compute: Callable[[Recipe], Expected]) -> Expected:
    """Return what lies in `file`, or compute and write it.

    The first step is made in any case. It imports what processes that are forked from this one will need, and its
    numbers say whether the file is about this recipe.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_suffix(".lock")):
        if file.exists():
            known, first = _read(file), compute(replace(recipe, batches=recipe.batches[:1]))
            if (known.losses[:1], known.grad_norms[:1]) == (first.losses, first.grad_norms):
                return known
        expected = compute(recipe)
        _write(file, expected)
        return expected


def _digest(about: str, recipe: Recipe) -> str:
    """Name a reference by its case, its steps and the files of the model, whose folder is another for every process."""
    digest = hashlib.sha256(f"{about}, {recipe.steps} steps".encode())
    for file in sorted(recipe.model.glob("*.safetensors")) + sorted(recipe.model.glob("*.json")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one process at a time compute: the others wait for its result."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, expected: Expected) -> None:
    plain = {
        "losses": expected.losses,
        "grad_norms": expected.grad_norms,
        "rates": expected.rates,
        "evaluations": list(expected.evaluations.items()),
        "tokens": list(expected.tokens.items()),
        "metrics": expected.metrics,
        "changed": list(expected.changed.items()),
    }
    tensors = {f"start/{name}": tensor for name, tensor in expected.start.items()}
    tensors |= {f"weights/{name}": tensor for name, tensor in expected.weights.items()}
    unfinished = file.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={"plain": json.dumps(plain)})
    unfinished.replace(file)


def _read(file: Path) -> Expected:
    tensors: dict[str, dict[str, torch.Tensor]] = {"start": {}, "weights": {}}
    with safe_open(file, framework="pt") as opened:
        plain = json.loads(opened.metadata()["plain"])
        for key in opened.keys():  # noqa: SIM118 - it is no mapping
            part, _, name = key.partition("/")
            tensors[part][name] = opened.get_tensor(key)
    plain |= {name: dict(plain[name]) for name in ("evaluations", "tokens", "changed")}
    return Expected(**plain, start=tensors["start"], weights=tensors["weights"])
