"""Output and exit codes of `swift watch`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import typed
from run_folders import line_of, summary_of, write_run

from swift_ui.braille import curve
from swift_ui.screen import slowest

RANKS = [{"rank": rank, "host": "a", "seconds": 1.0, "own_seconds": 0.5 + 0.3 * (rank == 2)} for rank in range(4)]


def test_run_view_shows_folder_content(tmp_path: Path) -> None:
    lines = [line_of(step, mfu=0.41, communication_fraction=0.25) for step in (5, 10)]
    folder = write_run(tmp_path / "out" / "m" / "v0", [*lines, line_of(20, ranks=RANKS), summary_of("completed", 20)])
    (folder / "log.txt").write_text("step 20\nDone.\n")
    for named in (folder, tmp_path / "out", folder / "checkpoint-20"):
        named.mkdir(exist_ok=True)
        ended = typed(["watch", str(named)], tmp_path)
        assert ended.code == 0, ended.output
        for text in ("m/v0  completed", "step 20 of 100", "loss 2.8", "MFU 41.0%", "communication 25.0%", "Done."):
            assert text in ended.output


def test_dead_run_shows_cause_and_exit_code(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "m" / "v0", [line_of(5)])
    (folder / "log.txt").write_text("RuntimeError: CUDA error: device-side assert\n")
    ended = typed(["watch", str(folder), "--once"], tmp_path)
    assert ended.code == 1
    assert "m/v0  died\n" in ended.output
    assert "RuntimeError: CUDA error" in ended.output


def test_what_is_no_run_is_refused_with_what_to_type(tmp_path: Path) -> None:
    assert "Folder not found" in typed(["watch", str(tmp_path / "nowhere")], tmp_path).output
    ended = typed(["watch", str(tmp_path)], tmp_path)
    assert ended.code == 2
    assert "No runs found in" in ended.output


def test_slow_rank_is_named_by_compute_time() -> None:
    """The process that computes longest is named not the one whose step is longest."""
    assert slowest(RANKS) == 2
    assert slowest([{**row, "own_seconds": 0.5} for row in RANKS]) is None


def test_a_curve_of_dots_goes_from_its_first_to_its_last_point() -> None:
    assert curve([0, 1], [1.0, 0.0], 4, 2) == ["⠑⢄⠀⠀", "⠀⠀⠑⢄"]
    assert curve([0, 9], [5.0, 5.0], 2, 1) == ["⠉⠉"]
    assert curve([1], [1.0], 4, 2) == []


@pytest.mark.full
def test_the_server_and_the_watcher_import_no_torch(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from starlette.testclient import TestClient
import swift_ui.app
from swift_ui.app import make_app
from swift_ui.screen import WatchScreen
from swift_ui.options import UiSettings

root, origin = Path({str(tmp_path)!r}), "http://127.0.0.1:7860"
settings = UiSettings((root,))
page = TestClient(make_app(settings), base_url=origin, headers={{"origin": origin}})
assert page.post("/api/login", json={{"token": settings.token}}).status_code == 200
(run,) = page.get("/api/runs").json()["runs"]
for path in ("", "/series", "/config"):
    assert page.get("/api/runs/" + run["key"] + path).status_code == 200
WatchScreen(root / "m" / "v0").render()
print(sorted({{"torch", "transformers", "numpy", "datasets"}} & set(sys.modules)))
"""
    write_run(tmp_path / "m" / "v0", [line_of(5)])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
