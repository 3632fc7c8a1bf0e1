"""`swift serve --engine sglang|lmdeploy`, against what the servers' own parsers say that they take.

Neither runs without a GPU. What stands in their place here parses with the flags of the real ones, as
`tools/server_parsers.py` wrote them down, answers a question and ends as it is told.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from swift.cli.main import run

HERE = Path(__file__).parent
SERVER = """
import argparse, json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

parser = argparse.ArgumentParser(allow_abbrev=True)
for row in json.load(open(PARSER))["arguments"]:
    if row["names"][0].startswith("-"):
        how = {"action": "store_true"} if row["values"] == 0 else {"nargs": row["values"], "choices": row["choices"]}
        parser.add_argument(*row["names"], **how)
    else:
        parser.add_argument(*row["names"])
flags = vars(parser.parse_args(sys.argv[BEGIN:]))
flags = {name: value for name, value in flags.items() if value not in (None, False)}
with open("/proc/self/cmdline") as line:
    flags["seen"] = line.read().split("\\0")
flags["environment"] = sorted(os.environ)

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(flags).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

host, port = (flags.get(name) for name in HOST)
HTTPServer((host, int(port)), Answers).serve_forever()
"""
WHERE = {
    "sglang": ("launch_server.py", 1, ("host", "port"), ("srt/server_args.py", '"--model-path --port"')),
    "lmdeploy": ("__main__.py", 3, ("server_name", "server_port"), ("cli/serve.py", '"--server-port"')),
}


def environment_with(name: str, folder: Path) -> Path:
    """An environment whose SGLang or LMDeploy has the flags of the real one, in its parser and in its source."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    file, begin, host, (source, _) = WHERE[name]
    told = json.loads((HERE / f"{name}.json").read_text())
    names = [each for row in told["arguments"] for each in row["names"] if each.startswith("-")]
    constants = f"PARSER = {str(HERE / f'{name}.json')!r}\nBEGIN = {begin}\nHOST = {host!r}\n"
    (packages / name / Path(source).parent).mkdir(parents=True)
    (packages / name / "__init__.py").touch()
    (packages / name / file).write_text(constants + SERVER)
    (packages / name / source).write_text(f"flags = {names!r}\n")
    if name == "lmdeploy":
        (packages / name / "cli/utils.py").touch()
        (packages / name / "pytorch/models").mkdir(parents=True)
        (packages / name / "pytorch/models/module_map.py").write_text(
            "MODULE_MAP = dict()\nMODULE_MAP.update({'Qwen3ForCausalLM': 'x', 'LlamaForCausalLM': 'y'})\n"
        )
        (packages / name / "turbomind").mkdir()
        (packages / name / "turbomind/supported_models.py").write_text(
            "SUPPORTED_ARCHS = dict(GptOssForCausalLM='g')\n"
        )
    metadata = packages / f"{name}-{told['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {told['version']}\n")
    return folder / "bin/python"


@pytest.fixture(scope="module", params=sorted(WHERE))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with(engine, tmp_path_factory.mktemp(engine) / "environment")


@pytest.fixture(scope="module")
def started(
    engine: str, python: Path, small: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What the server was started with, and what was printed when it was ready."""
    words = [sys.executable, "-m", "swift", "serve", str(small), "--engine", engine, "--python", str(python)]
    words += ["--port", "0", "--dtype", "bfloat16", "--max-length", "512", "--adapters", f"mine={adapter}"]
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {**os.environ, "SWIFT_API_KEY": "nobody-sees-it", "XDG_CACHE_HOME": cache}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    else:
        raise AssertionError(process.communicate()[1])
    (url,) = re.findall(r"(http://\S+?)/v1$", lines[0])
    with urllib.request.urlopen(url) as answer:
        flags = json.load(answer)
    yield flags, lines
    process.terminate()
    assert process.wait(30) == 0
    for _ in range(100):  # nothing is left of it
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("the server is still there")


@pytest.mark.full
def test_model_is_served_with_adapter_by_server_flags(engine: str, started: tuple[dict[str, Any], list[str]]) -> None:
    """A model is served with its adapter by flags that the server has."""
    flags, lines = started
    adapters = flags["lora_paths" if engine == "sglang" else "adapters"]
    assert [each.partition("=")[0] for each in adapters] == ["mine"]
    assert Path(adapters[0].partition("=")[2], "adapter_config.json").is_file()
    assert flags["context_length" if engine == "sglang" else "session_len"] == "512"
    assert flags["host" if engine == "sglang" else "server_name"] == "127.0.0.1"
    if engine == "sglang":
        assert flags["load_format"] == "safetensors"
        asked = f"{flags['served_model_name']}:mine"  # the adapter's name alone would be answered by the model
    else:
        assert flags["backend"] == "pytorch"  # the other one takes no adapters
        asked = "mine"
    assert any(f'"model": "{asked}"' in line for line in lines)
    assert any(f'model="{asked}"' in line for line in lines)


@pytest.mark.full
def test_the_key_is_the_servers_and_in_no_command_line(engine: str, started: tuple[dict[str, Any], list[str]]) -> None:
    flags, lines = started
    assert flags["api_key" if engine == "sglang" else "api_keys"] in ("nobody-sees-it", ["nobody-sees-it"])
    assert not any("nobody-sees-it" in word for word in flags["seen"])
    assert "SWIFT_SECRET_FLAGS" not in flags["environment"]
    assert not any("nobody-sees-it" in line for line in lines)


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert run(["serve", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_unknown_and_reserved_flags_are_refused(
    engine: str, python: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(small), "--engine", engine, "--python", str(python)]
    right, wrong = ("--log-level", "--log-levl") if engine == "lmdeploy" else ("--tp-size", "--tpp-size")
    said = refused(capsys, *words, wrong, "1")
    assert f"Unknown flag {wrong}: neither swift serve nor {engine}" in said
    assert f"Did you mean '{right}'" in said
    ours = "--api-keys" if engine == "lmdeploy" else "--lora-paths"
    assert f"swift serve sets {ours} itself" in refused(capsys, *words, ours, "x")


def test_a_flag_may_have_the_engines_name_in_front(engine: str) -> None:
    from swift_infer.servers import passed_on

    assert passed_on((f"--{engine}_tp", "2", "--quiet", "true", "--loud", "false"), engine, {}, negated=False) == (
        "--tp",
        "2",
        "--quiet",
    )


def test_an_engine_that_is_not_there_names_where_it_belongs(
    engine: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, str(small), "--engine", engine, code=3)
    assert "is not installed" in said
    assert "--python" in said


def test_it_does_not_load_models_into_this_process(
    engine: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["infer", str(small), "--engine", engine, "--prompt", "Hello"]) == 2
    said = capsys.readouterr().err
    assert "runs as a server only" in said
    assert f"--engine {engine}" in said


@pytest.mark.parametrize(
    ("module", "said"), [("model.visual.blocks.0.attn.qkv", True), ("model.layers.0.q_proj", False)]
)
def test_vision_encoder_adapter_suggests_merging(
    engine: str, python: Path, small: Path, tmp_path: Path, module: str, said: bool
) -> None:
    """SGLang would leave that part of it out, and LMDeploy put it on images by the places of words."""
    import torch
    from safetensors.torch import save_file

    from swift.contracts import ServeRequest
    from swift.errors import ModelError
    from swift_export_lmdeploy.server import LMDeployProgram
    from swift_export_sglang.server import SGLangProgram
    from swift_infer.servers import find_interpreter

    save_file({f"base_model.model.{module}.lora_A.weight": torch.zeros(1, 1)}, tmp_path / "adapter_model.safetensors")
    program = SGLangProgram() if engine == "sglang" else LMDeployProgram()
    request = ServeRequest(small, "small", adapters={"seeing": tmp_path})
    interpreter = find_interpreter(program.library, python)
    with pytest.raises(ModelError, match="adapts a vision or audio encoder") if said else nullcontext():
        program.checked(request, interpreter)
