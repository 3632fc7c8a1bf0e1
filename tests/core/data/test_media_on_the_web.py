"""Images at addresses on the web, from a server of this machine: fetched once, and only where that was turned on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny_images import image_files

from swift.data import web
from swift.data.conversation import Unusable
from swift.data.images import as_url, measure, read_medium

SIZE = (56, 42)
MOVED = {"/moved": "/a.png", "/to-ftp": "ftp://127.0.0.1:1/a.png"}


class Site:
    """A server with one image, and what it was asked for."""

    def __init__(self, content: bytes) -> None:
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                if self.path in MOVED:
                    self.send_response(302)
                    self.send_header("Location", MOVED[self.path])
                    self.end_headers()
                    return
                self.send_response(404 if self.path == "/none" else 200)
                self.send_header("Content-Length", str(len(content) + 100 * (self.path == "/cut")))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    image_files(tmp_path, [SIZE])
    site = Site((tmp_path / "0.png").read_bytes())
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


def test_image_is_downloaded_once(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("a.png", "moved"):
            seen = measure(read_medium(f"{site.address}/{name}", None), tmp_path / "kept", web="any")
            assert (seen.width, seen.height) == SIZE
            assert Path(seen.source).read_bytes() == (tmp_path / "0.png").read_bytes()
    assert sorted(site.asked) == ["/a.png", "/a.png", "/moved"]  # the second is where the other address leads


def test_nothing_is_fetched_unless_that_is_turned_on(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"--data\.web public"):
        measure(read_medium(f"{site.address}/a.png", None), tmp_path)
    assert not site.asked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_private_network_hosts_are_not_requested(site: Site, tmp_path: Path, host: str) -> None:
    address = site.address.replace("127.0.0.1", host)
    with pytest.raises(Unusable, match=r"of a private network, which needs --data\.web any"):
        measure(read_medium(f"{address}/a.png", None), tmp_path, web="public")
    assert not site.asked


def test_failed_download_reports_reason_and_leaves_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "LARGEST_FILE", 2**20)
    reasons = {"none": "Not Found", "cut": "bytes came|IncompleteRead", "to-ftp": "only http and https are fetched"}
    for name, why in reasons.items():
        with pytest.raises(Unusable, match=why):
            measure(read_medium(f"{site.address}/{name}", None), tmp_path / "kept", web="any")
    monkeypatch.setattr(web, "LARGEST_FILE", 100)
    with pytest.raises(Unusable, match="larger than"):
        measure(read_medium(f"{site.address}/a.png", None), tmp_path / "kept", web="any")
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]


def test_servers_are_sent_the_address_itself() -> None:
    assert as_url(read_medium("https://here.example/a.png", None)) == "https://here.example/a.png"
