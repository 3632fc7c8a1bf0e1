"""What goes wrong with a server that is asked: each in one sentence. Real answers of a real vLLM are in
`tests/export_vllm`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import write_jsonl

from swift.cli.main import run
from swift.errors import SwiftError
from swift_infer import OpenAiServer, at_once
from swift_testing.crew import free_port


class Strange(BaseHTTPRequestHandler):
    """Answers each path in the way that its first part says."""

    asked: list[tuple[str, dict[str, str], Any]]
    failures: int

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        type(self).asked.append((self.path, dict(self.headers), body))
        kind, _, path = self.path.removeprefix("/").partition("/")
        if kind == "page":
            self._send(200, "<html>welcome</html>")
        elif kind == "locked" and self.headers["Authorization"] != "Bearer right":
            self._send(401, '{"error": {"message": "no key"}}')
        elif kind == "empty":
            self._send(404, "")
        elif kind == "adapted":
            self._send(200, '{"data": [{"id": "bird", "parent": null}, {"id": "swallow", "parent": "bird"}]}')
        elif path == "v1/models":
            self._send(200, '{"data": [{"id": "swallow"}, {"id": "starling"}]}')
        elif kind == "shaky" and type(self).failures > 0:
            type(self).failures -= 1
            if type(self).failures % 2:
                self._send(503, "")
            else:
                self.close_connection = True  # the connection ends without an answer
        elif kind == "broken":
            self._send(500, '{"error": {"message": "out of memory"}}')
        elif kind == "strict":
            self._send(400, '{"error": {"message": "This model\'s maximum context length is 16 tokens."}}')
        else:
            said = body["messages"][-1]["content"].upper()
            self._send(200, json.dumps({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}))

    def _send(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("swift_infer.openai_server.time.sleep", lambda _: None)
    for name in ("SWIFT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    Strange.asked, Strange.failures = [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Strange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def infer(engine: str, *more: str) -> int:
    return run(["infer", *more, "--engine", engine, "--prompt", "hello"])


@pytest.mark.parametrize(
    ("path", "flags", "sentence"),
    [
        ("page", [], "does not have OpenAI's API"),
        ("empty", [], "does not have OpenAI's API"),
        ("locked", [], "requires one"),
        ("locked", ["--api_key", "wrong"], "requires one"),
        ("ok", ["swalow"], "Did you mean 'swallow'?\nIt serves: swallow, starling."),
        ("broken", [], "failed with 500: out of memory"),
        ("strict", [], "maximum context length is 16 tokens"),
        ("ok", ["--torch_dtype", "float32"], "--torch_dtype applies to loading a model"),
        ("ok", ["--adapters", "somewhere"], "--adapters applies to loading a model"),
    ],
)
def test_what_a_server_refuses_is_one_sentence(
    strange: str, capsys: pytest.CaptureFixture[str], path: str, flags: list[str], sentence: str
) -> None:
    assert infer(f"{strange}/{path}", *flags) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert infer(address) == 2
    assert f"There is no server at {address}.\nStart one with swift serve MODEL" in capsys.readouterr().err
    assert infer("http://") == 2
    assert "Invalid server address" in capsys.readouterr().err


def test_busy_server_and_broken_connection_are_retried(strange: str, capsys: pytest.CaptureFixture[str]) -> None:
    Strange.failures = 4
    assert infer(f"{strange}/shaky/") == 0
    assert capsys.readouterr().out == "HELLO\n"
    assert Strange.failures == 0
    Strange.failures = 20
    assert infer(f"{strange}/shaky") == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_a_key_is_taken_from_the_flag_and_from_the_environment(
    strange: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert infer(f"{strange}/locked", "--api_key", "right") == 0
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    monkeypatch.setenv("SWIFT_API_KEY", "right")
    assert infer(f"{strange}/locked/v1", "starling") == 0
    assert capsys.readouterr().out == "HELLO\nHELLO\n"
    assert [body["model"] for _, _, body in Strange.asked if body] == ["swallow", "starling"]


def test_messages_are_sent_with_system_message_first(strange: str, tmp_path: Path) -> None:
    """Messages go as they are with the system message in front."""
    rows = [{"messages": [{"role": "user", "content": f"number {number}"}], "mark": number} for number in range(40)]
    data = write_jsonl(tmp_path / "questions.jsonl", rows)
    result = tmp_path / "answers.jsonl"
    flags = ["--dataset", str(data), "--result_path", str(result), "--system", "Shout.", "--temperature", "0.5"]
    assert run(["infer", "--engine", f"{strange}/ok", *flags]) == 0
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    assert [(line["mark"], line["messages"][-1]["content"]) for line in lines] == [
        (number, f"NUMBER {number}") for number in range(40)
    ]
    bodies = [body for _, _, body in Strange.asked if body]
    assert {body["messages"][0]["content"] for body in bodies} == {"Shout."}
    assert len({body["seed"] for body in bodies}) == 40


def test_adapter_is_default_of_served_models(strange: str) -> None:
    said: list[str] = []
    assert OpenAiServer(f"{strange}/adapted").choose(None, said.append) == "swallow"
    assert said == ["Using swallow. Other models of the server, for --model: bird"]
    assert OpenAiServer(f"{strange}/adapted").choose("bird", said.append) == "bird"


def test_log_probs_are_not_requested_from_server(capsys: pytest.CaptureFixture[str]) -> None:
    for what in (["--metric", "loss", "--dataset", "x.jsonl"], ["--tasks", "arc_easy"]):
        assert run(["eval", "--engine", "http://127.0.0.1:1", *what]) == 2
        assert "needs log-probabilities of tokens" in capsys.readouterr().err


def test_the_first_failure_ends_requests_that_have_not_begun() -> None:
    begun = []

    def work(place: int) -> int:
        begun.append(place)
        if place == 3:
            raise SwiftError("enough")
        return place

    with pytest.raises(SwiftError, match="enough"):
        list(at_once(work, range(10_000), 2))
    assert len(begun) < 10_000


def test_a_stream_that_is_cut_off_is_an_error(strange: str) -> None:
    with pytest.raises(SwiftError):
        list(OpenAiServer(f"{strange}/broken").events("/v1/chat/completions", {"messages": []}))
