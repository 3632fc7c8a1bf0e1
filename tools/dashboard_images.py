"""Take the screenshots of the dashboard for README and docs: `make dashboard-images`.

Starts two trainings of the demo's tiny model from a browser, two minutes each on the CPU, and writes PNG files into
docs/images.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from swift_demo.model import write_model
from swift_demo.task import question, write_data

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
"""A page of the docs should load at once."""
SETTINGS = {
    "model.path": "tiny",
    "data.train": "train.jsonl",
    "data.validation": "test.jsonl",
    "data.packing": "true",
    "data.max_length": "512",
    "tuner.kind": "full",
    "optim.lr": "4e-3",
    "train.max_steps": "160",
    "train.micro_batch": "4",
    "train.eval_steps": "40",
    "checkpoint.save_steps": "40",
    "logging.steps": "2",
    "backend.cpu_threads": "1",
}

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from browsing import Dashboard, fill, launch, opened_browser, show  # type: ignore[import-not-found]  # noqa: E402 - tests' hands


def main() -> None:
    """Train, look, and write."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name, opened_browser() as browser:
        folder = Path(name).resolve()
        write_model(folder / "tiny")
        write_data(folder)
        (folder / "output").mkdir()
        dashboard = Dashboard(folder, browser)
        dashboard.start()
        try:
            take(dashboard)
        finally:
            dashboard.end()


def take(dashboard: Dashboard) -> None:
    """Take the images of one run."""
    page = dashboard.page("/new/sft", color_scheme="light")
    page.set_default_timeout(600_000)
    fill(page, {**SETTINGS, "logging.run_name": "first"})
    page.wait_for_selector("#plan")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    image(page, "dashboard-new")
    launch(page, {**SETTINGS, "logging.run_name": "first"})
    page.wait_for_selector(".status.completed")
    launch(page, {**SETTINGS, "logging.run_name": "lower-rate", "optim.lr": "1e-3"})
    page.wait_for_selector(".status.completed")
    show(page, "/runs")
    page.locator("tr[data-run]").nth(1).wait_for()
    page.get_by_role("link", name="tiny/first").click()
    page.wait_for_selector(".chart svg .curve")
    page.wait_for_timeout(500)
    image(page, "dashboard-run")
    page.get_by_role("link", name="Samples").click()
    page.wait_for_selector(".sample")
    image(page, "dashboard-samples")
    compare_and_ask(dashboard, page)


def compare_and_ask(dashboard: Dashboard, page: Any) -> None:
    """Take the images of several runs and of the chat."""
    show(page, "/runs")
    page.locator("tr[data-run]").nth(1).wait_for()
    for checkbox in page.locator("tr[data-run] input[type=checkbox]").all():
        checkbox.check()
    page.get_by_role("button", name="Compare").or_(page.get_by_role("link", name="Compare")).click()
    page.wait_for_selector(".view-compare .keys")
    page.wait_for_timeout(500)
    image(page, "dashboard-compare")
    show(page, "/chat?model=output/tiny/first&model=output/tiny/lower-rate/checkpoint-80")
    page.locator(".chat-column .status.completed").nth(1).wait_for()
    page.fill("#chat-tokens", "32")
    page.uncheck("#chat-remember")
    for number in (438, 907, 152, 660):
        page.fill("#chat-question", question(number))
        page.press("#chat-question", "Enter")
        page.locator("#chat-send:enabled").wait_for()
    page.evaluate("document.activeElement.blur()")
    image(page, "dashboard-chat")
    for session in page.evaluate("fetch('/api/sessions').then((response) => response.json())")["sessions"]:
        page.request.post(
            f"{dashboard.address}api/jobs/{session['id']}/stop",
            data={"now": True},
            headers={"origin": dashboard.address.rstrip("/")},
        )


def image(page: Any, name: str) -> None:
    """Write one image of what the window shows."""
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{path.relative_to(ROOT)} has {size:,} bytes, more than {MOST_BYTES:,}.")
    print(f"wrote {path.relative_to(ROOT)}, {size:,} bytes")


if __name__ == "__main__":
    main()
