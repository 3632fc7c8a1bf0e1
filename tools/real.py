"""Run recipes on pretrained models, and write docs/recipes: `make real`, or `python tools/real.py embedding`.

Each recipe runs in a new folder under `build/real`. What it measured goes to `docs/recipes/results.json`, from which
the pages are written, here and by `make docs`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from real_recipes import ENCODER, LANGUAGE_MODEL, RECIPES, RUN, Recipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "recipes"
GUIDES = ROOT / "docs" / "how-to"
RESULTS = PAGES / "results.json"
OUTPUT = 300
"""Characters of a command's output, or of a row, on a page."""

sys.path.insert(0, str(ROOT / "tests" / "helpers"))


class ChangedRecipe(Exception):
    """Results of other commands than those of the recipe."""


def main(names: list[str]) -> None:
    """Run the recipes of these names, or all of them, and write their pages."""
    PAGES.mkdir(exist_ok=True)
    for name in names or RECIPES:
        results = read_results()
        results[name] = measured(RECIPES[name], ROOT / "build" / "real" / name)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        for page, text in recipe_pages().items():
            (PAGES / page).write_text(text)
        for measure, (before, after) in results[name]["scores"].items():
            print(f"{name}: {measure}: {before:.3g} before, {after:.3g} after")


def measured(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Run a recipe in a new folder; return what it measured."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / local_name(recipe.model)).symlink_to(model_folder(recipe.model))
    files = recipe.rows()
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with ExitStack() as servers:
        steps = [run(command, folder, servers) for command in recipe.commands]
    log = folder / RUN.format(local_name(recipe.model)) / "logging.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    versions = {name: version(name) for name in ("swift-core", "torch", "transformers")}
    return {
        "rows": {name: json.dumps(rows[0])[:OUTPUT] for name, rows in files.items()},
        "commands": steps,
        "curve": [[line["step"], line[recipe.curve]] for line in lines if recipe.curve in line],
        "scores": {measure: score(folder) for measure, score in recipe.scores.items()},
        "cores": os.cpu_count(),
        "versions": versions,
    }


def run(command: str, folder: Path, servers: ExitStack) -> dict[str, Any]:
    """Run a command as printed, with the local copy of its model; return its time, peak memory and output of one line.

    A command that ends with `&` is a server, which `servers` ends; its time is that until it is ready.
    """
    local = command
    for model in (LANGUAGE_MODEL, ENCODER):
        local = local.replace(model, local_name(model))
    print(f"$ {local}", flush=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    process = subprocess.Popen(
        shlex.split(local.removesuffix("&")),
        cwd=folder,
        env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    step: dict[str, Any] = {"command": command}

    def end() -> None:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode}: {local}")
        step["cpu_seconds"] = round(usage.ru_utime + usage.ru_stime)
        step["peak_gib"] = round(usage.ru_maxrss / 2**20, 2)

    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
        if command.endswith("&") and line.startswith("Serving "):
            servers.callback(end)
            servers.callback(process.terminate)
            break
    else:
        end()
    step["seconds"] = round(time.monotonic() - started)
    if len(lines) == 1 and not command.endswith("&"):
        step["output"] = lines[0][:OUTPUT].rstrip()
    return step


def local_name(model: str) -> str:
    """Return the name of a model's folder, after which a run of the hub id names its own."""
    return model.rpartition("/")[2]


def model_folder(model: str) -> Path:
    """Return the folder of a pretrained model that `make setup` installed."""
    from real_model import ENCODER as ARCHIVE  # type: ignore[import-not-found]
    from real_model import REAL, real_model

    folder: Path = real_model() if model == LANGUAGE_MODEL else REAL / "encoder"
    if not folder.is_dir():
        with ZipFile(ARCHIVE) as archive:
            archive.extractall(folder)
    return folder


def read_results() -> dict[str, Any]:
    """Return what was measured, by recipe."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    return results


def recipe_pages() -> dict[str, str]:
    """Return the page of each recipe that was run, and their index; refuse results of other commands."""
    results = {name: each for name, each in read_results().items() if name in RECIPES}
    pages = {f"{name}.md": recipe_page(RECIPES[name], result) for name, result in results.items()}
    rows = ["| recipe | model | score | before | after | CPU time | peak memory |", "|---|---|---|---:|---:|---:|---:|"]
    for name, result in results.items():
        recipe, steps = RECIPES[name], result["commands"]
        if tuple(step["command"] for step in steps) != recipe.commands:
            raise ChangedRecipe(f"the recipe {name} has changed since its results. Run: python tools/real.py {name}")
        seconds, peak = sum(step["cpu_seconds"] for step in steps), max(step["peak_gib"] for step in steps)
        measure, (before, after) = next(iter(result["scores"].items()))
        rows.append(
            f"| [{recipe.title}]({name}.md) | {local_name(recipe.model)} | {measure} | {before:.3g} | {after:.3g} | "
            f"{seconds} s | {peak:.1f} GiB |"
        )
    text = [
        "# Recipes with results",
        MADE,
        "Each recipe was run on a pretrained model, on CPU cores alone. The commands are complete: type them with your "
        "own data. `make real` runs all recipes, and `python tools/real.py NAME` one of them.",
        "\n".join(rows),
    ]
    return {**pages, "README.md": "\n\n".join(text) + "\n"}


SERVER = (
    "`&` keeps the server running. Wait for the line `Ready`, then type the next command; `kill %1` ends the server. "
    "Its wall-clock time below is that until it is ready."
)
WEIGHTS = {LANGUAGE_MODEL: ", dequantized from a 4-bit GGUF file; the weights on the hub are rounded less."}
MADE = "<!-- Written by `make real`, from tools/real_recipes.py and results.json. Do not edit. -->"


def recipe_page(recipe: Recipe, result: dict[str, Any]) -> str:
    """Return the page of a recipe: model, data, commands, time, memory, curve and score."""
    files = [f"`{name}.jsonl`: `{row}`" for name, row in result["rows"].items()]
    times = [
        f"| `{' '.join(shlex.split(step['command'])[:2])}` | {step['seconds']} s | {step['cpu_seconds']} s | "
        f"{step['peak_gib']:.1f} GiB |"
        for step in result["commands"]
    ]
    points = result["curve"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    curve = [
        f"| step | {' | '.join(str(step) for step, _ in points)} |",
        f"|---|{'---:|' * len(points)}",
        f"| {recipe.curve} | {' | '.join(f'{value:.4g}' for _, value in points)} |",
    ]
    typed = [line for step in result["commands"] for line in (_wrapped(step["command"]), step.get("output")) if line]
    scores = [
        f"**Score**: {measure}: **{before:.3g}** before, **{after:.3g}** after."
        for measure, (before, after) in result["scores"].items()
    ]
    parts = [
        f"# {recipe.title}",
        MADE,
        "\n".join(["```console", *typed, "```"]),
        *([SERVER] if any(command.endswith("&") for command in recipe.commands) else []),
        *scores,
        f"**Guide**: [{_title(GUIDES / recipe.guide)}](../how-to/{recipe.guide})",
        f"**Model**: `{recipe.model}`{WEIGHTS.get(recipe.model, '')}",
        f"**Data**: {recipe.data} The first row of each file:",
        "\n".join(f"- {each}" for each in files),
        *([f"## Training {recipe.curve}", "\n".join(curve)] if points else []),
        "## Time and memory",
        "\n".join(["| command | wall clock | CPU time | peak memory |", "|---|---:|---:|---:|", *times]),
        f"Measured on {result['cores']} CPU cores that other work shared: compare the CPU time. Versions: {versions}.",
    ]
    return "\n\n".join(parts) + "\n"


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _wrapped(command: str) -> str:
    """Return a command as typed, on lines that a page has room for."""
    whole = re.sub(r"'[^']*'| (?!-)", lambda found: found[0].replace(" ", "\0"), f"$ {command}")  # break before flags
    lines = textwrap.wrap(whole, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


if __name__ == "__main__":
    main(sys.argv[1:])
