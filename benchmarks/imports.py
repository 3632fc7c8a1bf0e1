"""Compare imported recipes of ms-swift, LLaMA-Factory and TRL with training in the original library.

The model has 0.3M parameters; there are 32 rows, in fp32 on the CPU. Each library trains its recipe in a separate
environment. `swift config import` converts the same file, and `swift` trains with the result. The loss and the learning
rate of each of the 8 steps are compared.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import ms_swift
from benchmarks.commands import SWIFT, call, environment
from benchmarks.facts import Figure, read_lines, write_lines
from benchmarks.inputs import ROOT, WORK
from benchmarks.recipes import RECIPES, Recipe

VERSION = "0.9.5"
HOME = WORK / f"llamafactory-{VERSION}"
FOLDER = WORK / "imports"
ROWS = 32
_CLOSE = 1e-4
"""Between two programs that calculate alike: sums in another order, and ms-swift's log has 8 digits."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of: with `quick`, of one recipe of each program."""
    ms_swift.install()
    install()
    figures: list[Figure] = []
    details: dict[str, Any] = {"ms-swift": ms_swift.VERSION, "LLaMA-Factory": VERSION, "TRL": metadata.version("trl")}
    seen: set[str] = set()
    for recipe in RECIPES:
        if quick and recipe.program in seen:
            continue
        seen.add(recipe.program)
        theirs, ours = compare(recipe)
        name = f"{recipe.program}, {recipe.kind}"
        details[name] = {"theirs": theirs, "ours": ours}
        figures += _figures(name, recipe, theirs, ours)
        print(f"  {name}: done", flush=True)
    return figures, details


def _figures(name: str, recipe: Recipe, theirs: Sequence[Any], ours: Sequence[Any]) -> list[Figure]:
    if len(theirs) != len(ours) or not ours:
        sys.exit(f"{name}: {len(theirs)} steps there, {len(ours)} here")
    losses = [_apart(mine[0], other[0]) for mine, other in zip(ours, theirs, strict=True)]
    rates = [_apart(mine[1], other[1]) for mine, other in zip(ours, theirs, strict=True)]
    figures = [Figure(f"{name}: learning rates apart", max(rates), unit="", at_most=_CLOSE)]
    why = f" ({recipe.remark})" if recipe.remark else ""
    limit = None if recipe.remark else _CLOSE
    figures.append(Figure(f"{name}: first loss apart{why}", losses[0], unit="", at_most=limit))
    if recipe.same:
        figures.append(Figure(f"{name}: losses of all {len(ours)} steps apart", max(losses), unit="", at_most=_CLOSE))
    return figures


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def compare(recipe: Recipe) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Train a recipe by its program and by swift; returns (loss, learning rate) of each step of both."""
    folder = folder_of(recipe)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    inputs(folder, recipe.template)
    (folder / recipe.file).write_text(recipe.text)
    _run(_program(recipe), folder)
    _run([SWIFT, "config", "import", recipe.file, "--out", "swift.yaml"], folder)
    command = (folder / "swift.yaml").read_text().splitlines()[1].removeprefix("# swift ").split()
    _run([SWIFT, *command, "--output_dir", "ours"], folder)
    return steps_of(recipe)


def folder_of(recipe: Recipe) -> Path:
    """Return the folder in which a recipe is trained."""
    return FOLDER / f"{recipe.program}-{recipe.kind}".replace(", ", "-").replace(" ", "-").lower()


def steps_of(recipe: Recipe) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return (loss, learning rate) of each step, of the program and of swift."""
    theirs = _steps(folder_of(recipe) / "theirs")
    if recipe.program == "ms-swift":  # its log has the learning rate of the next step
        theirs = [(loss, rate) for (loss, _), (_, rate) in zip(theirs, [(0.0, 0.0), *theirs], strict=False)]
    return theirs, _steps(folder_of(recipe) / "ours")


def inputs(folder: Path, template: str | None) -> None:
    """Write the model's folder and the rows, as each program reads them."""
    script = (
        "import sys; from pathlib import Path; from swift_demo.model import write_model; write_model(Path('model'))"
    )
    _run([sys.executable, "-c", script], folder)
    if template is not None:
        (folder / "model" / "chat_template.jinja").write_text(template)
    rows = _rows()
    write_lines(folder / "chats.jsonl", ({"messages": [question, good]} for question, good, _ in rows))
    pairs = ({"messages": [question, good], "rejected_response": bad["content"]} for question, good, bad in rows)
    write_lines(folder / "pairs.jsonl", pairs)
    write_lines(folder / "chats" / "train.jsonl", ({"messages": [question, good]} for question, good, _ in rows))
    preferences = ({"prompt": [question], "chosen": [good], "rejected": [bad]} for question, good, bad in rows)
    write_lines(folder / "preferences" / "train.jsonl", preferences)
    write_lines(
        folder / "ranked.jsonl",
        ({"messages": [question], "chosen": good, "rejected": bad} for question, good, bad in rows),
    )
    tags = {
        "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
        "system_tag": "system",
    }  # fmt: skip
    chats = {"formatting": "sharegpt", "tags": tags}
    pair = {"messages": "messages", "chosen": "chosen", "rejected": "rejected"}
    entries = {
        "chats": {"file_name": "chats.jsonl", "columns": {"messages": "messages"}, **chats},
        "pairs": {"file_name": "ranked.jsonl", "ranking": True, "columns": pair, **chats},
    }
    (folder / "dataset_info.json").write_text(json.dumps(entries))


def _rows() -> list[tuple[dict[str, str], dict[str, str], dict[str, str]]]:
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnop", k=source.randint(2, 7))) for _ in range(200)]

    def message(role: str, most: int) -> dict[str, str]:
        return {"role": role, "content": " ".join(source.choices(words, k=source.randint(1, most)))}

    return [(message("user", 8), message("assistant", 12), message("assistant", 12)) for _ in range(ROWS)]


def _program(recipe: Recipe) -> list[str]:
    if recipe.program == "ms-swift":
        return ["bash", *recipe.command.split()]
    if recipe.program == "LLaMA-Factory":
        return [str(HOME / "bin" / "llamafactory-cli"), *recipe.command.split()]
    return [str(Path(sys.executable).with_name("trl")), *recipe.command.split()]


def _run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; the `swift` that a script starts is ms-swift's."""
    path = os.pathsep.join([str(ms_swift.MS_SWIFT.parent), os.environ["PATH"]])
    call(command, environment(PATH=path, OMP_NUM_THREADS="1"), folder=folder)


def _steps(folder: Path) -> list[tuple[float, float]]:
    """Return (loss, learning rate) of each step, of `logging.jsonl` or of the Trainer's state."""
    log = next(folder.rglob("logging.jsonl"), None)
    if log is not None:
        lines = read_lines(log)
    else:
        lines = json.loads(next(folder.rglob("trainer_state.json")).read_text(encoding="utf-8"))["log_history"]
    return [(line["loss"], line["learning_rate"]) for line in lines if "loss" in line and "learning_rate" in line]


def install() -> None:
    """Put LLaMA-Factory into its environment, unless it is there."""
    if (HOME / "bin" / "llamafactory-cli").is_file():
        return
    print(f"Installing LLaMA-Factory {VERSION} into {HOME.relative_to(ROOT)}", flush=True)
    ms_swift.install_into(HOME, f"llamafactory=={VERSION}", f"torch=={metadata.version('torch')}")
    python = HOME / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    # Both are for images and sound, and the index has builds for CUDA: neither can be loaded next to a torch for the
    # CPU. torchaudio is imported all the same, and does without its library.
    subprocess.run(
        [uv, "pip", "uninstall", "--quiet", "--no-config", "--python", str(python), "torchvision"], check=True
    )
    for library in HOME.glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        library.unlink()
