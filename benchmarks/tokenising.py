"""Rows a second from a file of chats to tokens and masks: row by row, as now, and with `datasets.map`.

Several ways make the same tokens and weights of the same chats, in turns, each in a process of its own:
- row by row: the chat template rendered twice and the tokenizer called once for every row, and nothing else;
- `datasets.map` in batches, as people write it: `apply_chat_template`, offsets, labels;
- swift's own `prepare_data`;
- that of another checkout of swift, where the variable BEFORE names one (`git worktree add ../before COMMIT`).

CPU seconds of all processes of a way are what counts where the machine is shared; wall-clock time is noted beside. The
memory is the peak of the parent and of its largest worker, with the modules that they have loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import call, environment
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, WORK, ensure

FOLDER = WORK / "tokenising"
BEFORE = "BEFORE"
"""Environment variable: a checkout of swift to compare with."""
ROWS = 20_000
"""Of the ways that are compared."""
FEW, MANY = 200_000, 2_000_000
"""Of the measurement of memory."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    rounds = 1 if quick else 3
    rows, few, many = (4_000, 8_000, 16_000) if quick else (ROWS, FEW, MANY)
    data = _data(rows)
    ways = ("row-by-row", "datasets", "swift-1", "swift-2", *(["before-1"] if BEFORE in os.environ else []))
    turns = [{way: _run(way, data, rows) for way in ways} for _ in range(rounds)]
    memory = {str(count): _run("swift-2", _data(count), count) for count in (few, many)}
    digests = {turn[way]["digest"] for turn in turns for way in ways}

    def ratio(one: str, other: str, what: str) -> float:
        return median(turn[other][what] / turn[one][what] for turn in turns)

    grown = memory[str(many)]["memory_mib"] / memory[str(few)]["memory_mib"]
    before = []
    if BEFORE in os.environ:
        before = [
            Figure(
                "one core, rows per second over before, by CPU time", ratio("swift-1", "before-1", "cpu"), at_least=3
            ),
            Figure("one core, rows per second over before, by the clock", ratio("swift-1", "before-1", "seconds")),
        ]
    figures = [
        *before,
        Figure("one core, rows per second over row by row, by CPU time", ratio("swift-1", "row-by-row", "cpu")),
        Figure(
            "two cores over one, by the busiest process's CPU time",
            ratio("swift-2", "swift-1", "busiest"),
            at_least=1.8,
        ),
        Figure("two cores over one, by the clock", ratio("swift-2", "swift-1", "seconds")),
        Figure("one core, rows per second over datasets.map, by CPU time", ratio("swift-1", "datasets", "cpu")),
        Figure(f"memory at {many:,} rows over that at {few:,}", grown, at_most=1.25),
        Figure("ways that made other tokens or masks", float(len(digests) - 1), unit="", at_most=0),
        Figure("rows per second of one core's time", median(rows / turn["swift-1"]["cpu"] for turn in turns), unit=""),
    ]
    return figures, {"rows": rows, "turns": turns, "memory": memory}


def _data(rows: int) -> Path:
    """Return the benchmarks' chats, again and again."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"chats-{rows}.jsonl"
    if not path.exists():
        lines = CHATS.read_text(encoding="utf-8").splitlines(keepends=True)
        with path.open("w", encoding="utf-8") as file:
            for start in range(0, rows, len(lines)):
                file.writelines(lines[: rows - start])
    return path


def _run(way: str, data: Path, rows: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.tokenising", way, str(data), str(rows)]
    settings = {"OMP_NUM_THREADS": "1"}
    if way.startswith("before"):
        settings["PYTHONPATH"] = str(Path(os.environ[BEFORE]).resolve() / "packages/core/src")
    answer: dict[str, Any] = json.loads(call(command, environment(**settings)).splitlines()[-1])
    return answer


def one_way(way: str, data: Path, rows: int) -> dict[str, Any]:
    """Tokenise in one way; seconds begin when the tokenizer is loaded and end when the tokens can be read."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    importlib.import_module("datasets" if way.startswith("datasets") else "swift.data.pipeline")
    before, start = _cpu(), time.perf_counter()
    count = int(way[-1]) if way[-1].isdigit() and int(way[-1]) > 1 else 1
    if way == "row-by-row":
        ids, weights = row_by_row(tokenizer, data)
    elif way.startswith("datasets"):
        ids, weights = with_datasets(tokenizer, data, count)
    else:
        ids, weights = with_swift(tokenizer, data, count)
    seconds, after = time.perf_counter() - start, _cpu()
    own, workers = after[0] - before[0], after[1] - before[1]
    return {
        "seconds": seconds,
        "cpu": own + workers,
        "busiest": max(own, workers / count),
        "memory_mib": _memory(count),
        "digest": _digest(ids, weights),
        "rows": rows,
    }


def with_swift(tokenizer: Any, data: Path, workers: int) -> tuple[Any, Any]:
    """Swift's own way, up to the store on disk."""
    import numpy as np

    from swift.config.sections import DataSection
    from swift.data.pipeline import prepare_data

    cache = FOLDER / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    section = DataSection(train=(str(data),), cache=cache, workers=workers, max_length=4096)
    prepare_data(section, tokenizer, encoding="chat", seed=0, say=lambda _: None)
    (folder,) = cache.iterdir()
    return np.memmap(folder / "ids.bin", np.int32, "r"), np.memmap(folder / "weights.bin", np.float32, "r")


def row_by_row(tokenizer: Any, data: Path) -> tuple[Any, Any]:
    """What swift did before: everything for one row, then for the next."""
    import numpy as np

    ids, weights = [], []
    with data.open("rb") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
            if not text.startswith(prompt):
                raise ValueError("not prefix-stable")
            end = len(text.removesuffix("\n"))
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
            starts, ends = offsets[:, 0], offsets[:, 1]
            if ((starts < len(prompt)) & (ends > len(prompt))).any():
                raise ValueError("a token runs across the start of the answer")
            mask = np.zeros(len(offsets), dtype=np.float32)
            mask[(starts < end) & (ends > len(prompt))] = 1.0
            mask[:1] = 0.0
            ids.append(np.array(encoded["input_ids"], dtype=np.int32))
            weights.append(mask)
    return np.concatenate(ids), np.concatenate(weights)


def with_datasets(tokenizer: Any, data: Path, workers: int = 1) -> tuple[Any, Any]:
    """Return a batched `datasets.map`, as its users write it, and its arrow file read once."""
    import datasets
    import numpy as np

    datasets.disable_progress_bars()

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        conversations = batch["messages"]
        texts = tokenizer.apply_chat_template(conversations, tokenize=False)
        prompts = tokenizer.apply_chat_template(
            [each[:-1] for each in conversations], tokenize=False, add_generation_prompt=True
        )
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        masks = []
        for text, prompt, offsets in zip(texts, prompts, encoded["offset_mapping"], strict=True):
            begin, end = len(prompt), len(text.removesuffix("\n"))
            mask = [1.0 if first < end and last > begin else 0.0 for first, last in offsets]
            mask[:1] = [0.0]
            masks.append(mask)
        return {"input_ids": encoded["input_ids"], "weights": masks}

    cache = FOLDER / "datasets"
    shutil.rmtree(cache, ignore_errors=True)
    rows = datasets.load_dataset("json", data_files=str(data), split="train", cache_dir=str(cache))
    processes = workers if workers > 1 else None
    made = rows.map(encode, batched=True, remove_columns=rows.column_names, num_proc=processes).with_format("arrow")
    table = made[:]
    return (
        np.concatenate([each.flatten().to_numpy() for each in table["input_ids"].chunks]).astype(np.int32),
        np.concatenate([each.flatten().to_numpy() for each in table["weights"].chunks]).astype(np.float32),
    )


def _digest(ids: Any, weights: Any) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    for array in (ids, weights):
        for start in range(0, len(array), 1 << 20):
            digest.update(array[start : start + (1 << 20)].tobytes())
    return digest.hexdigest()


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of its workers that have ended."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, workers = (usage.ru_utime + usage.ru_stime for usage in each)
    return own, workers


def _memory(workers: int) -> float:
    """Peak of this process, and of its largest worker as often as there are workers."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers > 1 else 0
    return (own + workers * largest) / 1024


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(json.dumps(one_way(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
