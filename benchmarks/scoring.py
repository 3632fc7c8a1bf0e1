"""What `reward_models` and `embeddings` share: swift beside another library's trainer on the same model and rows.

Both have the same model, the same rows in the same order, fp32, and the same optimizer. The two take turns step by
step, each in a process of its own (sentence-transformers in an environment of its own too, which `make setup`
makes), and the time of a step is all that passes between two turns: data, step, logging. So both train on the same
batches, and their losses are compared. swift runs without padding, as it comes, and padded as they are. All compute in
one thread: two that wait for each other would measure the other work of the machine.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.commands import ROWS, TRAINING
from benchmarks.facts import Figure
from benchmarks.inputs import MODEL, WORK, chats, ensure
from benchmarks.peer_in_turn import ORDER
from benchmarks.turns import Turn, loss_difference, ratios, turns

SENTENCES = Path(sys.prefix) / "sentences" / "bin" / "python"
"""Of the environment with sentence-transformers."""
BATCH = {"rm": ROWS, "embedding": 16}
"""Rows of a batch; of embeddings, so many are the documents that a query is compared with."""
LEARNING_RATE = float(TRAINING[TRAINING.index("--learning_rate") + 1])
PADDED, FLAT = "padded alike", "without padding"
LAYOUTS = {PADDED: ("--padding_free", "false"), FLAT: ()}
OBJECTIVES = {
    "rm": ("--objective", "rm"),
    "embedding": ("--objective", "embedding", "--objective.temperature", "0.05", "--model.pooling", "mean"),
}
_CLOSE = 1e-4
"""Of losses of all steps, relative: both sum in fp32, in another order."""


def note() -> str:
    """Return what readers of the figures must know of the machine."""
    return (
        f"Both computed in one thread. {os.getloadavg()[0]:.0f} processes wanted to run at the end of it: where that "
        "is more than there are cores, CPU seconds are the fair figure."
    )


def figures_of(title: str, runs: dict[str, list[Turn]]) -> list[Figure]:
    """Return the ratios of speed by both clocks, and how far the losses are apart, of turns by layout."""
    figures = []
    for layout, run in runs.items():
        least = 1.3 if layout == FLAT else None
        figures += [
            Figure(f"tokens/s {title}, {layout}", median(ratios(run)), at_least=least),
            Figure(f"tokens per CPU second {title}, {layout}", median(ratios(run, "cpu")), at_least=least),
        ]
    apart = max(map(loss_difference, runs.values()))
    return [*figures, Figure(f"largest relative difference of the loss {title}", apart, unit="", at_most=_CLOSE)]


def taken(objective: str, layout: str, steps: int, *, recompute: bool = False) -> list[Turn]:
    """Return the steps of both in turn."""
    folder, data = folder_of(objective), data_of(objective)
    rows = BATCH[objective]
    order = {
        "python": sys.executable if objective == "rm" else str(SENTENCES),
        "objective": objective,
        "model": str(folder),
        "data": str(data),
        "rows": rows,
        "learning_rate": LEARNING_RATE,
        "recompute": recompute,
    }
    same = ("--data.shuffle", "false", "--per_device_train_batch_size", str(rows))
    both = turns(
        f"{objective}-{layout.replace(' ', '-')}",
        steps,
        *OBJECTIVES[objective],
        *LAYOUTS[layout],
        *same,
        observer="peer-in-turn",
        model=folder,
        data=data,
        variables={ORDER: json.dumps(order), "OMP_NUM_THREADS": "1"},
        verb="train",
    )
    if any(turn["swift"]["tokens"] != turn["other"]["tokens"] for turn in both):
        sys.exit(f"{objective}: the two did not train on the same tokens")
    print(f"  {objective}, {layout}: done", flush=True)
    return both


def folder_of(objective: str) -> Path:
    """Return the folder of the model with the head of an objective, or with none."""
    return MODEL.with_name(f"{MODEL.name}-{objective}")


def data_of(objective: str) -> Path:
    """Return the rows of an objective."""
    return WORK / f"{objective}.jsonl"


def make_inputs() -> None:
    """Make models and data if they aren't there."""
    ensure()
    wanted = [path for each in OBJECTIVES for path in (data_of(each), folder_of(each))]
    if not all(path.exists() for path in wanted):
        subprocess.run([sys.executable, "-m", "benchmarks.scoring"], check=True)


def make() -> None:
    """Write the models as others publish them, and rows of the benchmarks' chats."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    from swift.models.sentence_files import write_sentence_files

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    scored = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1)
    plain = AutoModel.from_pretrained(MODEL)
    for objective, made in (("rm", scored), ("embedding", plain)):
        made.save_pretrained(folder_of(objective))
        tokenizer.save_pretrained(folder_of(objective))
    write_sentence_files(folder_of("embedding"), size=plain.config.hidden_size, pooling="mean")
    talks = chats()
    answers = [answer for _, answer in talks]
    random.Random(2).shuffle(answers)
    pairs = (
        {"prompt": [question], "chosen": [answer], "rejected": [other]}
        for (question, answer), other in zip(talks, answers, strict=True)
    )
    texts = ({"anchor": question["content"], "positive": answer["content"]} for question, answer in talks)
    for objective, rows in (("rm", pairs), ("embedding", texts)):
        data_of(objective).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    make()
