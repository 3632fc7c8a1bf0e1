"""Training on pictures, against a loop written by hand: speed, memory, waiting, packing, stand-ins, resuming.

The other loop is what one writes with torch and transformers: a DataLoader with as many processes for decoding as
swift has threads, the processor in its collate function, labels, `model(**batch)`. The two take turns step by step on
the same rows; CPU seconds of all their threads and processes are compared, which other work on the machine does not
change. Both train the language model and leave tower and aligner as they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import picture_inputs
from benchmarks.commands import RUNS, SWIFT, TRAINING, call, environment, plugin_folder, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import ROOT
from benchmarks.peer_in_turn import ORDER
from benchmarks.picture_inputs import MODEL, TINY, WIDE
from benchmarks.picture_watch import OWN, WHOSE
from benchmarks.turns import Turn, loss_difference, ratios, turns

BATCH = 4
"""Samples of a padded batch."""
PACK = 2_000
"""Tokens of a pack: not more than the longest of padded batches."""
LATE = 300
"""The step after which a run is resumed."""
LEARNING_RATE = float(TRAINING[TRAINING.index("--learning_rate") + 1])
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
IN_ORDER = ("--data.shuffle", "false", "--max_length", str(PACK), "--logging_steps", "1")
PADDED = (*IN_ORDER, "--per_device_train_batch_size", str(BATCH))
PACKED = (*IN_ORDER, "--per_device_train_batch_size", "1", "--packing", "true")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    picture_inputs.ensure()
    steps = 15 if quick else 35
    padded = _in_turns("pictures-padded", MODEL, steps, PADDED)
    packed = _in_turns("pictures-packed", MODEL, steps, PACKED)
    wide = _in_turns("pictures-memory", WIDE, 3, PADDED)
    waiting = _waiting(12 if quick else 25)
    stand_ins = _stand_ins(36 if quick else 90)
    resumed = _resumed()
    peaks = {who: max(turn[who]["peak_mib"] for turn in wide) for who in ("swift", "other")}
    shares = {(whose, texts): _overhead(stand_ins, texts, whose) for whose in WHOSE[1:] for texts in (0.01, 0.5)}
    said = f"resumed after {LATE} steps"
    figures = [
        Figure("padded: pictures per CPU second over the loop's", _pictures_over(padded), at_least=1.0),
        Figure("padded: tokens per CPU second over the loop's", median(ratios(padded, "cpu")), at_least=1.0),
        Figure("padded: largest relative difference of the loss", loss_difference(padded), unit="", at_most=1e-5),
        Figure("packed: pictures per CPU second over the padded loop's", _pictures_over(packed)),
        Figure("packed: tokens per CPU second over padded, both swift's", _speed(packed) / _speed(padded)),
        Figure("part of a step spent waiting for pictures, median", median(waiting) * 100, unit="%", at_most=2),
        Figure("a vocabulary of 151,936: peak memory over the loop's", peaks["swift"] / peaks["other"], at_most=1.0),
        *(
            Figure(
                f"{'' if whose == OWN else f'{whose} '}stand-ins where {texts:.0%} of rows are text: "
                "more CPU time a step",
                share * 100,
                unit="%",
            )
            for (whose, texts), share in shares.items()
        ),
        Figure(f"{said}: CPU time to the end of the next over a fresh start's", resumed["ratio"], at_most=1.1),
        Figure(f"{said}: pictures read by the end of the next", resumed["read"], unit="", at_most=4 * BATCH),
    ]
    details = {
        "arguments": {"both": TRAINING, "padded": PADDED, "packed": PACKED},
        "sizes": picture_inputs.SIZES,
        "steps": steps,
        "pictures_per_cpu_second": {
            f"{who}, {name}": _speed(run, who, "pictures")
            for name, run in (("padded", padded), ("packed", packed))
            for who in ("swift", "other")
        },
        "peak_mib": peaks,
        "resumed": resumed,
        "stand_ins": _cost(stand_ins),
        "notes": [
            f"All in one thread, and two that decode. {os.getloadavg()[0]:.0f} processes wanted to run at the end: "
            "waiting, which is by the clock, says something only where that is not more than there are cores.",
            "LLaMA-Factory puts its stand-in, of 64×64, into every batch without a picture, on one process too. "
            "swift's is 28×28, and there is none where no process waits: on one, or with a tower that stays as it is.",
            "Pictures of 224×224 to 768×512, 64 to 486 tokens, answers of 1 to 12 words.",
        ],
    }
    return figures, details


def _in_turns(name: str, model: Path, steps: int, arguments: tuple[str, ...]) -> list[Turn]:
    """Return steps of swift and of the loop by hand, which has rows to go on with when the last one ends."""
    data = picture_inputs.rows(BATCH * (2 * steps + 10))
    order = picture_inputs.order(data, model, BATCH, LEARNING_RATE)
    variables = {ORDER: order, **ONE_THREAD}
    made = turns(name, steps, *arguments, observer="picture-loop-in-turn", model=model, data=data, variables=variables)
    print(f"  {name}: done", flush=True)
    return made


def _pictures_over(turns: list[Turn]) -> float:
    """Return swift's pictures per CPU second over the other loop's."""
    counted = [{who: {**each, "tokens": each["pictures"]} for who, each in turn.items()} for turn in turns]
    return float(median(ratios(counted, "cpu")))


def _speed(turns: list[Turn], who: str = "swift", of: str = "tokens") -> float:
    """Return how many a CPU second, of warm steps."""
    warm = turns[5:]
    return float(sum(turn[who][of] for turn in warm) / sum(turn[who]["cpu"] for turn in warm))


def _waiting(steps: int) -> list[float]:
    """Return the part of each warm step of a run by itself that was spent waiting for pictures."""
    data = picture_inputs.rows(BATCH * steps)
    folder = swift_run(
        "pictures-alone", *PADDED, "--max_steps", str(steps), model=MODEL, data=data, variables=ONE_THREAD
    )
    lines = [json.loads(line) for line in (folder / "logging.jsonl").read_text().splitlines()]
    return [line["data_wait_fraction"] for line in lines if "data_wait_fraction" in line][3:]


def _stand_ins(steps: int) -> list[dict[str, Any]]:
    """Return steps with a trained tower, two of three with stand-ins; half of the rows are text."""
    data = picture_inputs.rows(steps, texts=0.5)
    alone = (*IN_ORDER, "--per_device_train_batch_size", "1", "--freeze_vit", "false", "--freeze_aligner", "false")
    folder = swift_run(
        "pictures-stand-ins", *alone, "--max_steps", str(steps), observers=["stand-ins-in-turn"], model=MODEL,
        data=data, variables=ONE_THREAD,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads((folder / "stand_ins.json").read_text())[5:]
    return found


def _cost(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians of the CPU seconds of steps of one row: a text's, one's with a stand-in, a picture's."""

    def of(lacking: bool, stands_in: str | None) -> float:
        chosen = (s for s in steps if bool(s["lacking"]) is lacking and stands_in in (None, s["stands_in"]))
        return median(step["cpu"] for step in chosen)

    texts = {f"text and {whose} stand-in" if whose else "text": of(True, whose) for whose in WHOSE}
    return {**texts, "picture": of(False, None)}


def _overhead(steps: list[dict[str, Any]], texts: float, whose: str) -> float:
    """Return how much longer an average step is by its stand-ins, where this part of micro-batches has no picture."""
    cost = _cost(steps)
    plain = texts * cost["text"] + (1 - texts) * cost["picture"]
    return texts * (cost[f"text and {whose} stand-in"] - cost["text"]) / plain


def _resumed() -> dict[str, float]:
    """Return what the first step of a run took that begins late, beside one that begins at the beginning."""
    data = picture_inputs.rows(BATCH * (LATE + 2), tiny=True)
    late = (
        *PADDED, "--max_steps", str(LATE + 2), "--save_steps", str(LATE), "--load_best_model_at_end", "false",
    )  # fmt: skip
    folder = swift_run("pictures-late", *late, observers=["decoded-watch"], model=TINY, data=data, variables=ONE_THREAD)
    python_path = os.pathsep.join([str(plugin_folder()), str(ROOT)])
    words = ["--resume_from_checkpoint", str(folder / f"checkpoint-{LATE}"), "--output_dir", str(RUNS)]
    command = [SWIFT, "sft", "--model", str(TINY), "--dataset", str(data), *TRAINING, *late, *words]
    reports = ["--report_to", "console", "jsonl", "tensorboard", "report", "decoded-watch"]
    call([*command, *reports], environment(PYTHONPATH=python_path, **ONE_THREAD))
    files = sorted(RUNS.rglob("decoded.jsonl"), key=lambda path: path.stat().st_mtime)
    fresh = json.loads((folder / "decoded.jsonl").read_text().splitlines()[0])
    again = json.loads(files[-1].read_text().splitlines()[-1])
    assert again["first"]["step"] == LATE
    return {
        "ratio": again["first"]["cpu"] / fresh["first"]["cpu"],
        "read": again["first"]["read"],
        "read by a fresh start": fresh["first"]["read"],
        "read by all of the first run": fresh["read"],
    }
