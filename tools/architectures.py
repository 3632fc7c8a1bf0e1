"""Train every type of causal language model of transformers on every backend: `make architectures`.

Trains a tiny model of each type for two steps in every layout, and compares it with plain transformers. The results go
to `docs/reference/architectures.json`, from which `make docs` writes the page. Pass types as arguments to test only
these. Exits with 1 if a number is wrong or an error is not a `SwiftError`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "reference" / "architectures.json"
ENGINES = ("torch", "transformers", "peft", "deepspeed", "megatron-core", "mcore-bridge")
WORKERS = 2
UNKNOWN = "Megatron does not train"
"""How Megatron refuses a type under any layout."""

sys.path[:0] = [str(ROOT / "tests" / "helpers")]


def main(arguments: Sequence[str]) -> int:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    made = import_module("tiny_types")
    names = list(arguments) or [name for name in made.types() if name not in made.NOT_MADE]
    with tempfile.TemporaryDirectory(prefix="swift-architectures-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        table = json.loads(json.dumps(sweep(names, Path(folder))).replace(f"{folder}/", ""))
    bad = [
        f"{name}, {cell}: {verdict['result']}: {verdict['note']}"
        for name, cells in table.items()
        for cell, verdict in cells.items()
        if verdict["result"] in ("wrong", "error")
    ]
    print(*bad, sep="\n")
    earlier = json.loads(RESULTS.read_text(encoding="utf-8"))["types"] if arguments else {}
    known = {**earlier, **table}
    write({name: known[name] for name in made.types() if name in known}, made.NOT_MADE)
    return 1 if bad else 0


def sweep(names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the verdicts by type and column."""
    cells_of = import_module("type_cells")
    subjects, table = {}, {}
    with get_context("spawn").Pool(WORKERS) as pool:
        work = pool.imap_unordered(partial(on_torch, folder=folder), names)
        for name, subject, cells in progress("torch", work, len(names)):
            subjects[name], table[name] = subject, cells
    table = {name: table[name] for name in names}
    for cell in cells_of.CELLS:
        if cell.processes == 1:
            continue
        chosen = []
        for name in names:
            earlier = table[name].get("Megatron, TP 2") if cell.backend == "megatron" else None
            if table[name]["padded"]["result"] != "equal":
                table[name][cell.name] = table[name]["padded"]
            elif earlier is not None and earlier["note"].startswith(UNKNOWN):
                table[name][cell.name] = earlier
            else:
                chosen.append(name)
        found = cells_of.verdicts(cell, [subjects[name] for name in chosen])
        for name, verdict in zip(chosen, progress(cell.name, found, len(chosen)), strict=True):
            table[name][cell.name] = vars(verdict)
    return table


def on_torch(name: str, folder: Path) -> tuple[str, Any, dict[str, Any]]:
    """Make a model and train it in this process."""
    import torch
    import transformers

    cells_of = import_module("type_cells")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    subject = cells_of.Subject(name, folder / cells_of.slug(name))
    return name, subject, {cell: vars(verdict) for cell, verdict in subject.on_torch().items()}


def progress(what: str, results: Any, total: int) -> Iterator[Any]:
    """Yield results, with a bar on a terminal."""
    from rich.progress import track

    yield from track(results, description=f"{what:>14}", total=total, disable=not sys.stderr.isatty())


def write(table: dict[str, dict[str, Any]], not_made: dict[str, str]) -> None:
    """Write what `make docs` makes the page of."""
    versions = {name: version(name) for name in ENGINES}
    facts = {"command": "make architectures", "versions": versions, "not_made": not_made}
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(cells)}" for name, cells in table.items())
    RESULTS.write_text(f'{{\n "facts": {json.dumps(facts)},\n "types": {{\n  {lines}\n }}\n}}\n', encoding="utf-8")
    print(f"architectures: wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
