"""Install the browser for tests and screenshots of the dashboard: `make browser`.

It is Debian's Chromium, which Playwright finds by its path, so Playwright downloads no browser.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""It speaks to nobody but the page's own server, and runs as root in a container."""


def find() -> str | None:
    """Return the path of the browser: what SWIFT_CHROMIUM names, or the first that is installed."""
    named = os.environ.get("SWIFT_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def main() -> int:
    """Install the browser where root can with apt-get; elsewhere say what to type."""
    if find() is not None:
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None or not Path("/etc/debian_version").exists():
        print("browser: Chromium is not installed. On Debian type: sudo apt-get install chromium", file=sys.stderr)
        print("browser: on other systems name one: SWIFT_CHROMIUM=/path/of/chrome make test-all", file=sys.stderr)
        return 2
    print("browser: chromium, from Debian's packages", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
    ):
        if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
            print(f"browser: this failed: {' '.join(command)}", file=sys.stderr)
            return 1
    return 0 if find() is not None else 1


if __name__ == "__main__":
    sys.exit(main())
