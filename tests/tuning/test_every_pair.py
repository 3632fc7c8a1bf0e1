"""Every optimizer and every tuner in every layout: the numbers of one process, or a refusal in one sentence.

`make pairs` tries those that nobody has tried with these versions, and writes what it found;
`docs/reference/tuning-pairs.md` shows it. Stopped, it goes on where it was. `SWIFT_PAIRS_ONLY='muon in *;* in FSDP*'`
tries these, anew if they are there; `'*'` tries all. `make test-all` trains some pairs in other tests, and compares
here what the page says of refusals with what is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import plain_torch
import pytest
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory
from processes import on_processes, succeeded
from tiny_runs import Trained, write_model
from tuning_pairs import KINDS, LAYOUTS, MODELS, OTHER_START, ROWS, STEPS, TOLERANCE, model_of, settings, trained

from swift.checkpoint.manifest import installed_versions
from swift.config.sections import ExportSection
from swift.errors import ConfigError, UnsupportedLayout
from swift.export.run import export_checkpoint
from swift.parsing import config_from_mapping
from swift_testing.crew import Lost

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tuning-pairs.json"
RESULTS = os.environ.get("SWIFT_PAIRS_RESULTS")
ONLY = os.environ.get("SWIFT_PAIRS_ONLY")
NAMES = [(kind, name) for kind, own in KINDS.items() for name in own]
LAUNCH = 8
"""Runs of one launch, after which what was found is written."""
Found = dict[str, Any]
whole = pytest.mark.skipif(RESULTS is None, reason="All pairs take minutes: make pairs")


class Page:
    """What was found so far, in the file that the page of the documentation is made from."""

    def __init__(self, path: Path) -> None:
        versions = installed_versions() | {name: version(name) for name in ("deepspeed", "megatron-core")}
        self.path = path
        self.facts = {"command": "make pairs", "tolerance": TOLERANCE, "steps": STEPS, "versions": versions}
        read = json.loads(path.read_text()) if path.is_file() else {}
        kept = read["found"] if read.get("facts") == self.facts else {}
        self.found: Found = {
            kind: {name: kept.get(kind, {}).get(name, {}) for name in own} for kind, own in KINDS.items()
        }

    def lacks(self, kind: str, name: str, column: str) -> bool:
        """Return whether a cell is to be tried."""
        if ONLY is None:
            return column not in self.found[kind][name]
        return any(fnmatch(f"{name} in {column}", each.strip()) for each in ONLY.split(";"))

    def write(self) -> None:
        """Write what was found, in the order of the layouts."""
        columns = ["begins", "exported", *LAYOUTS]
        found = {
            kind: {name: {each: cells[each] for each in columns if each in cells} for name, cells in rows.items()}
            for kind, rows in self.found.items()
        }
        self.path.write_text(json.dumps({"facts": self.facts, "found": found}, indent=1) + "\n")


@pytest.fixture
def page() -> Page:
    return Page(Path(RESULTS or os.devnull))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / name, **shape) for name, shape in MODELS.items()}


class Alone:
    """What comes of one process, for those rows that somebody asks for."""

    def __init__(self, models: dict[str, Path], folder: Path) -> None:
        self.models, self.folder = models, folder
        self.made: dict[tuple[str, str], Trained] = {}

    def of(self, names: Sequence[tuple[str, str]]) -> list[Trained]:
        missing = [each for each in names if each not in self.made]
        jobs = [partial(trained, self.models[model_of(*each)], self.folder / each[0], *each, {}) for each in missing]
        self.made |= {each: succeeded(all_)[0] for each, all_ in zip(missing, on_processes(1, *jobs), strict=True)}
        return [self.made[each] for each in names]


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(models, tmp_path_factory.mktemp("alone"))


def off(values: list[float], expected: list[float]) -> float:
    return max(0.0, *(abs(one - other) / abs(other) for one, other in zip(values, expected, strict=True)))


def refusal(kind: str, name: str, plan: dict[str, Any], model: Path) -> str | None:
    """Return what a configuration is refused with, before anything is started."""
    try:
        config_from_mapping({**settings(kind, name, plan), "model.path": str(model)})
    except (ConfigError, UnsupportedLayout) as error:
        return str(error)
    return None


@whole
@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_pair_has_the_numbers_of_one_process_or_is_refused(
    tmp_path: Path, models: dict[str, Path], alone: Alone, page: Page, layout: str
) -> None:
    processes, plan = LAYOUTS[layout]
    wrong, left = [], []
    for kind, name in NAMES:
        if page.lacks(kind, name, layout):
            if (refused := refusal(kind, name, plan, models[model_of(kind, name)])) is None:
                left.append((kind, name))
            else:
                page.found[kind][name][layout] = {"refused": refused, "before": True}
    page.write()
    for some in (left[at : at + LAUNCH] for at in range(0, len(left), LAUNCH)):
        jobs = [partial(trained, models[model_of(*each)], tmp_path / each[0], *each, plan) for each in some]
        for each, expected, answers in zip(some, alone.of(some), on_processes(processes, *jobs), strict=True):
            kind, name = each
            cell, complaint = compared(answers, expected, STEPS[kind])
            if cell is not None:
                page.found[kind][name][layout] = cell
            if complaint is not None:
                wrong.append(f"{name}: {complaint}")
        page.write()
    assert not wrong, "\n".join(wrong)


def compared(answers: list[Any], expected: Trained, steps: int) -> tuple[Found | None, str | None]:
    """Return what a cell holds, and what is wrong with it."""
    refused = next((answer for answer in answers if isinstance(answer, ConfigError | UnsupportedLayout)), None)
    if refused is not None:
        return {"refused": str(refused), "before": False}, None
    broken = next((answer for answer in answers if isinstance(answer, BaseException | Lost)), None)
    if broken is not None:
        return None, "\n".join([repr(broken), *getattr(broken, "__notes__", [])])
    run = answers[0]
    cell = {"loss": off(run.losses, expected.losses), "grad_norm": off(run.grad_norms, expected.grad_norms)}
    return cell, None if max(cell.values()) <= TOLERANCE and len(run.losses) == steps else str(cell)


def plain_loss(model: Path, count: int) -> float:
    """Return the loss of a model as transformers reads it."""
    batches = batches_of(conversation_tokens(model, ROWS[:count]), count, 1)
    return likelihood_trajectory(plain_torch.load_model(model), batches, steps=1)[0][0]


@whole
@pytest.mark.full
def test_tuner_starts_at_base_loss_and_exports_evaluated_model(
    tmp_path: Path, models: dict[str, Path], alone: Alone, page: Page
) -> None:
    """Each tuner begins at the model's loss and what is exported is what was evaluated."""
    wrong = []
    quantised = ("qlora", "loftq")  # what is evaluated there lies on weights in four bits
    left = [name for name in KINDS["tuner"] if name not in quantised and page.lacks("tuner", name, "exported")]
    for name, run in zip(left, alone.of([("tuner", name) for name in left]), strict=True):
        model, cells = models[model_of("tuner", name)], page.found["tuner"][name]
        if name not in OTHER_START:
            cells["begins"] = {"loss": off(run.losses[:1], [plain_loss(model, 8)])}
        checkpoint, said = run.folder / f"checkpoint-{STEPS['tuner']}", list[str]()
        options = ExportSection(out=tmp_path / name.replace(" ", "-"))
        out = export_checkpoint(checkpoint, to="hf", options=options, say=said.append)
        evaluated = [line["eval_loss"] for line in run.lines.values() if "eval_loss" in line]
        cells["exported"] = {"loss": off([plain_loss(out, 8)], evaluated[-1:])}
        if max(cell["loss"] for cell in (cells.get("begins", {"loss": 0.0}), cells["exported"])) > 1e-5:
            wrong.append(f"{name}: {cells}")
        page.write()
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def refusals(models: dict[str, Path]) -> dict[tuple[str, str, str], str | None]:
    """What each pair is refused with in each layout."""
    model = models["small"]
    return {
        (kind, name, layout): refusal(kind, name, plan, model)
        for kind, name in NAMES
        for layout, (_, plan) in LAYOUTS.items()
    }


@pytest.mark.full
def test_page_lists_refused_pairs(refusals: dict[tuple[str, str, str], str | None]) -> None:
    found = json.loads(PAGE.read_text())["found"]
    for (kind, name, layout), refused in refusals.items():
        if (cell := found[kind][name].get(layout)) is None:
            continue  # not tried yet
        # What follows in another line depends on what is installed.
        expected = cell["refused"].split("\n")[0] if cell.get("before") else None
        assert (refused and refused.split("\n")[0]) == expected, f"{name} in {layout}; run: make pairs"


@pytest.mark.full
def test_backends_that_a_refusal_names_have_what_was_refused(
    refusals: dict[tuple[str, str, str], str | None],
) -> None:
    found = json.loads(PAGE.read_text())["found"]
    named = 0
    for kind, name in NAMES:
        for layout, (_, plan) in LAYOUTS.items():
            refused = refusals[kind, name, layout] or ""
            advice = re.search(r"Installed backends that support it: ([\w, ]+)\.", refused)
            asked = {key: value for key, value in plan.items() if key.startswith("parallel.")}
            for backend in advice[1].split(", ") if advice else ():
                there = [
                    each
                    for each, (_, other) in LAYOUTS.items()
                    if other.get("backend.name", "torch") == backend and asked.items() <= other.items()
                ]
                reasons = [found[kind][name].get(each, {}).get("refused") for each in there]
                # Blocks of 8 and 4 bits may not fit this one model's sizes.
                refused = [each for each in reasons if each and "the layout splits rows" not in each]
                assert len(refused) < max(1, len(there)), f"{name} in {layout} is said to be for {backend}"
                named += 1
    assert named > 50
