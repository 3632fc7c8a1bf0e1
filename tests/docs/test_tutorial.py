"""The tutorials run as written, each in a new folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from commands import SWIFT, Run, started
from pages import DOCS, Command, blocks, commands, missing
from reader import Reader

from swift_testing.crew import free_port

FIRST_MODEL = DOCS / "tutorial" / "first-model.md"
TO_PIPELINE = DOCS / "tutorial" / "prototype-to-pipeline.md"
SERVE = DOCS / "tutorial" / "train-export-serve-ask.md"
RETRIEVAL = DOCS / "tutorial" / "retrieval.md"
REWARDS = DOCS / "tutorial" / "learn-from-rewards.md"
IMAGES = DOCS / "tutorial" / "read-images.md"
SERVING = {
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # The engine runs without a worker, which would import vLLM again.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def follow(page: Path, folder: Path, serve: Callable[[Command], None] | None = None) -> list[list[str]]:
    """Write every file and run every command; return the first two words of each. `serve` starts servers."""
    folder.mkdir()
    reader = Reader(folder)
    followed = []
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        for command in commands(block) if block.language == "console" else ():
            if serve is not None and command.words()[:2] == ["swift", "serve"]:
                serve(command)
                continue
            done = reader.types(command)
            assert done.code == 0, f"{command.line}\n{done.printed}\n{done.complained}"
            assert missing(command.shown, done.printed) == [], f"{command.line}\n{done.printed}\n{done.complained}"
            followed.append(command.words()[:2])
    return followed


@pytest.mark.full
def test_tutorial_commands_work(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    followed = follow(FIRST_MODEL, folder)
    assert ["swift", "eval"] in followed
    assert ["swift", "chat"] in followed

    first, again = (_last_loss(folder / "output" / "tiny" / run) for run in ("first", "again"))
    assert again == pytest.approx(first, rel=1e-6)
    assert first < 0.2
    verified = json.loads((folder / "alphabet-model" / "verification.json").read_text())
    assert verified["verified"] is True


@pytest.mark.full
def test_zero3_prototype_continues_on_megatron(tmp_path: Path) -> None:
    followed = follow(TO_PIPELINE, tmp_path / "work")
    assert followed.count(["swift", "sft"]) == 2
    assert ["python", "compare.py"] in followed
    verified = json.loads((tmp_path / "work" / "model" / "verification.json").read_text())
    assert verified["verified"] is True


@pytest.mark.full
def test_a_reward_of_ones_own_is_learned(tmp_path: Path) -> None:
    follow(REWARDS, tmp_path / "work")
    log = (tmp_path / "work" / "output" / "tiny" / "first" / "logging.jsonl").read_text()
    found = [line["eval_reward"] for line in map(json.loads, log.splitlines()) if "eval_reward" in line]
    assert found[0] < 0.2
    assert found[-1] > 1.5
    lines = map(json.loads, (tmp_path / "work" / "completions.jsonl").read_text().splitlines())
    assert all(line["messages"][-1]["content"].isdigit() for line in lines)


@pytest.mark.full
def test_image_tutorial_model_learns(tmp_path: Path) -> None:
    follow(IMAGES, tmp_path / "work")
    for name, least, most in (("completions", 0.95, 1.0), ("blind", 0.0, 0.05)):
        lines = map(json.loads, (tmp_path / "work" / f"{name}.jsonl").read_text().splitlines())
        rights = [line["right"] for line in lines]
        assert least <= sum(rights) / len(rights) <= most


@pytest.mark.full
@pytest.mark.vllm
def test_trained_model_is_served_and_queried(tmp_path: Path) -> None:
    """The server of the second terminal runs during the commands after it, and ends with Ctrl-C."""
    page = on_free_ports(SERVE, tmp_path, "8000")
    with serving_readers(tmp_path / "work") as (serve, servers):
        followed = follow(page, tmp_path / "work", serve=serve)
        assert followed[-3:] == [["curl", "-s"], ["python", "ask.py"], ["swift", "eval"]]
        (server,) = servers
        processes = psutil.Process(server.process.pid).children(recursive=True)
        server.ctrl_c()
        assert server.code() == 0
        assert not any(map(psutil.Process.is_running, processes))


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_documents_are_found_and_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = on_free_ports(RETRIEVAL, tmp_path, "8000", "8001")
    folder = tmp_path / "work"
    with serving_readers(folder) as (serve, servers):
        followed = follow(page, folder, serve=serve)
        assert followed[-1] == ["python", "search.py"]
        assert len(servers) == 2
    for run, metric, before, after in (("search", "recall_at_1", 0.05, 0.3), ("rank", "mrr", 0.5, 0.9)):
        log = (folder / "output" / "tiny" / run / "logging.jsonl").read_text().splitlines()
        found = [line[f"eval_{metric}"] for line in map(json.loads, log) if f"eval_{metric}" in line]
        assert found[0] < before
        assert found[-1] > after


def on_free_ports(page: Path, folder: Path, *ports: str) -> Path:
    """Return a copy of a page with free ports."""
    text = page.read_text(encoding="utf-8")
    for port in ports:
        text = text.replace(port, str(free_port()))
    copy = folder / page.name
    copy.write_text(text, encoding="utf-8")
    return copy


@contextmanager
def serving_readers(folder: Path) -> Iterator[tuple[Callable[[Command], None], list[Run]]]:
    """Yield a function that starts servers, and the started ones, which are stopped at the end."""
    servers: list[Run] = []
    with ExitStack() as running:

        def serve(command: Command) -> None:
            server = running.enter_context(started([*SWIFT, *command.words()[1:]], folder, SERVING))
            server.until(r"Ctrl-C stops it\.\n")
            assert missing(command.shown, server.output) == [], server.output
            servers.append(server)

        yield serve, servers


def _last_loss(run: Path) -> float:
    records = [json.loads(line) for line in (run / "logging.jsonl").read_text().splitlines()]
    return next(float(record["loss"]) for record in records if record.get("step") == 200)
