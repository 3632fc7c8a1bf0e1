"""What the views of a run show, compared with its files."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_folders import add_lines, line_of, summary_of, write_run
from starlette.testclient import TestClient

from swift_ui.looking import view
from swift_ui.looking.events import RunEvents
from swift_ui.looking.lines import MOST_POINTS, RunLines
from swift_ui.looking.state import StateReader
from swift_ui.options import UiSettings


@pytest.fixture
def root(settings: UiSettings) -> Path:
    return settings.roots[0]


def key_of(page: TestClient, name: str = "v0") -> str:
    (found,) = (row["key"] for row in page.get("/api/runs").json()["runs"] if row["name"] == name)
    return str(found)


def test_downsampled_run_keeps_peaks(page: TestClient, root: Path) -> None:
    rng = random.Random(1)
    peaks = {rng.randrange(2, 20_000): 40.0 + number for number in range(20)}
    dips = {rng.randrange(2, 20_000): -40.0 - number for number in range(20)}
    losses = {step: 2.0 + rng.random() for step in range(1, 20_001)} | peaks | dips
    write_run(root / "m" / "v0", [line_of(step, 20_000, loss=loss) for step, loss in losses.items()])
    content = page.get(f"/api/runs/{key_of(page)}/series").json()
    steps, values = content["series"]["loss"]
    assert len(steps) == len(values) <= MOST_POINTS < 2000
    sent = dict(zip(steps, values, strict=True))
    assert (steps[0], steps[-1]) == (1, 20_000)
    assert steps == sorted(set(steps))
    # Peaks that share a stretch of a few steps hide each other: of those only the highest stays.
    assert {step for step in peaks if step in sent} >= {step for step in peaks if _is_alone(step, peaks)}
    assert {step for step in dips if step in sent} >= {step for step in dips if _is_alone(step, dips)}
    assert all(sent[step] == pytest.approx(losses[step], rel=1e-6) for step in steps)


def _is_alone(step: int, others: dict[int, float]) -> bool:
    return all(other == step or abs(other - step) > 20_000 // (MOST_POINTS // 2) + 1 for other in others)


def test_a_long_run_is_shown_at_a_glance_first(page: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swift_ui.looking import lines as of_lines

    folder = write_run(root / "m" / "v0", [line_of(step, 9000, loss=1 / step) for step in range(1, 9001)])
    address = f"/api/runs/{key_of(page)}/series"
    assert page.get(f"{address}?glance").json()["whole"], "it is read as soon"
    monkeypatch.setattr(of_lines, "LONG", (folder / "logging.jsonl").stat().st_size - 1)
    again = write_run(root / "m" / "v1", [line_of(step, 9000, loss=1 / step) for step in range(1, 9001)])
    address = f"/api/runs/{key_of(page, 'v1')}/series"
    some = page.get(f"{address}?glance").json()
    steps, losses = some["series"]["loss"]
    assert not some["whole"]
    assert (steps[0], steps[-1], steps) == (1, 9000, sorted(set(steps)))
    assert max(after - before for before, after in itertools.pairwise(steps)) < 40
    assert losses == [pytest.approx(1 / step) for step in steps]
    whole = page.get(address).json()
    assert whole["whole"]
    assert len(whole["series"]["loss"][0]) > len(steps)
    assert page.get(f"{address}?glance").json()["whole"], "now all of it is known"
    (again / "logging.jsonl").write_text("no line\n" * 400_000)
    assert RunLines.at_a_glance(again) is not None, "a damaged file is no reason to fail"


def test_zoomed_range_has_all_points(page: TestClient, root: Path) -> None:
    write_run(root / "m" / "v0", [line_of(step, 5000) for step in range(1, 5001)])
    content = page.get(f"/api/runs/{key_of(page)}/series?first=1000&last=1400").json()
    assert content["series"]["loss"][0] == list(range(1000, 1401))


def test_every_logged_number_becomes_a_series(page: TestClient, root: Path) -> None:
    """Every number that is logged becomes a series and nothing else does."""
    odd = {"note": "text", "skipped": True, "loss": None, "huge": 10**400, "ranks": [{"rank": 0, "seconds": 1.5}]}
    write_run(root / "m" / "v0", [line_of(1, mfu=0.4), line_of(2, eval_loss=2.5), line_of(3, **odd)])
    content = page.get(f"/api/runs/{key_of(page)}/series").json()
    assert content["series"]["loss"] == [[1, 2], [2.99, 2.98]]
    assert content["series"]["mfu"] == [[1], [0.4]]
    assert content["series"]["eval_loss"] == [[2], [2.5]]
    assert not {"note", "skipped", "huge", "ranks"} & {name for name, points in content["series"].items() if points[0]}
    assert content["ranks"] == {"step": 3, "rows": [{"rank": 0, "seconds": 1.5}]}
    (loss,) = (chart for chart in content["charts"] if chart["metric"] == "loss")
    assert [each["name"] for each in loss["series"]] == ["loss", "eval_loss"]


def test_damaged_lines_cost_themselves_and_no_others(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "v0", [line_of(1)])
    with (folder / "logging.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "loss": 1.0\n\xff\xfe\n[1, 2]\n\n' + b"[" * 5000 + b"\n")
    add_lines(folder, [line_of(3)])
    lines = RunLines(folder)
    lines.update()
    assert lines.series()["loss"][0] == [1, 3]


def test_resumed_run_drops_repeated_steps(tmp_path: Path) -> None:
    """A resumed run is read anew without the steps that it makes again."""
    folder = write_run(tmp_path / "v0", [line_of(step, loss=9.0) for step in range(1, 9)])
    lines = RunLines(folder)
    lines.update()
    draft = folder / "draft"
    draft.write_text("".join(json.dumps(line_of(step, loss=1.0)) + "\n" for step in range(1, 6)))
    draft.replace(folder / "logging.jsonl")
    lines.update()
    assert lines.series()["loss"] == [[1, 2, 3, 4, 5], [1.0] * 5]


def heard(events: RunEvents, count: int, between: Any = None) -> list[tuple[str, str, Any]]:
    """The first events of a stream: name, id and data. `between` is called when the stream has begun."""

    async def take() -> list[tuple[str, str, Any]]:
        found = []
        stream: AsyncIterator[bytes] = aiter(events)
        async for text in stream:
            fields = dict(line.partition(": ")[::2] for line in text.decode().splitlines() if line)
            if "event" not in fields:
                continue
            found.append((fields["event"], fields["id"], json.loads(fields["data"])))
            if len(found) == 1 and between is not None:
                between()
            if len(found) == count:
                break
        return found

    return asyncio.run(asyncio.wait_for(take(), 30))


def test_listener_gets_each_new_line_once(tmp_path: Path) -> None:
    """A listener gets new lines, and one that reconnects gets each exactly once."""
    folder = write_run(tmp_path / "v0", [line_of(1), line_of(2)])
    known = RunLines(folder)
    known.update()
    states = StateReader()
    first = heard(
        RunEvents(folder, states, known.position), 2, between=lambda: add_lines(folder, [line_of(3), line_of(4)])
    )
    assert [name for name, _, _ in first] == ["state", "lines"]
    assert [line["step"] for line in first[1][2]["lines"]] == [3, 4]
    add_lines(folder, [line_of(5)])  # without a listener
    name, _, content = heard(RunEvents(folder, states, first[1][1]), 1)[0]
    assert (name, [line["step"] for line in content["lines"]]) == ("lines", [5])


def test_replaced_file_makes_listener_reread(tmp_path: Path) -> None:
    """A listener whose file was replaced is asked to read everything again."""
    folder = write_run(tmp_path / "v0", [line_of(1), line_of(2)])
    for position in ("1-1", "nonsense", "-5", f"{(folder / 'logging.jsonl').stat().st_ino}-{10**9}"):
        assert heard(RunEvents(folder, StateReader(), position), 1)[0][0] == "reset"


def test_watcher_is_notified_of_dead_run(tmp_path: Path) -> None:
    from swift.train.run_folder import lock_run_folder

    folder = write_run(tmp_path / "v0", [line_of(1)], process=None)
    lock = lock_run_folder(folder)
    events = heard(RunEvents(folder, StateReader(), None), 2, between=lock.release)
    assert [(name, content["name"]) for name, _, content in events] == [("state", "running"), ("state", "died")]


def test_only_differing_settings_are_compared(page: TestClient, root: Path) -> None:
    same = {"train.global_batch": 64, "data.train": ["a.jsonl"]}
    write_run(root / "m" / "v0", [line_of(1)], settings={**same, "optim.learning_rate": 1e-4, "logging.output": "a"})
    write_run(root / "m" / "v1", [line_of(1)], settings={**same, "optim.learning_rate": 3e-4, "tuner.rank": 8})
    keys = [key_of(page, name) for name in ("v0", "v1")]
    content = page.get("/api/compare", params={"run": keys}).json()
    assert content["differences"] == [
        {"key": "optim.learning_rate", "values": [1e-4, 3e-4]},
        {"key": "tuner.rank", "values": [None, 8]},
    ]
    assert [run["key"] for run in content["runs"]] == keys


def test_log_is_sent_from_end_and_continues(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(1)])
    log = "".join(f"line {number} \x1b[31mred\x1b[0m\n" for number in range(20_000))
    (folder / "log.txt").write_text(log + "10%\r50%\r100%\n")
    key = key_of(page)
    end = page.get(f"/api/runs/{key}/log").json()
    assert end["text"].endswith("line 19999 red\n100%\n")
    assert len(end["text"]) < 70_000
    assert end["text"].startswith("line ")
    with (folder / "log.txt").open("a") as file:
        file.write("more\nhal")
    more = page.get(f"/api/runs/{key}/log", params={"after": end["end"]}).json()
    assert more["text"] == "more\n"
    before = page.get(f"/api/runs/{key}/log", params={"before": end["start"]}).json()
    assert before["end"] == end["start"]


def test_run_page_shows_checkpoints_plan_and_config(page: TestClient, root: Path) -> None:
    """A run is shown with its checkpoints, plan, pages and configuration."""
    folder = write_run(
        root / "m" / "v0", [line_of(9), summary_of("completed", 9) | {"best_model_checkpoint": "/x/checkpoint-6"}]
    )
    for step in (6, 9):
        (folder / f"checkpoint-{step}").mkdir()
    (folder / "last-checkpoint").symlink_to("checkpoint-9")
    (folder / "plan.json").write_text('{"predicted": {"peak_bytes": 5}}')
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "round-000000.html").write_text("<script>1</script>")
    key = key_of(page)
    view = page.get(f"/api/runs/{key}").json()
    assert [(each["step"], each["best"], each.get("last")) for each in view["checkpoints"]] == [
        (6, True, None),
        (9, False, True),
    ]
    assert view["plan"] == {"predicted": {"peak_bytes": 5}}
    assert view["pages"] == ["rollouts/round-000000.html"]
    assert page.get(f"/api/runs/{key}/config").json()["keys"] == {"model.path": "org/tiny"}
    shown = page.get(f"/api/runs/{key}/pages/rollouts/round-000000.html")
    assert "sandbox" in shown.headers["content-security-policy"]
    assert "allow-same-origin" not in shown.headers["content-security-policy"]


def test_rounds_are_shown_prompt_by_prompt(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(1)])
    (folder / "rollouts").mkdir()
    prompts = [{"source": "p:1", "messages": [{"role": "user", "content": "2+2?"}]}, {"source": "p:2", "messages": []}]
    lines = [
        {"round": 0, "facts": {"reward": 0.5}, "dropped": {"1": "all the same"}, "prompts": prompts},
        *({"prompt": number % 2, "text": f"completion {number}", "reward": number / 4} for number in range(4)),
    ]
    (folder / "rollouts" / "round-000000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    key = key_of(page)
    assert page.get(f"/api/runs/{key}/rounds").json()["rounds"] == [{"number": 0, "page": None}]
    groups = page.get(f"/api/runs/{key}/rounds/0").json()["groups"]
    assert [[each["text"] for each in group["completions"]] for group in groups] == [
        ["completion 0", "completion 2"],
        ["completion 1", "completion 3"],
    ]
    assert groups[1]["dropped"] == "all the same"


_DOUBLED = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghij")
)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (f"{_DOUBLED}train: {{all: *j}}\n", {}),
        (f"train: {{seed: {'9' * 5000}}}\n", {}),
        ("train: {since: 2024-13-45}\n", {}),
        ("train: {since: 2024-01-02, lr: .nan, of: !!binary aGk=}\n",
         {"train.since": "2024-01-02", "train.lr": None, "train.of": "b'hi'"}),
        ("train: {7: [1, .inf]}\n", {"train.7": [1, None]}),
        ('train: {a: "\\ud800"}\n', {"train.a": "\\ud800"}),
    ],
    ids=["aliases of aliases", "5,000 digits", "an invalid date", "values", "names", "unpaired surrogate"],
)  # fmt: skip
def test_config_with_invalid_json_values_is_shown(text: str, keys: dict[str, Any], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    shown = view.configuration(folder)
    assert (shown["text"], shown["keys"]) == (text, keys)
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("args.json", "model.path", "a \ud800"),
        ("args.json", "plugins", float("nan")),
        ("args.json", "optim.learning_rate", float("inf")),
        ("plan.json", "measured", [float("nan")]),
        ("logging.jsonl", "status", ["completed"]),
        ("logging.jsonl", "step", 10**400),
    ],
)
def test_invalid_json_file_hides_no_other_run(page: TestClient, root: Path, file: str, key: str, value: object) -> None:
    """An invalid file of one run hides no other run."""
    write_run(root / "m" / "v0", [line_of(1)])
    folder = write_run(root / "m" / "v1", [line_of(1)])
    held = json.loads((folder / file).read_text(encoding="utf-8")) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**held, key: value}) + "\n", encoding="utf-8")
    assert key_of(page, "v0")
    responses = [page.get(f"/api/runs/{key_of(page, 'v1')}{part}") for part in ("", "/series")]
    assert [response.status_code for response in responses] == [200, 200]
