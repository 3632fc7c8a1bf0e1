"""Two models in one run move between engines: one checkpoint holds both, and each goes on as if it were alone."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from places import DEEPSPEED, FSDP, TORCH, Place
from tiers import tiered

from swift.checkpoint import open_checkpoint
from swift.checkpoint.names import owner_of
from swift.config.sections import ExportSection
from swift.export.run import export_checkpoint
from swift.models.files import SafetensorsFolder
from swift_testing import Layout
from swift_testing.cases import BY_NAME, FP32, SAVED_AT, STEPS
from swift_testing.checks import near
from swift_testing.crew import succeeded
from swift_testing.roles import CRITIC, train_both
from swift_testing.subjects import Subject
from swift_testing.trials import Trials

CASE = BY_NAME["clipped"]
SUBJECT = Subject(blocks=2)
PLACES = (
    Place("torch", TORCH, Layout(1)),
    Place("FSDP", FSDP, Layout(2, {"dp_shard": 2})),
    Place("ZeRO-3", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero3"})),
    Place("DDP", TORCH, Layout(2)),
)
"""Each resumes from what the one before it saved."""


def trials_at(place: Place, folder: Path) -> Trials:
    engine = place.engine
    return Trials(
        engine.backend, folder / engine.backend, subject=SUBJECT, environment=engine.environment, preload=engine.preload
    )


@pytest.mark.parametrize("pair", tiered(pairwise(PLACES), [PLACES[:2]]), ids=lambda pair: " to ".join(map(str, pair)))
def test_both_models_resume_on_another_engine(pair: tuple[Place, Place], tmp_path: Path) -> None:
    wrote, reads = pair
    writing, reading = trials_at(wrote, tmp_path / "wrote"), trials_at(reads, tmp_path / "reads")
    saved = succeeded(writing.both(CASE, wrote.layout))[0]
    assert saved.checkpoint is not None
    stored = json.loads((saved.checkpoint / "state/index.json").read_text())["tensors"]
    assert {owner_of(name) for name in stored} == {"", CRITIC}
    job = partial(train_both, reading.trial(CASE, reads.layout), reading.critic(), checkpoint=saved.checkpoint, steps=3)
    for outcome in succeeded(reading.results(reads.layout, {("resumed",): job})[("resumed",)]):
        assert list(outcome.policy) == list(range(SAVED_AT + 1, STEPS + 1))[:3]
        for results, expected in (
            (outcome.policy, reading.expected(CASE)),
            (outcome.critic, reading.expected_of_critic(CASE)),
        ):
            for step, result in results.items():
                near(f"loss of step {step}", result.loss, expected.losses[step - 1], FP32)
                near(f"gradient norm of step {step}", result.grad_norm, expected.grad_norms[step - 1], FP32)


def test_what_reads_a_checkpoint_of_two_models_reads_the_policy(tmp_path: Path) -> None:
    trials = trials_at(PLACES[0], tmp_path)
    saved = succeeded(trials.both(CASE, Layout(1)))[0]
    assert saved.checkpoint is not None
    checkpoint = open_checkpoint(saved.checkpoint)
    critic = checkpoint.for_role(CRITIC)
    assert set(checkpoint.names()) == set(critic.names())  # the same architecture, in other shapes
    name = "model.model.layers.0.mlp.up_proj.weight"
    assert checkpoint.read(name).shape == (96, 64)
    assert critic.read(name).shape == (128, 64)
    out = tmp_path / "exported"
    export_checkpoint(saved.checkpoint, to="hf", options=ExportSection(out=out), say=lambda _: None)
    weights = SafetensorsFolder(out)
    assert weights.read("model.layers.0.mlp.up_proj.weight").shape == (96, 64)
    assert not [each for each in weights.names() if CRITIC in each]
