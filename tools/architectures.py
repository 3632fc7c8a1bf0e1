"""Train every type of causal language model of transformers on every backend: `make architectures`.

Trains a tiny model of each type for two steps in every layout, and compares it with plain transformers. `--images`
trains the types that read images, on rows with images; call it with `.venv/vision/bin/python`, as many need
torchvision. The results go to `docs/reference/architectures.json`, from which `make docs` writes the page. Pass types
as arguments to test only these. Exits with 1 if a number is wrong or an error is not a `SwiftError`.
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
IMAGES = "--images"
WORKERS = 2
UNKNOWN = "Megatron does not train"
"""How Megatron refuses a type under any layout."""

sys.path[:0] = [str(ROOT / "tests" / "helpers")]


def main(arguments: Sequence[str]) -> int:
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", TQDM_DISABLE="1")
    images = IMAGES in arguments
    made, subjects = imported(images)
    chosen = [name for name in arguments if name != IMAGES]
    names = chosen or [name for name in made.types() if name not in made.NOT_MADE]
    with tempfile.TemporaryDirectory(prefix="swift-architectures-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        table = json.loads(json.dumps(sweep(names, Path(folder), subjects.cells, images)).replace(f"{folder}/", ""))
    bad = [
        f"{name}, {cell}: {verdict['result']}: {verdict['note']}"
        for name, cells in table.items()
        for cell, verdict in cells.items()
        if verdict["result"] in ("wrong", "error")
    ]
    print(*bad, sep="\n")
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    known = {**((stored.get("images", {}) if images else stored).get("types", {}) if chosen else {}), **table}
    versions = {name: version(name) for name in ENGINES}
    facts = {"command": "make architectures", "versions": versions, "not_made": made.NOT_MADE}
    results = {"facts": facts, "types": {name: known[name] for name in made.types() if name in known}}
    write({**stored, "images": results} if images else {**stored, **results})
    return 1 if bad else 0


def imported(images: bool) -> tuple[Any, Any]:
    """Return the module that makes models, and the class that trains one."""
    if images:
        import_module("swift.models.quiet").import_torchvision()  # before transformers imports it
        return import_module("tiny_image_types"), import_module("image_cells").ImageSubject
    return import_module("tiny_types"), import_module("type_cells").Subject


def sweep(names: Sequence[str], folder: Path, cells: Sequence[Any], images: bool) -> dict[str, dict[str, Any]]:
    """Return the verdicts by type and column."""
    cells_of = import_module("type_cells")
    subjects, table = {}, {}
    with get_context("spawn").Pool(WORKERS) as pool:
        work = pool.imap_unordered(partial(on_torch, folder=folder, images=images), names)
        for name, subject, found in progress("torch", work, len(names)):
            subjects[name], table[name] = subject, found
    table = {name: table[name] for name in names}
    for cell in cells:
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


def on_torch(name: str, folder: Path, images: bool) -> tuple[str, Any, dict[str, Any]]:
    """Make a model and train it in this process."""
    _, subjects = imported(images)
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if refusal := subjects.refusal(name):
        return name, None, {cell: vars(refusal) for cell in subjects.columns()}
    cells = import_module("type_cells")
    try:
        subject = subjects(name, folder / cells.slug(name))
    except Exception as error:
        return name, None, {cell: vars(cells.failure(error)) for cell in subjects.columns()}
    return name, subject, {cell: vars(verdict) for cell, verdict in subject.on_torch().items()}


def progress(what: str, results: Any, total: int) -> Iterator[Any]:
    """Yield results, with a bar on a terminal."""
    from rich.progress import track

    yield from track(results, description=f"{what:>14}", total=total, disable=not sys.stderr.isatty())


def write(results: dict[str, Any]) -> None:
    """Write what `make docs` makes the page of, with a line for each type."""
    RESULTS.write_text(written(results) + "\n", encoding="utf-8")
    print(f"architectures: wrote {RESULTS.relative_to(ROOT)}")


def written(results: dict[str, Any], indent: str = " ") -> str:
    """Return JSON in which facts and types have a line each."""
    lines = []
    for key, value in results.items():
        if key == "images":
            text = written(value, "  ")
        elif key == "types":
            types = ",\n".join(f"{indent} {json.dumps(name)}: {json.dumps(cells)}" for name, cells in value.items())
            text = f"{{\n{types}\n{indent}}}"
        else:
            text = json.dumps(value)
        lines.append(f"{indent}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent[1:]}}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
