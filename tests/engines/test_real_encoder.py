"""all-MiniLM-L6-v2, a real encoder, learns as the trainer of sentence-transformers trains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from real_model import ENCODER, write_real_encoder
from tiny_runs import run_training, write_jsonl

PYTHON = Path(sys.prefix) / "sentences" / "bin" / "python"
"""Of an environment that has sentence-transformers."""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not ENCODER.is_file(), reason="needs the pretrained encoder that `make setup` downloads"),
]

FACTS = {
    "apple": "grows on a tree", "train": "runs on rails", "river": "flows to the sea", "doctor": "treats the sick",
    "violin": "has four strings", "mountain": "rises above the valley", "battery": "stores electric energy",
    "whale": "is the largest animal of the sea", "castle": "has thick stone walls", "bread": "is baked from flour",
    "comet": "has a bright tail of ice", "key": "opens a lock",
}  # fmt: skip
ROWS = [
    {"anchor": f"What {fact}?", "positive": f"The {thing} {fact}, as anyone in this town can tell." * (n % 3 + 1)}
    for n, (thing, fact) in enumerate(FACTS.items())
]
STEPS = 4
TRAIN = """
import json, sys
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

rows = json.loads(open("asked.json").read())
model = SentenceTransformer("model", device="cpu")
before = model.encode([row["anchor"] for row in rows]).tolist()
arguments = SentenceTransformerTrainingArguments(
    output_dir="theirs", per_device_train_batch_size=len(rows), max_steps=STEPS, learning_rate=1e-4,
    lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, logging_steps=1, report_to="none", use_cpu=True,
    save_strategy="no", disable_tqdm=True, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0,
)
loss = MultipleNegativesRankingLoss(model, scale=2.0)
losses = []


class Exact(SentenceTransformerTrainer):  # its log has four digits
    def compute_loss(self, *args, **kwargs):
        losses.append(super().compute_loss(*args, **kwargs))
        return losses[-1]


trainer = Exact(model=model, args=arguments, train_dataset=Dataset.from_list(rows), loss=loss)
trainer.train()
log = [line for line in trainer.state.log_history if "loss" in line]
after = model.encode([row["anchor"] for row in rows]).tolist()
found = {"losses": [loss.item() for loss in losses], "norms": [line["grad_norm"] for line in log]}
open("found.json", "w").write(json.dumps({**found, "before": before, "after": after}))
"""
SETTINGS: dict[str, Any] = {
    "objective.name": "embedding", "objective.temperature": 0.5, "train.max_steps": STEPS,
    "train.global_batch": len(ROWS), "train.micro_batch": 4, "optim.lr": 1e-4, "optim.schedule": "constant",
    "optim.warmup_steps": 0, "optim.weight_decay": 0.0, "optim.beta2": 0.999, "export.to": "hf",
}  # fmt: skip


@pytest.mark.skipif(not PYTHON.is_file(), reason="needs sentence-transformers, which `make setup` installs")
def test_real_encoder_learns_as_in_sentence_transformers(tmp_path: Path) -> None:
    """Losses, gradient norms and the vectors after training, whichever way the batch is laid out."""
    model = write_real_encoder(tmp_path / "model")
    (tmp_path / "asked.json").write_text(json.dumps(ROWS))
    program = TRAIN.replace("STEPS", str(STEPS))
    done = subprocess.run([PYTHON, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for free in (True, False):
        export = {"export.out": str(tmp_path / f"ours-{free}"), "data.padding_free": free}
        run = run_training(model, tmp_path / "out", ROWS, {**SETTINGS, **export, "logging.run_name": f"free-{free}"})
        assert run.losses[0] == pytest.approx(found["losses"][0], rel=1e-5)  # of a loss that is not near zero
        assert run.losses == pytest.approx(found["losses"], rel=1e-3)
        assert run.grad_norms[0] == pytest.approx(found["norms"][0], rel=1e-3)
        assert run.losses[-1] < run.losses[0]
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": row["anchor"]} for row in ROWS])
    for folder, vectors in (("model", found["before"]), ("ours-True", found["after"])):
        ended = typed(["infer", folder, "--dataset", str(data)], tmp_path)
        lines = [json.loads(line)["vector"] for line in ended.output.splitlines() if line.startswith("{")]
        off = np.abs(np.array(lines) - np.array(vectors)).max()
        assert off < (1e-5 if folder == "model" else 2e-3)
    torch.set_num_threads(1)
