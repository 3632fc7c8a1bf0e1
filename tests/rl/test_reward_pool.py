"""Rewards that raise, hang, crash, eat memory or print without end: the round goes on, and says what happened."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift.contracts import RewardItem
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.failures import RewardFailed
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import select_rewards
from swift_rl.rewards.verdicts import MOST_OUTPUT, Verdict

HOSTILE = '''
"""A reward that does what its column `deed` says."""
import os, signal, subprocess, sys, time
from pathlib import Path


def deeds(completions, deed, **columns):
    assert sys.stdin.read() == ""
    return [do(one, text, columns) for one, text in zip(deed, completions)]


def do(deed, text, columns):
    if deed == "raise":
        raise ValueError("no such completion")
    if deed == "hang":
        print("before it hangs", flush=True)
        time.sleep(1000)
    if deed == "hang in C":
        import re
        re.match("(a|aa)+$", "a" * 60 + "b")
    if deed == "exit":
        os._exit(3)
    if deed == "leave":
        sys.exit("gone")
    if deed == "abort":
        os.abort()
    if deed == "memory":
        return float(len(bytearray(10 * 2**30)))
    if deed == "print":
        for _ in range(100):
            sys.stdout.write("x" * 2**20)
        return 1.0
    if deed == "child":
        child = subprocess.Popen(["sleep", "1000"])
        Path(columns["note"][0]).write_text(str(child.pid))
        time.sleep(1000)
    if deed == "count":
        with open(columns["note"][0], "a") as file:
            file.write("called\\n")
        return 0.5
    if deed == "once":
        if Path(columns["note"][0]).exists():
            return 0.25
        Path(columns["note"][0]).touch()
        os._exit(1)
    return {"none": None, "nan": float("nan"), "inf": float("inf"), "text": "1.0", "list": [1], "true": True}[deed]


def short(completions, **columns):
    return [1.0] * (len(completions) - 1)


def number(completions, **columns):
    return 1.0


def where(completions, **columns):
    print(os.getcwd())
    return [float(len(os.listdir()))]
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "hostile.py"
    path.write_text(HOSTILE)
    return path


@pytest.fixture(scope="module")
def pool(file: Path) -> Iterator[RewardPool]:
    options = RewardOptions(reward_timeout=300, reward_workers=2, reward_max_failed=1.0, reward_retries=0)
    with RewardPool(select_rewards([f"{file}:deeds"], options), options) as made:
        yield made


@pytest.fixture
def impatient(file: Path) -> Iterator[RewardPool]:
    options = RewardOptions(reward_timeout=3, reward_workers=3, reward_max_failed=1.0, reward_retries=0)
    with RewardPool(select_rewards([f"{file}:deeds"], options), options) as made:
        yield made


def item(deed: str, note: Path | str = "", completion: str = "a completion") -> RewardItem:
    return RewardItem([{"role": "user", "content": "?"}], completion, columns={"deed": deed, "note": str(note)})


def scored(pool: RewardPool, *items: RewardItem) -> list[Verdict]:
    return [verdicts["deeds"] for verdicts in pool.score(items)]


FAILURES = {
    "raise": "ValueError: no such completion",
    "exit": "ended itself with the exit code 3",
    "leave": "SystemExit: gone",
    "abort": "was ended by SIGABRT",
    "memory": "MemoryError",
    "nan": "returned nan, expected a finite number",
    "inf": "returned inf, expected a finite number",
    "text": "returned '1.0', expected a finite number",
    "list": "returned [1], expected a finite number",
}


def test_failed_reward_is_missing_and_others_stay(pool: RewardPool) -> None:
    """A completion whose reward fails has no value and the others keep theirs."""
    deeds = [*FAILURES, "none", "true", "print"]
    verdicts = dict(zip(deeds, scored(pool, *map(item, deeds)), strict=True))
    for deed, failure in FAILURES.items():
        assert verdicts[deed].value is None
        assert failure in str(verdicts[deed].failure), deed
    assert verdicts["none"] == Verdict(None, None, "", verdicts["none"].seconds)
    assert verdicts["true"].value == 1.0
    assert verdicts["print"].value == 1.0
    assert f"and {100 * 2**20 - MOST_OUTPUT} bytes more" in verdicts["print"].output
    assert len(verdicts["print"].output) < 2 * MOST_OUTPUT
    assert 'raise ValueError("no such completion")' in verdicts["raise"].output
    assert "swift_rl" not in verdicts["raise"].output


def test_reward_timeout_kills_child_processes(impatient: RewardPool, tmp_path: Path) -> None:
    """A call that takes too long is ended with what it started."""
    note = tmp_path / "pid"
    verdicts = scored(impatient, item("hang"), item("hang in C"), item("child", note), item("none"))
    assert [verdict.failure for verdict in verdicts] == ["took longer than 3 s"] * 3 + [None]
    assert "before it hangs" in verdicts[0].output
    with pytest.raises(ProcessLookupError):
        _wait_for_the_end(int(note.read_text()))


def _wait_for_the_end(pid: int) -> None:
    for _ in range(200):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.05)


def test_equal_completions_are_scored_once(pool: RewardPool, tmp_path: Path) -> None:
    note = tmp_path / "calls"
    alike = [item("count", note)] * 5
    verdicts = scored(pool, *alike, item("count", note, completion="another"))
    assert [verdict.value for verdict in verdicts] == [0.5] * 6
    assert note.read_text().count("called") == 2


def test_a_call_that_crashes_once_is_made_again(file: Path, tmp_path: Path) -> None:
    options = RewardOptions(reward_workers=1)
    with RewardPool(select_rewards([f"{file}:deeds"], options), options) as pool:
        (verdict,) = scored(pool, item("once", tmp_path / "mark"))
    assert (verdict.value, verdict.failure) == (0.25, None)


def test_bad_reward_return_fails_and_calls_have_own_folder(file: Path) -> None:
    """A function that returns no list or a short one fails and each runs in a folder of its own."""
    options = RewardOptions(reward_workers=1, reward_max_failed=1.0, reward_retries=0)
    names = ["short", "number", "where"]
    with RewardPool(select_rewards([f"{file}:{name}" for name in names], options), options) as pool:
        first, _ = pool.score([item("none"), item("none", completion="b")])
        home = Path(first["where"].output.strip())
        assert home.is_dir()
    assert first["short"].failure == "returned 0 values for 1 completions"
    assert first["number"].failure == "returned 1.0, expected a list of 1"
    assert first["where"].value == 0.0
    assert not home.exists()
    assert home.resolve() != Path.cwd().resolve()


def test_failed_reward_counts_zero_on_request(file: Path) -> None:
    options = RewardOptions(reward_on_error="zero", reward_workers=1, reward_retries=0)
    said: list[str] = []
    with RewardPool(select_rewards([f"{file}:deeds"], options), options, said.append) as pool:
        failed, fine = scored(pool, item("raise"), item("true"))
    assert (failed.value, failed.failure, fine.value) == (0.0, "ValueError: no such completion", 1.0)
    assert said == [
        "The reward 'deeds' failed for 1 of 2 completions, it counts as 0. Completion 1: ValueError: no such completion"
    ]


def test_too_many_failed_rewards_stop_run(file: Path, tmp_path: Path) -> None:
    """A run stops when too many rewards fail and says how to repeat one."""
    options = RewardOptions(reward_max_failed=0.2, reward_workers=1, reward_retries=0)
    rows = [RewardItem([], str(place), columns={"deed": "true"}) for place in range(8)]
    rows[3] = RewardItem([], "x", columns={"deed": "raise"}, source="rows.jsonl, row 4")
    with RewardPool(select_rewards([f"{file}:deeds"], options), options, folder=tmp_path) as pool:
        assert pool.score(rows)[3]["deeds"].failure  # one always may
        rows[5] = RewardItem([], "y", columns={"deed": "raise"})
        with pytest.raises(RewardFailed) as stop:
            pool.score(rows)
    assert "The reward 'deeds' failed for 2 of 8 completions; 1 may fail" in stop.value.message
    assert "rows.jsonl, row 4: ValueError: no such completion" in stop.value.message
    assert 'raise ValueError("no such completion")' in stop.value.message
    words = shlex.split(str(stop.value.hint).removeprefix("Repeat it: "))
    assert words[:3] == ["swift", "rewards", "test"]
    assert words[4:] == ["--reward_funcs", f"{file}:deeds", "--row", "1"]
    assert json.loads(Path(words[3]).read_text().splitlines()[0])["completion"] == "x"


def test_a_run_that_is_to_stop_at_a_failure_stops_at_the_first(file: Path) -> None:
    options = RewardOptions(reward_on_error="stop", reward_workers=1, reward_retries=0)
    with RewardPool(select_rewards([f"{file}:deeds"], options), options) as pool, pytest.raises(RewardFailed):
        pool.score([item("true"), item("raise")])


def test_a_call_that_was_interrupted_leaves_no_process_at_work(file: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    options = RewardOptions(reward_workers=2, reward_retries=0)
    pool = RewardPool(select_rewards([f"{file}:deeds"], options), options, heartbeat=stop)
    with pytest.raises(KeyboardInterrupt):
        pool.score([item("hang"), item("true")])
    assert [worker.task for worker in pool._workers.alive] == [None]
    pool.close()


def test_the_processes_import_neither_torch_nor_numpy(file: Path, tmp_path: Path) -> None:
    light = tmp_path / "light.py"
    light.write_text(
        "import sys\ndef heavy(completions):\n    return [float('torch' in sys.modules or 'numpy' in sys.modules)]\n"
    )
    options = RewardOptions(reward_workers=1)
    with RewardPool(select_rewards([f"{light}:heavy"], options), options) as pool:
        assert pool.score([item("")])[0]["heavy"].value == 0.0
