"""Plans that are run for a few steps: which one is chosen, what lack of memory comes to, and what is kept of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from commands import typed
from tiny_runs import write_model

from swift.parsing import parse
from swift_plan import ledger, trials
from swift_plan.measuring import extrapolated
from swift_plan.timing import Speeds
from swift_plan.trials import ShortRun, cut
from swift_plan.watching import TRIAL, PeakMemory

PLAN = ["plan", "model", "--gpus", "1xCPU", "--max_length", "32", "--global_batch_size", "2", "--train_type", "full"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    write_model(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))


def _measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *outcomes: ShortRun, words: Sequence[str] = ()) -> dict:  # type: ignore[type-arg]  # of JSON
    left: Iterator[ShortRun] = iter(outcomes)
    monkeypatch.setattr(trials.ShortRuns, "run", lambda *_, **__: next(left))
    ended = typed([*PLAN, "--json", *words], folder)
    assert ended.code == 0, ended.output
    found: dict[str, object] = json.loads(ended.output)
    return found


def test_measured_plans_sort_by_speed_with_oom_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of those that ran is first and those that lacked memory last."""
    outcomes = (ShortRun(0.4, 1e9), ShortRun(failure="out of memory"), ShortRun(0.3, 2e9))
    found = _measured(folder, monkeypatch, *outcomes, words=["--measure", "3"])["measured"]
    assert [each.get("step_seconds") for each in found] == [0.3, 0.4, None]
    assert found[-1]["failure"] == "out of memory"
    assert {each["basis"] for each in found} == {"measured"}


def test_measurement_improves_later_plans(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _measured(folder, monkeypatch)["fits"][0]
    assert before["basis"]["seconds"] == "assumed"
    slow = 3 * before["seconds"]["step"]
    _measured(folder, monkeypatch, *[ShortRun(slow, 1e9)] * 3, words=["--measure", "3"])
    after = _measured(folder, monkeypatch)["fits"][0]
    assert after["basis"]["seconds"] == "measured"
    assert before["seconds"]["step"] < after["seconds"]["step"] < 1.2 * slow
    assert "time unknown" not in typed(PLAN, folder).output
    ledger.ledger_path().with_name("speeds.json").write_text("{broken")
    assert ledger.known_speeds("CPU") == (Speeds(), 0)


def _run(blocks: int) -> ShortRun:
    """Of a made-up model whose loss has most of few blocks, and whose update has most of many."""
    peaks = {"loading": 90e9 * blocks, "forward and backward": 8e9 + 1e9 * blocks, "update": 2e9 + 3e9 * blocks}
    return ShortRun(2.0 + blocks, 8e9 + 1e9 * blocks, cpu_seconds=4.0 + 2 * blocks, peaks=peaks)


def test_measured_blocks_scale_to_all_layers() -> None:
    """What has most of 10 layers is another phase than what has most of one or of two."""
    said = extrapolated({1: _run(1), 2: _run(2)}, 10)
    assert (said.seconds, said.cpu_seconds) == (12.0, 24.0)
    assert said.peak == said.peaks["update"] == 32e9
    assert extrapolated({1: _run(1)}, 1) == _run(1)
    lacked = ShortRun(failure="out of memory")
    assert extrapolated({1: _run(1), 3: lacked}, 10) == lacked


def test_each_phase_of_a_trial_has_a_peak_of_its_own() -> None:
    memory = PeakMemory("cpu")
    memory.ended()  # what came before may have had more than there is now
    before = memory.ended()
    held = bytearray(b"1") * (64 * 2**20)
    del held
    assert memory.ended() - before > 56 * 2**20
    assert memory.ended() - before < 40 * 2**20


def test_timed_out_trial_is_not_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that takes too long is ended and is no lack of memory."""
    heard: list[str] = []
    program = "import time; print('begun', flush=True); time.sleep(60)"
    monkeypatch.setattr(trials, "SECONDS", 2.0)
    code, said = trials.ended([sys.executable, "-c", program], {}, heard.append)
    assert (code, heard) == (1, ["begun\n"])
    assert trials.failure_of(said) == "Error: timed out after 2 seconds"


def test_trial_reports_usage_per_rank_and_skips_ledger(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial says what each process took and is no run of the ledger."""
    monkeypatch.setenv(TRIAL, "1")
    with trials.ShortRuns.begun("sft", str(folder / "model"), ["--train_type", "full"]) as begun:
        words, output = begun.argv(["--per_device_train_batch_size", "2"], rows=2, length=16, blocks=1)
        ended = typed(words, folder)
        assert ended.code == 0, ended.output
        seen = trials.watched_run(output)
    assert seen.seconds > 0
    assert seen.cpu_seconds > 0
    assert set(seen.peaks) == {"before", "loading", "forward and backward", "update"}
    assert seen.peak == max(seen.peaks["forward and backward"], seen.peaks["update"]) > 1e6
    assert list(ledger.entries("torch", "cpu")) == []


def test_truncated_model_keeps_last_blocks() -> None:
    """A cut model has the last blocks and nothing else changes."""
    config = {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "hidden_size": 8}
    assert cut(config, 2) == {"num_hidden_layers": 2, "layer_types": ["b", "c"], "hidden_size": 8}
    assert cut({"text_config": {"num_hidden_layers": 9}}, 1) == {"text_config": {"num_hidden_layers": 1}}


def test_plans_for_other_devices_are_not_measured(folder: Path) -> None:
    ended = typed(["plan", "model", "--gpus", "8xH100", "--measure", "2"], folder)
    assert ended.code == 2
    assert "cannot be measured on this machine" in ended.output


@pytest.mark.full
def test_a_trial_is_a_run_whose_step_and_peak_were_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Sequence[str]] = []

    def here(command: Sequence[str], _: object) -> tuple[int, str]:
        said.append(command)
        ended = typed(list(command[3:]), folder)
        return ended.code, ended.output

    monkeypatch.setattr(trials, "ended", here)
    ended = typed([*PLAN, "--backend", "torch", "--measure", "1"], folder)
    assert ended.code == 0, ended.output
    assert "Fastest measured plan. Run: swift sft" in ended.output
    assert parse(list(said[0][4:]), "sft").config.train.global_batch == 2
    assert ledger.known_speeds("CPU")[1] == 1


@pytest.mark.parametrize(
    ("code", "said", "failure"),
    [(-9, "", "out of memory"), (1, "torch.OutOfMemoryError: CUDA out of memory. Tried", "out of memory"),
     (2, "Reading\nError: no such flag\nTry --help", "Error: no such flag")],
)  # fmt: skip
def test_failed_trial_reports_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str, failure: str
) -> None:
    monkeypatch.setattr(trials, "ended", lambda *_: (code, said))
    with trials.ShortRuns.begun("sft", str(folder / "model"), ["--dataset", "x"]) as begun:
        assert begun.run([], rows=1, length=1).failure == failure
