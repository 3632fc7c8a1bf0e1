"""A run in experiment trackers, as each tracker's own reader finds it; and what is said where one is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift.cli.main import run
from swift_testing.subjects import conversations, write_jsonl, write_model

TRACKERS = ("wandb", "swanlab", "mlflow", "trackio", "aim")
PYTHON = Path(sys.prefix) / "trackers" / "bin" / "python"
"""Of an environment that has all of this one, and the trackers."""

TRAIN = """
import sys
from swift.cli.main import run
first = [*sys.argv[1:], "--run_name", "tracked", "--wandb_project", "letters"]
code = run([*first, "--max_steps", "6", "--save_steps", "2"])
sys.exit(code or run([*first, "--max_steps", "6", "--resume", "output/model/tracked/checkpoint-2"]))
"""

READ = """
import glob, json, logging, sqlite3, struct, sys
from pathlib import Path
logging.disable(logging.WARNING)
found = {}

import mlflow
client = mlflow.MlflowClient()
[experiment] = [each for each in client.search_experiments() if each.name == "letters"]
[one] = client.search_runs([experiment.experiment_id])
history = client.get_metric_history(one.info.run_id, "train/loss")
found["mlflow"] = {str(each.step): each.value for each in history}
found["mlflow about"] = [one.info.run_name, one.info.status, one.data.params["optim.lr"]]

import aim
[hash] = [Path(each).name for each in glob.glob(".aim/meta/chunks/*")]
one = aim.Run(hash, system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
found["aim"] = {}
for metric in one.metrics():
    if metric.name == "loss" and metric.context.to_dict() == {"subset": "train"}:
        steps, (values, *_) = metric.data.items_list()
        found["aim"] = dict(zip(map(str, steps), values))
found["aim about"] = [one.name, one.experiment, one["config"]["optim"]["lr"]]

import trackio
[one] = trackio.Api().runs("letters")
found["trackio"] = {}
found["trackio about"] = [one.name]
[file] = glob.glob(sys.argv[1] + "/trackio/**/letters.db", recursive=True)
for step, metrics in sqlite3.connect(file).execute("select step, metrics from metrics"):
    found["trackio"][str(step)] = json.loads(metrics).get("train/loss")

from wandb.proto import wandb_internal_pb2

def records(path):
    # LevelDB's log format, after a header of seven bytes.
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""

found["wandb"], ids = {}, set()
for path in sorted(Path("output/model/tracked/wandb").glob("offline-run-*/*.wandb")):
    for record in records(path):
        if record.HasField("run"):
            ids.add((record.run.run_id, record.run.project, record.run.display_name))
        items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        if "train/loss" in items:
            found["wandb"][items["_step"]] = json.loads(items["train/loss"])
found["wandb about"] = sorted(map(list, ids))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tracked")
    write_model(where / "model")
    write_jsonl(where / "data.jsonl", conversations(8))
    return where


@pytest.mark.full
def test_resumed_session_continues_tracker_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and its resumed session are one run in every tracker."""
    environment = {
        "WANDB_MODE": "offline",
        "SWANLAB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),  # its data base takes half a minute to create
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flags = ["sft", "--model", "model", "--dataset", "data.jsonl", "--logging_steps", "1", "--report_to", *TRACKERS]
    _python(folder, TRAIN, *flags)
    lines = [json.loads(line) for line in (folder / "output/model/tracked/logging.jsonl").read_text().splitlines()]
    losses = {str(line["step"]): line["loss"] for line in lines if "step" in line}
    assert list(losses) == ["1", "2", "3", "4", "5", "6"]

    found = json.loads(_python(folder, READ, str(folder)).splitlines()[-1])
    for tracker in ("wandb", "mlflow", "trackio", "aim"):
        assert found[tracker] == pytest.approx(losses, rel=1e-12), tracker
    assert found["mlflow about"] == ["tracked", "FINISHED", "0.0001"]
    assert found["aim about"] == ["tracked", "letters", 0.0001]
    assert found["trackio about"] == ["tracked"]
    ids = json.loads((folder / "output/model/tracked/trackers.json").read_text())
    assert found["wandb about"] == [[ids["wandb"], "letters", "tracked"]]
    # SwanLab's own reader sends its files to a server: what stands in them has to do.
    kept = b"".join(
        file.read_bytes() for file in (folder / "output/model/tracked/swanlog").rglob("*") if file.is_file()
    )
    assert b"train/loss" in kept
    assert b"letters" in kept


def _python(folder: Path, code: str, *arguments: Any) -> str:
    done = subprocess.run(
        [str(PYTHON), "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("tracker", TRACKERS)
def test_missing_tracker_is_refused_before_weights_load(
    tracker: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tracker that is not installed is refused before weights load."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert run(["sft", "--model", "model", "--dataset", "data.jsonl", "--report_to", tracker]) == 2
    printed = capsys.readouterr()
    assert f'core[{tracker}]"' in printed.err
    assert sorted(folder.rglob("*")) == before
