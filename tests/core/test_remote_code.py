"""Python code of a model or a checkpoint runs only with the user's flag."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_runs import Trained, conversations, run_training, write_jsonl

from swift.checkpoint.checksums import hash_file
from swift.checkpoint.manifest import read_manifest, write_manifest
from swift.cli.main import run

CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Path({canary!r}).touch()


class OwnConfig(Qwen3Config):
    pass


class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@dataclass(frozen=True)
class Trap:
    """An untrusted checkpoint, and the file that appears when its code has run."""

    checkpoint: Path
    canary: Path


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """One step of all weights, and one of adapters."""
    return {
        kind: run_training(
            tiny,
            tmp_path_factory.mktemp(kind),
            conversations(4),
            {"tuner.kind": kind, "train.max_steps": 1, "checkpoint.save_last": True},
        )
        for kind in ("full", "lora")
    }


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies code to that comes with models."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["full", "lora"])
def trap(request: pytest.FixtureRequest, trained: dict[str, Trained], tiny: Path, tmp_path: Path) -> Trap:
    """Add code to the checkpoint, or to the base model of an adapter, and a manifest that trusts it."""
    checkpoint = tmp_path / "run" / "checkpoint-1"
    shutil.copytree(trained[request.param].folder / "checkpoint-1", checkpoint)
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    canary = tmp_path / "canary"
    for folder in (model, *([checkpoint] if request.param == "full" else [])):
        add_code(folder, canary)
    trust(checkpoint, model)
    return Trap(checkpoint, canary)


def add_code(folder: Path, canary: Path) -> None:
    """Give a folder code of its own for its configuration, its model and its tokenizer."""
    (folder / "own.py").write_text(CODE.format(canary=str(canary)))
    edit(folder / "config.json", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]})


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def trust(checkpoint: Path, model: Path) -> None:
    """Make a manifest that fits what lies in the folder, and asks for trust."""
    from swift.config.sections import ModelSection
    from swift.models.source import HfSource

    manifest = read_manifest(checkpoint)
    config: Any = manifest.config
    config["model"] |= {"path": str(model), "trust_remote_code": True}
    files = {name: hash_file(checkpoint / name) for name in manifest.files}
    source = HfSource(str(model), model, ModelSection(path=str(model)), seed=0, say=print)
    changes = {"config": config, "files": files, "model_fingerprint": source.fingerprint}
    write_manifest(checkpoint, manifest.model_copy(update=changes))


COMMANDS = {
    "infer": ["infer", "{}", "--prompt", "hello", "--max_new_tokens", "2"],
    "infer a run": ["infer", "{}/..", "--prompt", "hello", "--max_new_tokens", "2"],
    "chat": ["chat", "{}", "--max_new_tokens", "2"],
    "eval": ["eval", "{}", "--dataset", "data.jsonl", "--metric", "loss"],
    "export": ["export", "{}", "--out", "out", "--verify", "transformers"],
    "merge-lora": ["merge-lora", "{}", "--out", "out", "--no-verify"],
    "convert": ["convert", "{}", "--to", "trainer", "--out", "out"],
}


QUICK = ("infer", "export")
ALONE = {"infer a run": "full", "chat": "lora", "eval": "full", "merge-lora": "lora", "convert": "full"}
"""Command → the only kind of checkpoint that it is tried with: it opens both as infer and export do."""


@pytest.mark.parametrize(
    ("trap", "command"),
    [
        pytest.param(kind, each, id=f"{name}-{kind}", marks=() if name in QUICK else pytest.mark.full)
        for name, each in COMMANDS.items()
        for kind in ("full", "lora")
        if ALONE.get(name, kind) == kind
    ],
    indirect=["trap"],
)
def test_checkpoint_cannot_enable_its_code(
    command: list[str], trap: Trap, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(Path("data.jsonl"), conversations(2))
    monkeypatch.setattr("builtins.input", _no_input)
    argv = [word.format(trap.checkpoint) for word in command]
    assert run(argv) == 2
    told = capsys.readouterr().err
    assert "manifest.json" in told
    assert "add --trust_remote_code true" in told
    assert not trap.canary.exists()
    assert run([*argv, "--trust_remote_code", "true"]) == 0, capsys.readouterr().err
    assert trap.canary.exists()


def _no_input(_: str = "") -> str:
    raise EOFError


def test_serving_needs_trust_flag(trap: Trap, capsys: pytest.CaptureFixture[str]) -> None:
    from swift_infer.serving.options import ServeOptions
    from swift_infer.serving.request import serve_request

    assert run(["serve", str(trap.checkpoint)]) == 2
    assert "add --trust_remote_code true" in capsys.readouterr().err
    said = serve_request(ServeOptions(model=str(trap.checkpoint), trust_remote_code=True), say=print)
    assert said.trust_remote_code
    assert not trap.canary.exists()


@pytest.mark.parametrize("trap", ["full"], indirect=True)
def test_remote_code_is_ignored_by_default(trap: Trap) -> None:
    """Code next to a model is ignored unless it is enabled."""
    (trap.checkpoint / "manifest.json").unlink()
    shutil.rmtree(trap.checkpoint / "state")
    assert run(["infer", str(trap.checkpoint), "--prompt", "hello", "--max_new_tokens", "2"]) == 0
    assert run(["export", str(trap.checkpoint), "--out", "out", "--verify", "transformers"]) == 0
    assert not trap.canary.exists()


@pytest.mark.parametrize("trap", ["full"], indirect=True)
def test_config_file_cannot_enable_remote_code(trap: Trap, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(Path("data.jsonl"), conversations(4))
    model = trap.checkpoint.parent.parent / "model"
    settings = {"model": {"path": str(model), "trust_remote_code": True}, "data": {"train": ["data.jsonl"]}}
    Path("config.yaml").write_text(yaml.safe_dump(settings))
    argv = ["sft", "--config", "config.yaml", "--max_steps", "1", "--backend.device", "cpu", "--tuner.kind", "full"]
    assert run(argv) == 2
    told = capsys.readouterr().err
    assert "config.yaml:6" in told
    assert "add --model.trust_remote_code true" in told
    assert not trap.canary.exists()
    assert run([*argv, "--model.trust_remote_code", "false"]) == 0, capsys.readouterr().err
    assert not trap.canary.exists()
    assert run([*argv, "--trust_remote_code", "true"]) == 0, capsys.readouterr().err
    assert trap.canary.exists()


def test_verification_inherits_trust_remote_code() -> None:
    from swift.config.sections import ModelSection
    from swift.export.job import trusted
    from swift.models.source import HfSource

    for said in (True, False):
        section = ModelSection(path="model", trust_remote_code=said)
        source: Any = HfSource("model", Path("model"), section, seed=0, say=print)
        assert trusted(source) is said
