"""Ten million short rows, from a file to the first steps of a run: memory, and the data that a start reads.

Independent jobs tokenize the rows (`swift data build --shard i/10`), which are joined and trained on for two steps,
twice. Memory is compared with that for a million rows. All results are stored in build/benchmarks/scale, so an
interrupted benchmark continues; remove the folder to start over.

A separate process counts what a start reads of the tokens: the files that Python opens, and the touched pages of mapped
files, as listed by the kernel.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import RUNS, SWIFT, TRAINING, UNSAVED, call, environment, kept
from benchmarks.facts import Figure, memory_mib, read_lines
from benchmarks.inputs import CHATS, MODEL, WORK, ensure

FOLDER = WORK / "scale"
FEW, MANY = 1_000_000, 10_000_000
SHARDS = 10
WORDS = 3
"""Of a question, and of its response."""
BATCHES = 10
ROWS = 16


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    few, many = (4_000, 40_000) if quick else (FEW, MANY)
    built = {count: _built(count) for count in (few, many)}

    def most(count: int, kind: str, what: str = "memory_mib") -> float:
        return max(each[what] for each in built[count][kind])

    jobs, start = built[many]["jobs"], built[many]["reads"][-1]
    figures = [
        Figure(f"memory of a job, {many:,} rows over {few:,}", most(many, "jobs") / most(few, "jobs"), at_most=1.1),
        Figure("the same of joining", most(many, "joined") / most(few, "joined"), at_most=1.1),
        Figure("the same of training's first two steps", most(many, "runs") / most(few, "runs"), at_most=1.1),
        Figure("memory of a job", most(many, "jobs"), unit="MiB"),
        Figure("tokens, and rows, that a second start reads before its first batch", start["before"]["of_shards"],
               unit="bytes", at_most=0),
        Figure("files that it opens before its first batch", start["before"]["files"], unit=""),
        Figure("what it reads of them", start["before"]["bytes"] / 1024, unit="KiB"),
        Figure(f"what it has read after {BATCHES} batches of {ROWS}", start["after"]["bytes"] / 1024, unit="KiB"),
        Figure("memory of its own that the order and the open data take", start["own_mib"], unit="MiB"),
        Figure("CPU seconds of the second start, two steps included", built[many]["runs"][1]["cpu"], unit="s"),
        Figure(f"the same with {few:,} rows", built[few]["runs"][1]["cpu"], unit="s"),
        Figure("rows per second of one core's time, by jobs", many / sum(each["cpu"] for each in jobs), unit=""),
    ]  # fmt: skip
    return figures, {"rows": [few, many], "built": built}


def data_of(rows: int) -> Path:
    """Return a file of so many short chats, no two of them alike."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"rows-{rows}.jsonl"
    if not path.exists():
        temporary = path.with_suffix(".part")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(_lines(rows))
        temporary.rename(path)
    return path


def _lines(rows: int) -> Iterator[str]:
    chats = [line["messages"] for line in read_lines(CHATS)]
    questions, responses = ([" ".join(chat[at]["content"].split()[:WORDS]) for chat in chats] for at in (0, 1))
    source = random.Random(0)
    for number in range(rows):
        question, response = questions[number % len(questions)], responses[int(source.random() * len(responses))]
        yield (
            f'{{"messages": [{{"role": "user", "content": "{question} {number}"}}, '
            f'{{"role": "assistant", "content": "{response}"}}]}}\n'
        )


def job(rows: int, number: int) -> dict[str, Any]:
    argv = ["data", "build", "sft", "--model", str(MODEL), "--dataset", str(data_of(rows)), "--max_length", "512"]
    argv += ["--data.workers", "1", "--out", str(_tokens(rows)), "--shard", f"{number}/{SHARDS}"]
    return dict(kept(FOLDER / f"job-{rows}-{number}.json", lambda: _taken([SWIFT, *argv], f"job-{rows}-{number}")))


def _built(rows: int) -> dict[str, Any]:
    """Build and join so many rows, start on them twice, and return what each took."""
    jobs = [job(rows, number) for number in range(1, SHARDS + 1)]
    return {"jobs": jobs, **kept(FOLDER / f"starts-{rows}.json", lambda: _starts(rows))}


def _starts(rows: int) -> dict[str, Any]:
    """Join the shards of so many rows, start on them twice, and return what each took."""
    tokens = _tokens(rows)
    joined = [_taken([SWIFT, "data", "join", str(tokens)], f"starts-{rows}")]
    train = [SWIFT, "sft", "--model", str(MODEL), "--dataset", str(tokens), "--max_length", "512", *TRAINING]
    train += ["--max_steps", "2", "--per_device_train_batch_size", str(ROWS), "--output_dir", str(RUNS)]
    train += [*UNSAVED, "--report_to", "none"]
    runs = [_taken(train, f"starts-{rows}") for _ in range(2)]
    reads = [_reported([sys.executable, "-m", "benchmarks.scale", str(tokens)]) for _ in range(2)]
    return {"joined": joined, "runs": runs, "reads": reads}


def _tokens(rows: int) -> Path:
    return FOLDER / f"tokens-{rows}"


def _taken(command: Sequence[str], name: str) -> dict[str, float]:
    """Run a command, and return its CPU seconds and its peak of memory, as the kernel reports them when it ends."""
    log = FOLDER / f"{name}.txt"
    with log.open("w") as out:
        child = os.posix_spawn(
            command[0],
            list(command),
            environment(OMP_NUM_THREADS="1"),
            file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)],
        )
        _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-4000:]}")
    return {"cpu": usage.ru_utime + usage.ru_stime, "memory_mib": usage.ru_maxrss / 1024}


def _reported(command: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(command, environment(OMP_NUM_THREADS="1")).splitlines()[-1])
    return found


class Reads:
    """What this process has read of a folder: files opened by Python, and pages of those that are mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._opened: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            path = os.fspath(arguments[0])
            if isinstance(path, str) and path.startswith(self._folder):
                self._opened.add(path)

    def so_far(self) -> dict[str, int]:
        """Return how many files were opened, how many bytes were read, and how many of those below a shard."""
        touched = self._touched()
        read = {path: touched.get(path, 0) if path in touched else Path(path).stat().st_size for path in self._opened}
        of_shards = sum(size for path, size in read.items() if "/shard-" in path)
        return {"files": len(read), "bytes": sum(read.values()), "of_shards": of_shards}

    def _touched(self) -> dict[str, int]:
        """Return the bytes that are in memory of each mapped file; the kernel maps some pages around a touched one."""
        found: dict[str, int] = {}
        path = ""
        for line in Path("/proc/self/smaps").read_text().splitlines():
            first, *rest = line.split(maxsplit=5)
            if "-" in first and len(rest) >= 4:
                path = rest[4] if len(rest) == 5 else ""
            elif first == "Rss:" and path.startswith(self._folder):
                found[path] = found.get(path, 0) + int(rest[0]) * 1024
        return found


def read(tokens: Path) -> dict[str, Any]:
    """Open tokenised data as a run does, plan two epochs, and take the first batches."""
    from transformers import AutoTokenizer

    from swift.data.batch import Batch
    from swift.data.pipeline import prepare_data
    from swift.data.schedules import BatchLayout, EpochSchedule
    from swift.parsing import parse

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    parsed = parse(["--model", str(MODEL), "--dataset", str(tokens), "--max_length", "512"], "sft")
    reads, own = Reads(tokens), memory_mib("RssAnon")
    prepared = prepare_data(parsed.config.data, tokenizer, encoding="chat", seed=0, say=lambda _: None).train
    assert prepared is not None
    layout = BatchLayout(global_rows=ROWS, micro_rows=ROWS, seed=1, epochs=2.0)
    plan = EpochSchedule(prepared.samples, parsed.objective, layout)
    before = reads.so_far()
    batches: list[Batch] = [plan.batch(step, 0, 1) for step in range(BATCHES)]
    assert len(batches) == BATCHES
    return {
        "before": before,
        "after": reads.so_far(),
        "own_mib": memory_mib("RssAnon") - own,
        "steps": plan.total_steps,
    }


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print(json.dumps(read(Path(sys.argv[1]))))
