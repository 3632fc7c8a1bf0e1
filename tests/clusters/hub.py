"""A hub of models and data sets in memory, as far as huggingface_hub's file system asks one: `python hub.py PORT`.

It answers as the hub's documented interface does, and knows every repository that is asked for. The client is
huggingface_hub's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|preupload|commit)/([^/]+))?(/.*)?")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)")
Files = dict[str, bytes]
REPOSITORIES: dict[tuple[str, str], Files] = {}
COMMIT = "0" * 40


def described(files: Files, path: str) -> dict[str, Any] | None:
    """Return what the hub tells about a file or a folder."""
    if path in files:
        content = files[path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if any(each.startswith(path + "/") for each in files):
        return {"type": "directory", "path": path, "oid": COMMIT}
    return None


def below(files: Files, folder: str, recursive: bool) -> Iterator[str]:
    """Yield files and folders in a folder, and with `recursive` all that is further down."""
    start = f"{folder}/" if folder else ""
    found: dict[str, None] = {}
    for file in files:
        if file.startswith(start):
            parts = file.removeprefix(start).split("/")
            for depth in range(1, len(parts) + 1 if recursive else 2):
                found[start + "/".join(parts[:depth])] = None
    yield from found


def commit(files: Files, lines: list[dict[str, Any]]) -> None:
    """Do what a commit says."""
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "deletedFile":
            del files[value["path"]]
        elif line["key"] == "deletedFolder":
            for path in [each for each in files if each.startswith(value["path"].rstrip("/") + "/")]:
                del files[path]
        elif line["key"] != "header":
            raise ValueError(line["key"])


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if match := FILE.fullmatch(url.path):
            files = REPOSITORIES.setdefault(("datasets" if match[1] else "models", match[2]), {})
            self.send(files, unquote(match[3]))
        elif match := API.fullmatch(url.path):
            kind, name, command_name, _, path = match.groups()
            files = REPOSITORIES.setdefault((kind, name), {})
            if command_name == "tree":
                folder = unquote(path or "").strip("/")
                recursive = parse_qs(url.query).get("recursive") == ["true"]
                names = list(below(files, folder, recursive))
                if names or not folder:
                    self.answer([described(files, each) for each in names])
                else:
                    self.no_such_entry()
            else:
                self.answer({"id": name, "sha": COMMIT, "private": False, "siblings": [], "tags": []})
        else:
            self.answer({"error": "unknown"}, 404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.chunks() if length is None else self.rfile.read(int(length))
        match = API.fullmatch(urlsplit(self.path).path)
        assert match is not None, self.path
        kind, name, command_name, *_ = match.groups()
        files = REPOSITORIES.setdefault((kind, name), {})
        if command_name == "paths-info":
            told = [described(files, path) for path in parse_qs(body.decode())["paths"]]
            self.answer([each for each in told if each is not None])
        elif command_name == "preupload":
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": each["path"], **regular} for each in json.loads(body)["files"]]})
        else:
            assert command_name == "commit", command_name
            commit(files, [json.loads(line) for line in body.splitlines() if line.strip()])
            self.answer({"commitUrl": f"http://{self.headers['Host']}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    def chunks(self) -> bytes:
        """Return a body that comes in chunks."""
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, files: Files, path: str) -> None:
        """Send a file, or the part of it that is asked for."""
        if path not in files:
            self.no_such_entry()
            return
        content, code = files[path], 200
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(asked[1]), int(asked[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{min(end, len(content) - 1)}/{len(content)}"
            content, code = content[begin : end + 1], 206
        self.reply(content, code, "application/octet-stream", headers)

    def no_such_entry(self) -> None:
        self.answer({"error": "Entry not found"}, 404, **{"X-Error-Code": "EntryNotFound"})

    def answer(self, said: Any, code: int = 200, **headers: str) -> None:
        self.reply(json.dumps(said).encode(), code, "application/json", headers)

    def reply(self, content: bytes, code: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hub)
    print("Hub is ready", flush=True)
    server.serve_forever()
