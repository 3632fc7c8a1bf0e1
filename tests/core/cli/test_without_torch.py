"""Commands that neither train nor load a model import neither torch nor transformers, which take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import contextlib, io, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from swift.cli.main import run

class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        self._send({"data": [{"id": "bird"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            piece = {"choices": [{"delta": {"content": "tweet"}, "finish_reason": "stop"}]}
            self.wfile.write(f"data: {json.dumps(piece)}\\n\\ndata: [DONE]\\n\\n".encode())
        else:
            self._send({"choices": [{"message": {"content": "tweet"}, "finish_reason": "stop"}]})

    def _send(self, answer):
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
found = []
for command, code in json.loads(sys.argv[1]):
    sys.stdin = io.StringIO("hello\\n/exit\\n")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        ended = run([word.replace("SERVER", address) for word in command])
    heavy = sorted({"torch", "transformers"} & set(sys.modules))
    found.append([" ".join(command), ended, said.getvalue(), heavy])
    if heavy or ended != code:
        break
print(json.dumps(found))
"""


@pytest.mark.full
def test_light_commands_import_no_torch(tiny: Path, tmp_path: Path) -> None:
    """Commands that neither train nor load a model import no torch."""
    data = tmp_path / "questions.jsonl"
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "tweet"}]
    data.write_text(json.dumps({"messages": messages}) + "\n")
    training = ["sft", "--model", str(tiny), "--dataset", str(data)]
    asked = ["--engine", "SERVER", "--dataset", str(data)]
    commands: list[tuple[list[str], int]] = [
        (["--help"], 0),
        (["--version"], 0),
        (["config", "schema"], 0),
        (["config", "show"], 0),
        (["config", "show", *training], 0),
        (["config", "validate", *training], 0),
        (["plugins"], 0),
        (["plugins", "--json"], 0),
        (["plugins", "--check"], 0),
        (["infer", "--engine", "SERVER", "--prompt", "hello"], 0),
        (["infer", *asked, "--result_path", str(tmp_path / "answers.jsonl")], 0),
        (["eval", *asked], 0),
        (["chat", "--engine", "SERVER"], 0),
        (["serve", str(tiny), "--python", "/nowhere/python"], 2),
        (["doctor"], 0),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for command, code, said, heavy in found:
        assert not heavy, f"swift {command} imports {heavy}"
        wanted = next(code for words, code in commands if " ".join(words) == command)
        assert code == wanted, f"swift {command} ended with {code}:\n{said}"
    assert len(found) == len(commands)
