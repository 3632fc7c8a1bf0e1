"""The page of model types holds what is found: types that cover every mechanism train like plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiers import tiered
from tiny_types import NOT_MADE, types
from type_cells import CELLS, Cell, Subject, Verdict, verdicts

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "architectures.json"
LISTED: dict[str, dict[str, Any]] = json.loads(PAGE.read_text(encoding="utf-8"))["types"]
SELECTED = {
    "bloom": "ALiBi",
    "deepseek_v3": "latent attention, sigmoid routing, a shared expert, a dense first layer",
    "deepseek_v32": "an indexer",
    "dots1": "sigmoid routing without normalization",
    "gemma3_text": "windows, with rotary positions of their own",
    "gemma3n_text": "layers that share keys and values, embeddings of each layer",
    "gemma4_text": "sizes of each layer",
    "gpt_oss": "sinks, experts with biases",
    "llama": "none",
    "llama4_text": "chunks, scaled attention, a router that is a linear layer",
    "mamba2": "state alone, no attention",
    "nemotron_h": "layers of four kinds, state among them",
    "phi3, longrope": "rotary positions that depend on the length of a sample",
    "qwen2_moe": "a shared expert behind a gate",
    "qwen3_next": "linear attention, gated attention",
}
"""Types, and the mechanism that each stands for. `make architectures` tries all."""
QUICK = ("llama", "mamba2", "qwen2_moe")
ENGINES = [cell for cell in CELLS if cell.processes > 1]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """The selected types that were made so far."""
    return _Made(tmp_path_factory.mktemp("types"))


class _Made(dict[str, Subject]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, name: str) -> Subject:
        self[name] = Subject(name, self._folder / str(len(self)))
        return self[name]


def test_page_lists_every_type() -> None:
    """A newer transformers, or a number that was wrong, shows."""
    assert set(LISTED) == set(types()) - set(NOT_MADE)
    results = {verdict["result"] for cells in LISTED.values() for verdict in cells.values()}
    assert results == {"equal", "refused"}


@pytest.mark.parametrize("name", tiered(SELECTED, QUICK))
def test_type_trains_on_torch_as_listed(name: str, subjects: dict[str, Subject]) -> None:
    """Padded, padding-free, packed, with LoRA, exported."""
    found = subjects[name].on_torch()
    assert {cell: verdict.result for cell, verdict in found.items()} == _listed(name, found), _notes(found)


@pytest.mark.full
@pytest.mark.parametrize("cell", ENGINES, ids=lambda cell: cell.name)
def test_types_train_on_an_engine_as_listed(cell: Cell, subjects: dict[str, Subject]) -> None:
    """On several processes, with the numbers of one."""
    chosen = [name for name in SELECTED if LISTED[name]["padded"]["result"] == "equal"]
    found = dict(zip(chosen, verdicts(cell, [subjects[name] for name in chosen]), strict=True))
    assert {name: verdict.result for name, verdict in found.items()} == {
        name: LISTED[name][cell.name]["result"] for name in chosen
    }, _notes(found)


def _listed(name: str, columns: Any) -> dict[str, str]:
    return {column: LISTED[name][column]["result"] for column in columns}


def _notes(found: dict[str, Verdict]) -> str:
    return "\n".join(f"{name}: {verdict}" for name, verdict in found.items())
