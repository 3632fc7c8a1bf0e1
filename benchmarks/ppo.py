"""What PPO computes, beside the last PPOTrainer that TRL had (0.29.1, out of its wheel), which is run for two rounds.

The rounds are taken apart: what TRL made advantages, returns and losses of is given to swift's functions. It learns
twice from each round, so that ratios are not 1 the second time. A model with random weights hardly ever ends an answer:
all have one length, which leaves out the one place more that TRL counts behind an answer that has ended.

Speed is that of whole rounds (drawn, scored by reward model, critic and reference, learned from twice), which both
sides make in turns, each in a process of its own with one thread. The first round of each is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, WORK, ensure
from benchmarks.peer import Peer
from benchmarks.peers_functions import unpacked

TRL = "0.29.1"
SCORER = MODEL.with_name(f"{MODEL.name}-scorer")
ANSWERS, LENGTH, EPOCHS = 8, 16, 2
"""Of each round."""
PENALTY, KL_COEF = 0.7, 0.3
TIMED = {"answers": 32, "longest": 64, "learning_rate": 1e-6}
"""Rounds whose speed is compared; so little is learned that answers keep their lengths."""
LAYOUTS = {"padded": ("--padding_free", "false"), "without padding": ("--padding_free", "true")}
EQUAL = 1e-5
_NAMES = ("advantages", "old_logps", "returns", "old_values")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Return differences of numbers, which are the same in a quick run, and ratios of speed."""
    make_inputs()
    order = {
        "python": str(unpacked("trl", TRL).parent), "model": str(MODEL), "scorer": str(SCORER),
        "data": str(WORK / "prompts.jsonl"), "answers": ANSWERS, "longest": LENGTH, "epochs": EPOCHS,
        "penalty": PENALTY, "kl_coef": KL_COEF, "learning_rate": 1e-3,
    }  # fmt: skip
    figures = []
    for white in (False, True):
        kept = WORK / f"ppo-round-{white}.pt"
        _run({**order, "white": white, "kept": str(kept)})
        for what, apart in compared(torch.load(kept, weights_only=True), white=white):
            title = f"{what}, rewards {'whitened' if white else 'as they are'}: largest relative difference"
            figures.append(Figure(title, apart, unit="", at_most=EQUAL))
    rounds = _rounds({**order, **TIMED}, 3 if quick else 7)
    for layout in LAYOUTS:
        for clock, unit in (("cpu", "CPU second"), ("seconds", "second")):
            speed = median(
                _speed(ours, clock) / _speed(theirs, clock)
                for ours, theirs in zip(rounds[layout], rounds["TRL"], strict=True)
            )
            figures.append(Figure(f"rounds, {layout}: tokens per {unit} over TRL's", speed, at_least=1.0))
    details = {
        "rounds": {"count": len(rounds["TRL"]), **TIMED},
        **{side: {name: median(each[name] for each in made) for name in made[0]} for side, made in rounds.items()},
        "TRL": TRL, "answers_of_a_round": ANSWERS, "tokens_of_an_answer": LENGTH, "epochs": EPOCHS,
        "missing_eos_penalty": PENALTY, "kl_coef": KL_COEF,
    }  # fmt: skip
    return figures, details


def _rounds(order: dict[str, Any], count: int) -> dict[str, list[dict[str, float]]]:
    """Return what rounds of both sides took, made in turns; without the first, in which memory is taken."""
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SWIFT_PLUGINS": "swift-rl"}
    both = {**order, "white": False, "rounds": count + 2}
    orders = {layout: {**both, "side": "swift", "arguments": given} for layout, given in LAYOUTS.items()}
    peers = {
        side: Peer("benchmarks.ppo_sides", each, variables=alone)
        for side, each in {**orders, "TRL": {**both, "side": "trl"}}.items()
    }
    for peer in peers.values():
        peer.wait()
    made: dict[str, list[dict[str, float]]] = {side: [] for side in peers}
    for _ in range(count + 1):
        for side, peer in peers.items():
            made[side].append(peer.step())
    for peer in peers.values():
        peer.close()
    return {side: each[1:] for side, each in made.items()}


def _speed(round_: dict[str, float], clock: str) -> float:
    return round_["tokens"] / round_[clock]


def compared(round_: dict[str, Any], *, white: bool) -> list[tuple[str, float]]:
    """Return how far swift's numbers are from TRL's, of the tensors of one round of TRL."""
    from swift_rl import gae
    from swift_rl.ppo_options import PpoOptions

    options = PpoOptions(whiten_rewards=white, kl_coef=KL_COEF, vf_coef=1.0)
    rows = {name: list(round_[name].double().numpy()) for name in ("values", "logps", "ref_logps")}
    divergences = [ours - theirs for ours, theirs in zip(rows["logps"], rows["ref_logps"], strict=True)]
    masks = [np.ones(len(each), dtype=bool) for each in divergences]
    scores = round_["scores"].double().numpy() - PENALTY  # none of the answers has an end
    made = gae.estimate(scores, rows["values"], divergences, masks, options, kl_coef=KL_COEF)
    found = [
        ("advantages", _apart(np.stack(made.advantages), round_["advantages"])),
        ("returns", _apart(np.stack(made.returns), round_["returns"])),
    ]
    given = dict(zip(_NAMES, (round_["advantages"], round_["logps"], round_["returns"], round_["values"]), strict=True))
    steps = zip(round_["order"], round_["new_logps"], round_["new_values"], strict=True)
    ours = [_losses(given, *step, options) for step in steps]
    for index, name in enumerate(("policy", "value")):
        theirs = round_[f"{name}_losses"].flatten()
        found.append((f"losses of the {name}", _apart(np.array([each[index] for each in ours]), theirs)))
    return found


def _losses(
    given: dict[str, torch.Tensor], order: torch.Tensor, logps: torch.Tensor, values: torch.Tensor, options: Any
) -> tuple[float, float]:
    """Return swift's losses of a step: what policy and critic say of its answers, in their order, is given."""
    from swift.contracts import ModelView
    from swift.data.batch import collate
    from swift.data.samples import Encoded, Segment
    from swift_rl.critic import ValueLoss
    from swift_rl.ppo import Ppo

    length = logps.shape[1]
    weights = np.concatenate([[0.0], np.ones(length)]).astype(np.float32)
    samples = []
    for number, row in enumerate(order.tolist()):
        token_values = {name: np.concatenate([[0.0], each[row]]).astype(np.float32) for name, each in given.items()}
        samples.append(Encoded(number, (Segment(np.zeros(length + 1, np.int32), weights, token_values),)))
    batch = collate(samples, flat=False)
    views = [torch.zeros(batch.weights.shape).masked_scatter(batch.weights > 0, each) for each in (logps, values)]
    view = ModelView(token_logps=views[0], values=views[1])
    both = (Ppo(options), ValueLoss(options))
    policy, value = (each.loss(view, batch).loss / each.row_weight(samples) for each in both)
    return float(policy), float(value)


def _apart(ours: np.ndarray, theirs: torch.Tensor) -> float:
    expected = theirs.double().numpy()
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


def _run(order: dict[str, Any]) -> None:
    file = WORK / "ppo-order.json"
    file.write_text(json.dumps({**order, "folder": str(WORK / "ppo")}))
    subprocess.run([sys.executable, "-m", "benchmarks.ppo_peer", str(file)], check=True, cwd=Path(__file__).parents[1])


def make_inputs() -> None:
    """Make the models and the prompts: the scorer is reward model and what the critic begins as."""
    ensure()
    questions = ([json.loads(line)["messages"][0]] for line in CHATS.read_text().splitlines())
    (WORK / "prompts.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in questions))
    if SCORER.exists():
        return
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(2)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    pad = tokenizer.pad_token_id
    scorer = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1, pad_token_id=pad, dtype="float32")
    scorer.save_pretrained(SCORER)
    tokenizer.save_pretrained(SCORER)
