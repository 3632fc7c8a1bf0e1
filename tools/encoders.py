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
from collections.abc import Sequence
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
    names = list(arguments) or cells_of.encoder_types()
    with tempfile.TemporaryDirectory(prefix="swift-encoders-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        table, not_made = sweep(names, Path(folder))
        table = json.loads(json.dumps(table).replace(f"{folder}/", ""))
    bad = [
        f"{name}, {task}, {cell}: {verdict['result']}: {verdict['note']}"
        for name, tasks in table.items()
        for task, cells in tasks.items()
        for cell, verdict in cells.items()
        if verdict["result"] in ("wrong", "error")
    ]
    print(*bad, sep="\n")
    earlier = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"types": {}, "not_made": {}}
    known = {**earlier["types"], **table}
    facts = {"command": "make encoders", "versions": {name: version(name) for name in ENGINES}}
    facts["not_made"] = {**earlier["not_made"], **not_made} if arguments else not_made
    facts["types"] = {name: known[name] for name in sorted(known)}
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"encoders: wrote {RESULTS.relative_to(ROOT)}")
    return 1 if bad else 0


def sweep(names: Sequence[str], folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the verdicts by type, task and column, and why some types have no tiny model."""
    cells_of = import_module("encoder_cells")
    subjects: list[Any] = []
    table: dict[str, dict[str, dict[str, Any]]] = {}
    not_made: dict[str, str] = {}
    for name in names:
        for task in cells_of.TASKS:
            try:
                subject = cells_of.EncoderSubject(name, folder, task)
            except Exception as error:  # whatever the code of a type raises for sizes that it does not expect
                not_made[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                continue
            found = cells_of.encoder_verdicts(subject)
            table.setdefault(name, {})[task] = {cell: vars(verdict) for cell, verdict in found.items()}
            subjects.append(subject)
        print(name, flush=True)
    for cell in cells_of.CELLS:
        if cell.processes == 1:
            continue
        chosen = [each for each in subjects if table[each.name][each.task]["padded"]["result"] == "equal"]
        for subject, verdict in zip(chosen, cells_of.encoder_verdicts_together(cell, chosen), strict=True):
            table[subject.name][subject.task][cell.name] = vars(verdict)
        print(cell.name, flush=True)
    return table, not_made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
