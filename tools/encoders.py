"""Train every encoder of transformers for vectors, scores of pairs and labels, on every backend: `make encoders`.

Trains a tiny model of each type for two steps in every layout, and compares it with plain transformers. The results go
to `docs/reference/encoders.json`, which `make docs` makes a section of the page of model types of. Pass types as
arguments to test only these. Exits with 1 if a number is wrong or an error is not a `SwiftError`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "reference" / "encoders.json"
ENGINES = ("torch", "transformers", "peft", "deepspeed")

sys.path[:0] = [str(ROOT / "tests" / "helpers")]


def main(arguments: Sequence[str]) -> int:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    cells_of = import_module("encoder_cells")
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if arguments and RESULTS.is_file() else {}
    names = list(arguments) or cells_of.encoder_types()
    types = earlier.get("types", {})
    for name in names:
        types.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="swift-encoders-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for step in sweep(names, Path(folder), types):
            print(step, flush=True)
            write(json.loads(json.dumps(types).replace(f"{folder}/", "")))
    bad = [
        f"{name}, {task}, {cell}: {verdict['result']}: {verdict['note']}"
        for name in names
        for task, cells in types.get(name, {}).items()
        for cell, verdict in cells.items()
        if verdict["result"] in ("wrong", "error")
    ]
    print(*bad, sep="\n")
    return 1 if bad else 0


def sweep(names: Sequence[str], folder: Path, types: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Fill in the verdicts by type, task and column, and yield what is done."""
    cells_of = import_module("encoder_cells")
    subjects = []
    for name in names:
        for task in cells_of.tasks_of(name):
            subject = cells_of.EncoderSubject(name, folder, task)
            found = cells_of.encoder_verdicts(subject)
            types.setdefault(name, {})[task] = {cell: vars(verdict) for cell, verdict in found.items()}
            subjects.append(subject)
        yield name
    for cell in cells_of.CELLS:
        if cell.processes == 1:
            continue
        chosen = [each for each in subjects if types[each.name][each.task]["padded"]["result"] == "equal"]
        for subject, verdict in zip(chosen, cells_of.encoder_verdicts_together(cell, chosen), strict=True):
            types[subject.name][subject.task][cell.name] = vars(verdict)
        yield cell.name


def write(types: dict[str, Any]) -> None:
    """Write what `make docs` makes the section of."""
    facts = {"command": "make encoders", "versions": {name: version(name) for name in ENGINES}}
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(types[name])}" for name in sorted(types))
    RESULTS.write_text(f'{{\n "facts": {json.dumps(facts)},\n "types": {{\n  {lines}\n }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
