"""Updates of an engine are verified: a missing, stale or swapped tensor stops the run with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from swift.contracts import Completion, Sampling, Score, WeightStream
from swift_infer import open_engine
from swift_rl.mismatch import mismatch
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.sync import Probe, ProbeResult, SyncError, VerifiedEngine, checksum
from swift_testing.subjects import write_model

TEXTS = [[5, 9, 11, 40, 41], [7, 7, 3, 200, 1, 2, 90]]
FIRST, SECOND = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


class Altered:
    """A real engine, whose weights are changed on their way."""

    def __init__(self, engine: Any, change: Callable[[WeightStream], WeightStream], *, shows: bool = True) -> None:
        self.engine, self.change = engine, change
        if shows:
            self.weights = engine.weights

    def generate(self, prompts: Any, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        yield from self.engine.generate(prompts, sampling)

    def stream(self, prompt: Any, sampling: Sampling) -> Iterator[int]:
        yield from self.engine.stream(prompt, sampling)

    def score(self, prompts: Any) -> Iterator[tuple[int, Score]]:
        yield from self.engine.score(prompts)

    def update_weights(self, weights: WeightStream) -> None:
        self.engine.update_weights(self.change(weights))

    def close(self) -> None:
        self.engine.close()


class Trainer:
    """A model in transformers, which a step changes everywhere, and what it says of the probe."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def weights(self) -> WeightStream:
        for name, tensor in self.model.state_dict().items():
            yield name, tensor.clone()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        generator = torch.Generator().manual_seed(1)
        for parameter in self.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * rate)

    @torch.no_grad()
    def scores(self) -> list[np.ndarray]:
        found = []
        for text in TEXTS:
            logps = self.model(input_ids=torch.tensor([text])).logits[0, :-1].log_softmax(-1)
            found.append(logps.gather(1, torch.tensor(text[1:])[:, None])[:, 0].numpy())
        return found


def test_complete_update_reports_version(model: Path) -> None:
    trainer, engine = Trainer(model), VerifiedEngine(open_engine("transformers", model, dtype="float32", device="cpu"))
    probe = Probe.of([*TEXTS, TEXTS[0]], tolerance=1e-4)
    assert probe.sequences == TEXTS
    for step in range(2):
        trainer.step(0.02)
        engine.update_weights(trainer.weights())
        engine.version = step
        assert probe.check(engine, trainer.scores()).largest < 1e-4
        assert {said.version for _, said in engine.generate(TEXTS, Sampling(max_new_tokens=2))} == {step}
    assert engine.verified
    engine.close()


def _kept_back(name: str) -> Callable[[WeightStream], WeightStream]:
    """Return a change that hands over the tensor of the update before instead of one."""
    old: dict[str, torch.Tensor] = {}

    def change(weights: WeightStream) -> WeightStream:
        for each, tensor in weights:
            if each == name:
                mine = old.get(name, tensor)
                old[name] = tensor.clone()
                yield each, mine
            else:
                yield each, tensor

    return change


def _swapped(weights: WeightStream) -> WeightStream:
    other = {FIRST: SECOND, SECOND: FIRST}
    for name, tensor in weights:
        yield other.get(name, name), tensor


def _rounded(weights: WeightStream) -> WeightStream:
    for name, tensor in weights:
        yield name, tensor.bfloat16() if name == FIRST else tensor


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _kept_back(FIRST),
            f"1 of 25 weights of the engine differ from those sent: {FIRST} is still that of the previous update",
        ),
        (_swapped, f"2 of 25 weights of the engine differ from those sent: {FIRST} holds what was sent as {SECOND}"),
        (_rounded, f"{FIRST} arrived changed"),
    ],
    ids=["one step old", "swapped", "rounded"],
)
def test_a_tensor_that_is_not_what_was_sent_is_named(model: Path, change: Any, said: str) -> None:
    trainer = Trainer(model)
    opened: Any = open_engine("transformers", model, dtype="float32", device="cpu")
    engine = VerifiedEngine(Altered(opened, change))

    def two_updates() -> None:
        for _ in range(2):
            trainer.step(1e-6)  # a step whose effect no probe could tell from arithmetic
            engine.update_weights(trainer.weights())

    with pytest.raises(SyncError) as raised:
        two_updates()
    assert said in raised.value.message
    engine.close()


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    class Strange:
        def generate(self, prompts: Any, sampling: Any) -> Iterator[tuple[int, Completion]]:
            yield 0, Completion([3, 264], [-1.0, -1.0], "stop")

    assert len([*VerifiedEngine(cast("Any", Strange())).generate([[1]], Sampling())]) == 1
    with pytest.raises(SyncError, match="generated token 264, but the model in training has 264 tokens"):
        next(iter(VerifiedEngine(cast("Any", Strange()), vocabulary=264).generate([[1]], Sampling())))


def test_an_engine_that_shows_no_weights_is_caught_by_the_probe(model: Path) -> None:
    trainer = Trainer(model)
    opened: Any = open_engine("transformers", model, dtype="float32", device="cpu")
    engine = VerifiedEngine(Altered(opened, _swapped, shows=False))
    probe = Probe(TEXTS, tolerance=1e-3)
    trainer.step(0.02)
    engine.update_weights(trainer.weights())
    engine.version = 7
    with pytest.raises(SyncError, match=r"After the update at step 7 .* at most 0.001 are allowed") as raised:
        probe.check(engine, trainer.scores())
    assert "cannot show its weights" in raised.value.message
    with pytest.raises(SyncError, match="by nan nats"):
        probe.check(engine, [np.full(len(text) - 1, np.nan) for text in TEXTS])
    engine.close()


def test_different_trainer_numerics_differ_from_failed_sync(model: Path) -> None:
    """A trainer that computes differently is distinguished from a failed update."""
    trainer, engine = Trainer(model), VerifiedEngine(open_engine("transformers", model, dtype="float32", device="cpu"))
    engine.update_weights(trainer.weights())
    with pytest.raises(SyncError, match="Every weight arrived unchanged, so the engine computes differently"):
        Probe(TEXTS, tolerance=1e-3).check(engine, [scores * 1.1 for scores in trainer.scores()])
    engine.close()


def test_checksum_detects_bits_and_positions() -> None:
    tensor = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    assert checksum(tensor) == checksum(tensor.clone())
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous())
    changed = tensor.clone()
    changed[49, 6] = torch.nextafter(changed[49, 6], torch.tensor(9.0))
    moved = tensor.clone()
    moved[[0, 40]] = tensor[[40, 0]]
    assert len({checksum(each) for each in (tensor, changed, moved, tensor.bfloat16())}) == 4


def round_of(engine: list[list[float]], trainer: list[list[float]]) -> Round:
    completions = [
        RolloutCompletion(0, place, np.arange(len(said)), np.array(said), "stop", "", old_logps=np.array(known))
        for place, (said, known) in enumerate(zip(engine, trainer, strict=True))
    ]
    return Round(0, 4, [Prompt(0, 0, np.array([1]), [])], completions)


def test_mismatch_matches_formulas() -> None:
    said, known = [[-1.0, -2.0, -0.5], [-3.0]], [[-1.1, -1.9, -0.5], [-2.0]]
    found = mismatch(round_of(said, known))
    log = np.concatenate(known) - np.concatenate(said)
    weights = np.exp(log)
    assert found["mismatch/mean"] == pytest.approx(0.3)
    assert found["mismatch/max"] == pytest.approx(1.0)
    assert found["mismatch/kl_engine_trainer"] == pytest.approx(float(np.mean(weights - 1 - log)))
    assert found["mismatch/kl_trainer_engine"] == pytest.approx(float(np.mean(weights * log - weights + 1)))
    assert found["mismatch/ess_tokens"] == pytest.approx(weights.sum() ** 2 / (4 * (weights**2).sum()))
    whole = np.exp([0.0, 1.0])
    assert found["mismatch/ess_completions"] == pytest.approx(whole.sum() ** 2 / (2 * (whole**2).sum()))
    assert mismatch(Round(0, 0, [], [])) == {}


def test_mismatch_estimates_match_known_divergences() -> None:
    """Estimates of the gap are the divergences of a known pair of models."""
    generator = np.random.default_rng(0)
    engine, trainer = (np.log(generator.dirichlet(np.ones(5) * 4)) for _ in range(2))
    sampled = np.repeat(np.arange(5), np.round(np.exp(engine) * 200_000).astype(int))
    found = mismatch(round_of([engine[sampled].tolist()], [trainer[sampled].tolist()]))
    forward = float((np.exp(engine) * (engine - trainer)).sum())
    backward = float((np.exp(trainer) * (trainer - engine)).sum())
    assert found["mismatch/kl_engine_trainer"] == pytest.approx(forward, rel=1e-3)
    assert found["mismatch/kl_trainer_engine"] == pytest.approx(backward, rel=1e-3)


@pytest.mark.parametrize(
    ("cause", "given"),
    [
        ("truncation", {"truncated": True, "trainer_version": 4}),
        ("staleness", {"truncated": True, "trainer_version": 5}),
        ("unexplained", {"trainer_version": 4}),
    ],
)
def test_what_the_probe_does_not_explain_is_given_its_cause(cause: str, given: Any) -> None:
    found = mismatch(round_of([[-1.0, -2.0]], [[-1.1, -2.3]]), probe=ProbeResult(0.05, 0.1), **given)
    assert found["mismatch/arithmetic"] == pytest.approx(0.05)
    parts = {name: found[f"mismatch/{name}"] for name in ("staleness", "truncation", "unexplained")}
    assert parts == {**dict.fromkeys(parts, 0.0), cause: pytest.approx(0.15)}
