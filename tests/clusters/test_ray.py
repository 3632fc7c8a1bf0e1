"""A cluster of Ray on this machine: a run as its job, and Ray Train with two workers, one of which is killed."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import import_rules
import psutil
import pytest
from commands import Run

EXAMPLES = import_rules.ROOT / "examples"
PATIENCE = 600


@pytest.fixture
def cluster(ports: list[int], start: Callable[..., Run]) -> Iterator[str]:
    """Address of a cluster's jobs: one machine with two processors."""
    head, jobs, client, agent, agent_jobs, exported, low, _ = ports
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # names of its sockets may not be long
    words = ["start", "--head", "--block", "--disable-usage-stats", "--num-cpus", "2", "--temp-dir", str(folder)]
    words += ["--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1", "--object-store-memory", str(80 << 20)]
    words += ["--port", str(head), "--dashboard-port", str(jobs), "--ray-client-server-port", str(client)]
    words += ["--dashboard-agent-grpc-port", str(agent), "--dashboard-agent-listen-port", str(agent_jobs)]
    words += ["--metrics-export-port", str(exported), "--runtime-env-agent-port", str(low)]
    patient = {"RAY_raylet_start_wait_time_s": "300", "RAY_gcs_server_request_timeout_seconds": "300"}
    ray = start("ray", *words, OMP_NUM_THREADS="1", **patient)
    ray.until("Ray runtime started")
    address = f"http://127.0.0.1:{jobs}"
    try:
        _wait_for_jobs(address, ray)
        yield address
    finally:
        ray.process.send_signal(signal.SIGTERM)  # `ray stop` would end all clusters of this machine
        ray.code(120)
        assert ray.leaves_nothing()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_jobs(address: str, ray: Run) -> None:
    import urllib.error
    import urllib.request

    end = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/jobs/", timeout=10).read()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < end, ray.output
            time.sleep(0.2)


@pytest.fixture
def job(tiny: Path, tmp_path: Path) -> list[str]:
    """Flags of a run of the tiny model, whose paths mean the same in any folder."""
    data = tiny.parent / "data.jsonl"
    flags = ["--model", str(tiny), "--dataset", str(data), "--train_type", "full", "--logging_steps", "1"]
    return [*flags, "--per_device_train_batch_size", "2", "--global_batch_size", "4"]


def test_ray_job_resumes_when_submitted_again(
    cluster: str, job: list[str], tmp_path: Path, start: Callable[..., Run]
) -> None:
    """A run is a job of the cluster and goes on when it is submitted again."""
    variables = {"RAY_ADDRESS": cluster, "OUTPUT": str(tmp_path / "output"), "FOLDER": str(EXAMPLES), "NAME": "mine"}
    for steps in ("2", "4"):
        submitted = start("bash", str(EXAMPLES / "ray_job.sh"), *job, "--max_steps", steps, **variables)
        assert submitted.code(PATIENCE) == 0, submitted.output
        assert "succeeded" in submitted.output
    assert "at step 2 of 4" in submitted.output
    lines = [json.loads(each) for each in (tmp_path / "output/tiny/mine/logging.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]


def test_killed_ray_train_worker_is_restarted(
    cluster: str, job: list[str], tmp_path: Path, start: Callable[..., Run]
) -> None:
    """A worker of Ray Train that is killed is started anew and the run completes."""
    output = tmp_path / "output"
    words = [*job, "--max_steps", "60", "--save_steps", "5", "--output_dir", str(output), "--logging.run_name", "mine"]
    words = ["job", "submit", "--address", cluster, "--working-dir", str(EXAMPLES), "--", "python", "ray_train.py",
             "--workers", "2", "sft", *words]  # fmt: skip
    submitted = start("ray", *words)
    workers = _workers_past(output, submitted, step=10)
    workers[1].kill()
    assert submitted.code(PATIENCE) == 0, submitted.output
    assert "succeeded" in submitted.output
    run = output / "tiny/mine"
    lines = [json.loads(each) for each in (run / "logging.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert sorted(set(steps)) == list(range(1, 61))
    assert lines[-1]["status"] == "completed"
    assert "Resuming from" in submitted.output


def _workers_past(output: Path, submitted: Run, *, step: int) -> dict[int, psutil.Process]:
    """Return the processes that train, by rank, once a step's checkpoint is there."""
    end = time.monotonic() + PATIENCE
    while not (output / f"tiny/mine/checkpoint-{step}/manifest.json").exists():
        assert submitted.process.poll() is None, submitted.output
        assert time.monotonic() < end, submitted.output
        time.sleep(0.05)
    found = {}
    for each in submitted_workers(output):
        found[int(each.environ()["RANK"])] = each
    return found


def submitted_workers(output: Path) -> Iterator[psutil.Process]:
    """Yield processes of swift that write into a folder."""
    for each in psutil.process_iter():
        try:
            if str(output) in each.cmdline() and each.cmdline()[1:4] == ["-m", "swift", "sft"]:
                yield each
        except psutil.Error:
            continue


WRITE = """
import json, sys
import ray
rows = [json.loads(line) for line in open(sys.argv[1])]
ray.data.from_items(rows).repartition(3).write_parquet(sys.argv[2])
"""


def test_ray_data_rows_are_tokenized_by_jobs_and_trained(
    cluster: str, tiny: Path, tmp_path: Path, start: Callable[..., Run]
) -> None:
    """Rows that Ray Data wrote are tokenized by jobs and learned from."""
    (tmp_path / "write.py").write_text(WRITE)
    rows, tokens = tmp_path / "rows", tmp_path / "tokens"
    submit = ["job", "submit", "--address", cluster]
    written = start(
        "ray", *submit, "--", "python", str(tmp_path / "write.py"), str(tiny.parent / "data.jsonl"), str(rows)
    )
    assert written.code(PATIENCE) == 0, written.output
    assert len(list(rows.glob("*.parquet"))) == 3
    build = ["swift", "data", "build", "sft", "--model", str(tiny), "--dataset", str(rows), "--out", str(tokens)]
    for shard in ("1/2", "2/2"):
        begun = start("ray", *submit, "--no-wait", "--", *build, "--shard", shard)
        assert begun.code(PATIENCE) == 0, begun.output
    end = time.monotonic() + PATIENCE
    while len(list(tokens.glob("[!.]*"))) < 2:  # a shard appears when it is whole
        assert time.monotonic() < end, start("ray", "job", "list", "--address", cluster).output
        time.sleep(0.5)
    joined = start("swift", "data", "join", str(tokens))
    assert joined.code(PATIENCE) == 0, joined.output
    found = []
    for data, name in ((tokens, "tokens"), (rows, "rows")):
        words = ["--model", str(tiny), "--dataset", str(data), "--train_type", "full", "--max_steps", "2"]
        words += ["--logging_steps", "1", "--run_name", name, "--output_dir", str(tmp_path / "out")]
        run = start("swift", "sft", *words, "--per_device_train_batch_size", "4")
        assert run.code(PATIENCE) == 0, run.output
        lines = (tmp_path / "out/tiny" / name / "logging.jsonl").read_text().splitlines()
        found.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
    assert len(found[0]) == 2
    assert found[0] == found[1]
