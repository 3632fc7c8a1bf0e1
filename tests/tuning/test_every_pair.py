"""Every optimizer and every tuner in every layout: the numbers of one process, or a refusal in one sentence.

`make pairs` tries all of them, and writes what it found; `docs/reference/tuning-pairs.md` shows it. `make test-all`
trains some pairs in other tests, and compares here what the page says of refusals with what is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
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
from swift.config.parse import config_from_mapping
from swift.config.sections import ExportSection
from swift.errors import ConfigError, UnsupportedPlan
from swift.export.run import export_checkpoint

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tuning-pairs.json"
RESULTS = os.environ.get("SWIFT_PAIRS_RESULTS")
NAMES = [(kind, name) for kind, own in KINDS.items() for name in own]
Found = dict[str, Any]
whole = pytest.mark.skipif(RESULTS is None, reason="All pairs take minutes: make pairs")


@pytest.fixture
def found() -> Iterator[Found]:
    """What was found, which is written after each test beside what others have found."""
    path = Path(RESULTS or os.devnull)
    kept = json.loads(path.read_text())["found"] if path.is_file() else {}
    cells: Found = {kind: {name: kept.get(kind, {}).get(name, {}) for name in own} for kind, own in KINDS.items()}
    yield cells
    versions = installed_versions() | {name: version(name) for name in ("deepspeed", "megatron-core")}
    facts = {"command": "make pairs", "tolerance": TOLERANCE, "steps": STEPS, "versions": versions}
    path.write_text(json.dumps({"facts": facts, "found": cells}, indent=1) + "\n")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_model(folder / name, **shape) for name, shape in MODELS.items()}


@pytest.fixture(scope="module")
def alone(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Trained]:  # fmt: skip
    """What came of one process."""
    folder = tmp_path_factory.mktemp("alone")
    jobs = [partial(trained, models[model_of(*each)], folder / each[0], *each, {}) for each in NAMES]
    return {each: succeeded(answer)[0] for each, answer in zip(NAMES, on_processes(1, *jobs), strict=True)}


def off(values: list[float], expected: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(values, expected, strict=True))


def refusal(kind: str, name: str, plan: dict[str, Any], model: Path) -> str | None:
    """Return what a configuration is refused with, before anything is started."""
    try:
        config_from_mapping({**settings(kind, name, plan), "model.path": str(model)})
    except (ConfigError, UnsupportedPlan) as error:
        return str(error)
    return None


@whole
@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_pair_has_the_numbers_of_one_process_or_is_refused(
    tmp_path: Path, models: dict[str, Path], alone: dict[tuple[str, str], Trained], found: Found, layout: str
) -> None:
    processes, plan = LAYOUTS[layout]
    jobs = [partial(trained, models[model_of(*each)], tmp_path / each[0], *each, plan) for each in NAMES]
    wrong = []
    for each, answers in zip(NAMES, on_processes(processes, *jobs), strict=True):
        kind, name = each
        refused = next((answer for answer in answers if isinstance(answer, ConfigError | UnsupportedPlan)), None)
        if refused is not None:
            early = refusal(kind, name, plan, models[model_of(*each)]) is not None
            found[kind][name][layout] = {"refused": str(refused), "before": early}
            continue
        broken = next((answer for answer in answers if isinstance(answer, BaseException)), None)
        if broken is not None:
            wrong.append(f"{name}: {broken!r}")
            continue
        run, expected = answers[0], alone[each]
        cell = {"loss": off(run.losses, expected.losses), "grad_norm": off(run.grad_norms, expected.grad_norms)}
        found[kind][name][layout] = cell
        if max(cell.values()) > TOLERANCE or len(run.losses) != STEPS[kind]:
            wrong.append(f"{name}: {cell}")
    assert not wrong, "\n".join(wrong)


def plain_loss(model: Path, count: int) -> float:
    """Return the loss of a model as transformers reads it."""
    batches = batches_of(conversation_tokens(model, ROWS[:count]), count, 1)
    return likelihood_trajectory(plain_torch.load_model(model), batches, steps=1)[0][0]


@whole
@pytest.mark.full
def test_each_tuner_begins_at_the_models_loss_and_what_is_exported_is_what_was_evaluated(
    tmp_path: Path, models: dict[str, Path], alone: dict[tuple[str, str], Trained], found: Found
) -> None:
    wrong = []
    for name in KINDS["tuner"]:
        model, run = models[model_of("tuner", name)], alone["tuner", name]
        cells = found["tuner"][name]
        if name not in OTHER_START:
            cells["begins"] = {"loss": off(run.losses[:1], [plain_loss(model, 8)])}
        if name in ("qlora", "loftq"):
            continue  # what was evaluated lies on weights in four bits
        checkpoint, said = run.folder / f"checkpoint-{STEPS['tuner']}", list[str]()
        options = ExportSection(out=tmp_path / name.replace(" ", "-"))
        out = export_checkpoint(checkpoint, to="hf", options=options, say=said.append)
        evaluated = [line["eval_loss"] for line in run.lines.values() if "eval_loss" in line]
        cells["exported"] = {"loss": off([plain_loss(out, 8)], evaluated[-1:])}
        if max(cell["loss"] for cell in (cells.get("begins", {"loss": 0.0}), cells["exported"])) > 1e-5:
            wrong.append(f"{name}: {cells}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
def test_the_page_says_what_is_refused(tmp_path: Path) -> None:
    page = json.loads(PAGE.read_text())["found"]
    model = write_model(tmp_path / "tiny")
    for kind, name in NAMES:
        for layout, (_, plan) in LAYOUTS.items():
            if (cell := page[kind][name].get(layout)) is None:
                continue  # not tried yet
            # What follows in another line depends on what is installed.
            expected = cell["refused"].split("\n")[0] if cell.get("before") else None
            refused = refusal(kind, name, plan, model)
            assert (refused and refused.split("\n")[0]) == expected, f"{name} in {layout}; run: make pairs"
