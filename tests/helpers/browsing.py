"""A Chromium with a dashboard for tests and images, and functions that fill in forms."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser as installed_browser
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 120_000
"""Milliseconds for what takes a process that imports torch; the machine may be busy."""


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """Yields a browser with an empty profile; where there is none, the test fails with what to type."""
    path = installed_browser.find()
    if path is None:
        pytest.fail("There is no Chromium. Type: make browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(installed_browser.FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def serious_findings(page: Page) -> list[str]:
    """Returns what axe finds serious or critical in the page, one line each. Its script comes from a package."""
    import axe_playwright_python

    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)  # not a tag: the page's own policy forbids scripts in it
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@dataclass
class Dashboard:
    """The folder that the server is started in, the server, and the browser."""

    folder: Path
    browser: Browser
    server: subprocess.Popen[str] | None = None
    port: int = 0
    token: str = ""
    requested: list[str] = field(default_factory=list)
    """Every address that the browser requested."""
    complaints: list[str] = field(default_factory=list)
    """Errors in the pages' consoles."""

    def start(self) -> None:
        """Starts the server; after the first time on the same port."""
        command = [sys.executable, "-m", "swift", "ui", "output", "--port", str(self.port)]
        self.server = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        found = re.search(r"http://127.0.0.1:(\d+)/#token=(\S+)", self.server.stdout.readline())
        assert found is not None
        self.port, self.token = int(found[1]), found[2]

    def end(self, number: int = signal.SIGTERM) -> None:
        assert self.server is not None
        self.server.send_signal(number)
        self.server.wait()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def page(self, hash_: str = "/runs", **options: Any) -> Page:
        """Opens the page with the token, as from the terminal, and goes to one of its views."""
        context = self.browser.new_context(viewport={"width": 1280, "height": 860}, **options)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.goto(f"{self.address}#token={self.token}")
        page.wait_for_selector("#nav a")
        show(page, hash_)
        return page


def show(page: Page, hash_: str) -> None:
    page.evaluate("hash => { location.hash = hash; }", f"#{hash_}")


def fill(page: Page, values: dict[str, str]) -> None:
    """Fills in fields by their keys, through the search, so that hidden ones are found."""
    page.wait_for_selector("#command")
    for key, value in values.items():
        page.fill("#search", key)
        control = page.locator(f"[data-key='{key}']")
        control.wait_for(state="visible")
        if control.evaluate("each => each.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)
    page.fill("#search", "")


def launch(page: Page, values: dict[str, str], command_name: str = "sft") -> None:
    """Fills in a form and starts its command."""
    page.evaluate("name => sessionStorage.removeItem(`form ${name}`)", command_name)
    show(page, f"/new/{command_name}")
    page.wait_for_selector(f"form[data-command={command_name}]")
    fill(page, values)
    page.locator("#launch:enabled").wait_for()
    page.click("#launch")


def step(page: Page) -> int:
    """The step in the run's head."""
    text = page.locator(".figure", has_text="Step").first.locator(".value").inner_text()
    return int(re.sub(r"\D", "", text) or 0)


def reaches(page: Page, number: int) -> None:
    """Waits until the page has shown a step, without being loaded again."""
    page.wait_for_function(
        "number => Number([...document.querySelectorAll('.figure')].find((each) => each.textContent.startsWith('Step'))"
        "?.querySelector('.value').textContent.replace(/\\D/g, '') || 0) >= number",
        arg=number,
    )
