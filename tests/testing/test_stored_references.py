"""Workers of a session share the references that the conformance kit compares with."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_testing.cases import steps_of
from swift_testing.reference import Expected, Recipe, run_reference
from swift_testing.stored import FOLDER, shared_reference, stored
from swift_testing.subjects import write_model

SAMPLES = [(([5, 6, 7], [8, 9]),), (([1, 2], [3, 4, 5]),)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    model = write_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)
    return Recipe(
        model,
        SAMPLES,
        [[0, 1], [1], [0]],
        held_out=[0, 1],
        evaluated_every=2,
        steps=3,
        objective="tokens",
        notes_changes=True,
    )


def noted(recipe: Recipe, calls: list[int]) -> Expected:
    calls.append(len(recipe.batches))
    found = run_reference(recipe)
    return replace(found, metrics={"of another model": found.losses})


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def test_second_process_reuses_stored_numbers(recipe: Recipe, tmp_path: Path) -> None:
    """A second process reads every number that the first computed."""
    calls: list[int] = []
    first, second = (stored(tmp_path / "one", recipe, lambda each: noted(each, calls)) for _ in range(2))
    assert calls == [3, 1], "the second computes the first step alone"
    for field in fields(Expected):
        assert getattr(first, field.name), field.name
        assert alike(getattr(first, field.name), getattr(second, field.name)), field.name


def test_an_infinite_norm_is_kept(recipe: Recipe, tmp_path: Path) -> None:
    odd = Expected([1.5], [math.inf], [0.1], {1: 2.0})
    stored(tmp_path / "odd", recipe, lambda _: odd)
    assert stored(tmp_path / "odd", recipe, lambda _: replace(odd, rates=[])) == odd


def test_what_was_stored_for_other_samples_is_not_believed(recipe: Recipe, tmp_path: Path) -> None:
    stored(tmp_path / "one", recipe, run_reference)
    other = replace(recipe, samples=list(reversed(SAMPLES)), batches=[[0], [1], [0]])
    assert stored(tmp_path / "one", other, run_reference).losses == run_reference(other).losses


def test_reference_key_is_case_steps_and_weights(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference is found by its case its steps and the weights of its model."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "references"))
    elsewhere = replace(recipe, model=write_model(tmp_path / "same", num_hidden_layers=1))
    others = replace(recipe, model=write_model(tmp_path / "others", num_hidden_layers=1, seed=1))
    longer = replace(recipe, steps=4)  # whose first step, which is warm-up in most trials, may be the same
    written = []
    for about, each in (("a", recipe), ("a", elsewhere), ("b", recipe), ("a", others), ("a", longer)):
        shared_reference(about, each)
        written.append(len([*(tmp_path / "references").glob("*.safetensors")]))
    assert written == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("setting", ["4", "five", "-5", ""])
def test_too_few_steps_to_resume_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="at least 5"):
        steps_of(setting)
