"""A real browser for tests: one Chromium a session, every request of which is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import browser as installed_browser
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


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
    from pathlib import Path

    import axe_playwright_python

    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)  # not a tag: the page's own policy forbids scripts in it
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
