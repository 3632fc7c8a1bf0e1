"""Data, checkpoints and exports in object stores: other people's clients talk to other people's servers.

Those are moto's server for S3, an emulator of Google's storage, and for the Hub the part of it that `hub.py` is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import Run

COPY = """
import sys
import fsspec
store, _ = fsspec.core.url_to_fs(sys.argv[2])
if sys.argv[2].partition("://")[0] != "hf":
    store.makedirs("bucket", exist_ok=True)
store.put(sys.argv[1], sys.argv[2], recursive=True)
"""
FETCH = """
import sys
import fsspec
store, _ = fsspec.core.url_to_fs(sys.argv[2])
store.get(store._strip_protocol(sys.argv[2]) + "/", sys.argv[1], recursive=True)
"""


@dataclass(frozen=True)
class Store:
    """A kind of store: how its server is started, and what tells clients where that is."""

    protocol: str
    server: Sequence[str]
    ready: str
    variables: Mapping[str, str]
    root: str = "bucket"

    def words(self, port: int) -> list[str]:
        return [each.format(port=port) for each in self.server]

    def told(self, port: int) -> dict[str, str]:
        return {name: each.format(port=port) for name, each in self.variables.items()}


S3 = Store(
    "s3",
    ("-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"),
    "Running on",
    {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3_ENDPOINT_URL": "http://127.0.0.1:{port}",
    },
)
GOOGLE = Store(
    "gs",
    (
        "-m",
        "gcp_storage_emulator",
        "start",
        "--host=127.0.0.1",
        "--port={port}",
        "--in-memory",
        "--default-bucket=bucket",
    ),
    "All services started",
    {
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:{port}",
        "FSSPEC_GS_TOKEN": "anon",
        # It would ask by gRPC which kind of bucket there is, for a minute each time.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    },
)
HUB = Store(
    "hf",
    (str(Path(__file__).with_name("hub.py")), "{port}"),
    "Hub is ready",
    {"HF_ENDPOINT": "http://127.0.0.1:{port}", "HF_HUB_OFFLINE": "0"},
    root="datasets/me/mine",
)


class Bucket:
    """A bucket, and commands of swift that know where it is."""

    def __init__(self, store: Store, folder: Path, port: int, start: Callable[..., Run]) -> None:
        self.folder, self.url = folder, f"{store.protocol}://{store.root}"
        self._start, self._variables = start, store.told(port)
        self.server = start("python", *store.words(port), folder=folder / "server", **self._variables)
        self.server.until(store.ready)

    def python(self, code: str, *words: str) -> None:
        run = self._start("python", "-c", code, *words, folder=self.folder, **self._variables)
        assert run.code() == 0, run.output

    def swift(self, *words: str, code: int = 0) -> str:
        """Type a command, and return what it printed."""
        run = self._start("python", "-m", "swift", *words, folder=self.folder, **self._variables)
        assert run.code() == code, run.output
        return run.output

    def contents(self) -> dict[str, bytes]:
        """Return all that is in the bucket, as its client gets it."""
        place = self.folder / "fetched"
        shutil.rmtree(place, ignore_errors=True)
        self.python(FETCH, f"{place}/", self.url)
        return contents(place)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def losses(file: Path) -> dict[int, float]:
    lines = map(json.loads, file.read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture
def bucket(
    request: pytest.FixtureRequest, tiny: Path, tmp_path: Path, ports: list[int], start: Callable[..., Run]
) -> Bucket:
    """A bucket with the data; the model lies in the folder."""
    (tmp_path / "tiny").symlink_to(tiny)
    made = Bucket(getattr(request, "param", S3), tmp_path, ports[0], start)
    made.python(COPY, str(tiny.parent / "data.jsonl"), f"{made.url}/data/rows.jsonl")
    return made


def sft(*words: str) -> list[str]:
    flags = ["--model", "tiny", "--train_type", "full", "--logging_steps", "1", "--run_name", "mine"]
    even = ["--lr_scheduler_type", "constant", "--warmup_ratio", "0"]  # the same for a run that is planned to be longer
    return ["sft", *flags, *even, "--per_device_train_batch_size", "4", "--save_steps", "2", *words]


@pytest.mark.parametrize("bucket", [S3, GOOGLE, HUB], indirect=True, ids=lambda store: store.protocol)
def test_run_resumes_from_object_store_and_exports_to_it(bucket: Bucket) -> None:
    """A run whose machine is lost goes on from the store and is exported to it."""
    folder, url = bucket.folder, bucket.url
    copied = ["--checkpoint.copy_to", f"{url}/runs", "--resume_from_checkpoint", "auto"]
    data = ["--dataset", f"{url}/data/rows.jsonl"]
    bucket.swift(*sft("--max_steps", "6", "--output_dir", "whole", *data))
    said = bucket.swift(*sft("--max_steps", "4", *data, *copied))
    assert f"Copied the run to {url}/runs/tiny/mine" in said
    local = contents(folder / "output/tiny/mine/checkpoint-4")
    there = bucket.contents()
    assert {name: there[f"runs/tiny/mine/checkpoint-4/{name}"] for name in local} == local
    shutil.rmtree(folder / "output")
    assert "at step 4 of 6" in bucket.swift(*sft("--max_steps", "6", *data, *copied))
    one, other = (losses(folder / place / "tiny/mine/logging.jsonl") for place in ("whole", "output"))
    assert list(one) == list(range(1, 7))
    assert one == other
    shutil.rmtree(folder / "output")
    bucket.swift(*("export", f"{url}/runs/tiny/mine", "--to", "hf", "--out", "out", "--push", f"{url}/model"))
    exported, there = contents(folder / "out"), bucket.contents()
    assert {name: there[f"model/{name}"] for name in exported} == exported


def test_tokens_in_s3_are_those_that_a_run_makes_of_the_rows(bucket: Bucket) -> None:
    folder = bucket.folder
    bucket.swift("data", "build", "sft", "--model", "tiny", "--dataset", "s3://bucket/data/rows.jsonl", "--out", "made")
    bucket.python(COPY, "made", "s3://bucket/tokens")
    for data, output in (("s3://bucket/tokens", "one"), ("s3://bucket/data/rows.jsonl", "other")):
        bucket.swift(*sft("--max_steps", "2", "--dataset", data, "--output_dir", output))
    one, other = (losses(folder / place / "tiny/mine/logging.jsonl") for place in ("one", "other"))
    assert one == other


def test_run_completes_when_store_is_lost(bucket: Bucket, tiny: Path) -> None:
    """A run completes when its store is lost and says that copies are missing."""
    bucket.server.process.kill()
    data = ["--dataset", str(tiny.parent / "data.jsonl")]
    said = bucket.swift(*sft("--max_steps", "2", "--checkpoint.copy_to", "s3://bucket/runs", *data))
    assert "checkpoint-2 was not copied: 's3://bucket/runs/tiny/mine/checkpoint-2' cannot be written" in said
    assert "Could not copy all of the run to s3://bucket/runs/tiny/mine" in said
    assert (bucket.folder / "output/tiny/mine/checkpoint-2/manifest.json").is_file()
