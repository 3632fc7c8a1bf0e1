"""What users get wrong, through the command line: one clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded
from tiny_runs import conversations, write_jsonl, write_model

from swift.cli.main import run
from swift.hookspecs import hookimpl
from swift.observers.jsonl import JsonlObserver
from swift.train.run_folder import lock_run_folder

GOOD = conversations(8)
QUESTION = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}
UNSTABLE_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant thinks:\n{% endif %}"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> Path:
    """A working folder with a good model and a good data set in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, tmp_path / "model")
    write_jsonl(tmp_path / "data.jsonl", GOOD)
    return tmp_path


def swift(command: str, *flags: str, model: str = "model", dataset: str = "data.jsonl") -> int:
    """A small run, but for the flags; `dataset` is left out when empty."""
    data = ("--dataset", dataset) if dataset else ()
    small = ["--report_to", "jsonl", "--backend.device", "cpu", "--data.workers", "1"]
    if "--max_steps" not in flags:
        small += ["--max_steps", "2"]
    return run([command, "--model", model, *data, *small, *flags])


def check_refused(
    code: int, sentences: tuple[str, ...], capsys: pytest.CaptureFixture[str], folder: Path, *, expected: int = 2
) -> None:
    printed = capsys.readouterr()
    assert printed.err.count("Error: ") == 1, printed.err
    message = printed.err.partition("Error: ")[2]
    for sentence in sentences:
        assert sentence in message
    assert "Traceback" not in printed.out + printed.err
    assert code == expected
    assert not (folder / "output").exists()
    assert not dist.is_initialized()


# Flags, and what is said.
FLAGS: list[tuple[str, list[str], int, tuple[str, ...]]] = [
    ("sft", ["--learning_rat", "1"], 2, ("Unknown flag --learning_rat", "Did you mean '--learning_rate'?")),
    ("sft", ["--backend", "torhc"], 3, ("torhc", "Did you mean 'torch'?")),
    ("sft", ["--learning_rate", "fast"], 2, ("--learning_rate", "must be a number, not 'fast'")),
    ("sft", ["--parallel.tp", "2"], 2, ("torch backend does not support parallel.tp 2",)),
    ("sft", ["--tuner.targets", "q_prog"], 2, ("no module 'q_prog'", "Did you mean 'q_proj'?")),
    ("sft", ["--train_type", "full", "--tuner.freeze", "encoder.*"], 2, ("no weight of this model matches",)),
    ("sft", ["--resume_from_checkpoint", "nowhere"], 2, ("There is no checkpoint at nowhere",)),
    ("rlhf", [], 2, ("data.jsonl", "rejected")),
]


@pytest.mark.parametrize(("command", "flags", "code", "sentences"), FLAGS, ids=lambda value: str(value)[:40])
def test_invalid_flags_exit_with_message(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    flags: list[str],
    code: int,
    sentences: tuple[str, ...],
) -> None:
    check_refused(swift(command, *flags), sentences, capsys, here, expected=code)


def lines(*rows: Any) -> Callable[[Path], None]:
    """Writes these rows as the data set."""
    return lambda path: write_jsonl(path, rows) and None


def text(content: str) -> Callable[[Path], None]:
    """Writes this text as the data set."""
    return lambda path: path.write_text(content) and None


def talk(*messages: dict[str, str]) -> dict[str, Any]:
    return {"messages": list(messages)}


# How the data set is made, the flags, and what is said.
DATA: dict[str, tuple[Callable[[Path], None], list[str], tuple[str, ...]]] = {
    "missing": (Path.unlink, [], ("data.jsonl",)),
    "empty": (text(""), [], ("data.jsonl", "is empty")),
    "malformed line": (text(json.dumps(GOOD[0]) + '\n{"messages": [\n'), [], ("data.jsonl:2",)),
    "not an object": (text("[1, 2]\n"), [], ("data.jsonl:1",)),
    "unknown format": (lines({"body": "a", "topic": "b"}), [], ("data.jsonl:1", "body")),
    "two columns for one target": (
        lines({"query": "a", "question": "b", "response": "c"}),
        ["--columns", '{"question": "query"}'],
        ("data.jsonl:1", "'question'", "'query'"),
    ),
    "roles out of order": (
        lines(talk(QUESTION, QUESTION, ANSWER)),
        [],
        ("can be trained on", "roles out of order", "data.jsonl:1"),
    ),
    "one sample out of order, strictly": (lines(*GOOD, talk(ANSWER, QUESTION)), ["--strict"], ("data.jsonl:9",)),
    "no answers": (lines(talk(QUESTION)), [], ("can be trained on", "data.jsonl:1")),
    "all too long": (lines(*GOOD), ["--max_length", "8"], ("can be trained on", "too long", "data.jsonl:1")),
    "unknown role": (lines(talk({"role": "usr", "content": "a"}, ANSWER)), [], ("unknown role", "data.jsonl:1")),
}


STREAMED = ("empty", "malformed line", "roles out of order", "one sample out of order, strictly", "all too long")
"""Cases that a stream finds by itself; the others are found where both read rows."""


@pytest.mark.parametrize(
    ("case", "streaming"), [*((case, False) for case in DATA), *((case, True) for case in STREAMED)]
)
def test_unusable_data_exits_with_message(
    here: Path, capsys: pytest.CaptureFixture[str], case: str, streaming: bool
) -> None:
    make, flags, sentences = DATA[case]
    make(here / "data.jsonl")
    code = swift("sft", *flags, *(["--streaming"] if streaming else []))
    check_refused(code, sentences, capsys, here)


@pytest.mark.parametrize("flags", [[], ["--streaming"]], ids=["read", "streamed"])
def test_unusable_samples_are_counted(here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    too_long = talk(QUESTION, {"role": "assistant", "content": "a" * 500})
    write_jsonl(here / "data.jsonl", [*GOOD, talk(ANSWER, QUESTION), too_long])
    assert swift("sft", "--max_length", "200", *flags) == 0
    printed = capsys.readouterr().out
    assert "data.jsonl:9" in printed
    assert "data.jsonl:10" in printed
    (log,) = (here / "output").glob("*/*/logging.jsonl")
    summary = json.loads(log.read_text().splitlines()[-1])
    assert sum(summary["unusable_samples"].values()) == 2


def without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def without_tokenizer(model: Path) -> None:
    for path in [*model.glob("tokenizer*"), model / "chat_template.jinja"]:
        path.unlink()


def with_few_words(model: Path) -> None:
    shutil.rmtree(model)
    write_model(model, vocab_size=200, pad_token_id=None)


def with_half_the_weights(model: Path) -> None:
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])


def with_unstable_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text(UNSTABLE_TEMPLATE)


MODELS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "missing": (shutil.rmtree, ("model",)),
    "without config": (lambda model: (model / "config.json").unlink(), ("model", "config.json")),
    "without weights": (without_weights, ("model", "weights")),
    "without tokenizer": (without_tokenizer, ("model", "tokenizer")),
    "vocabulary smaller than the tokenizer": (with_few_words, ("200", "259")),
    "half of its weights": (with_half_the_weights, ("model.safetensors",)),
    "template that is not prefix-stable": (with_unstable_template, ("data.jsonl:1", "not prefix-stable")),
}


@pytest.mark.parametrize("case", MODELS)
def test_invalid_models_exit_with_message(here: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    spoil, sentences = MODELS[case]
    spoil(here / "model")
    check_refused(swift("sft"), sentences, capsys, here)


def test_unwritable_output_folder_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("")
    code = swift("sft", "--output_dir", "file")
    check_refused(code, ("Cannot make a run's folder in", "--output_dir"), capsys, here)
    assert (here / "file").read_text() == ""


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a run, which has checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(tiny, folder / "model")
    write_jsonl(folder / "data.jsonl", GOOD)
    with chdir(folder):
        assert swift("sft", "--save_steps", "1", "--output_dir", "saved", "--logging.run_name", "run") == 0
    return folder


@pytest.fixture
def saved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of that run, in a working folder of the test."""
    shutil.copytree(trained, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "saved" / "model" / "run"


def truncate(checkpoint: Path) -> None:
    path = max(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-100])


def alter(checkpoint: Path) -> None:
    path = max(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


def forget_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "flags", "sentences"),
    [
        (truncate, [], ("checkpoint-1", "bytes instead of")),
        (alter, [], ("checkpoint-1", "its checksum differs")),
        (forget_manifest, [], ("checkpoint-1", "manifest.json")),
        (None, ["--seed", "7"], ("the seed (it was 42, now 7)",)),
        (None, ["--model", "other"], ("the model (it was model)",)),
        (None, ["--dataset", "other.jsonl"], ("the data or how it is encoded (it was data.jsonl)",)),
        (None, ["--lora_rank", "4"], ("the adapter's r (it was 8, now 4)",)),
        (None, ["--max_steps", "1"], ("all 1 steps are made",)),
    ],
    ids=["truncated", "altered", "manifest", "seed", "model", "data", "rank", "steps"],
)
def test_invalid_checkpoints_exit_with_message(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None] | None,
    flags: list[str],
    sentences: tuple[str, ...],
) -> None:
    if spoil is not None:
        spoil(saved / "checkpoint-1")
    if "--model" in flags:
        write_model(tmp_path / "other", seed=3)
    write_jsonl(tmp_path / "other.jsonl", GOOD[1:])
    before = sorted(path.name for path in saved.rglob("*"))
    choice = dict(zip(flags[::2], flags[1::2], strict=True))
    model, dataset = choice.pop("--model", "model"), choice.pop("--dataset", "data.jsonl")
    rest = [word for pair in choice.items() for word in pair]
    code = swift("sft", "--resume_from_checkpoint", str(saved / "checkpoint-1"), *rest, model=model, dataset=dataset)
    check_refused(code, sentences, capsys, tmp_path)
    assert sorted(path.name for path in saved.rglob("*")) == before


def test_full_disk_while_saving_fails(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def on_a_full_disk() -> int:
        import resource

        # A checkpoint of the adapters fits; of all weights it does not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        flags = ("--train_type", "full", "--save_steps", "1", "--logging.run_name", "run")
        return swift("sft", *flags)

    ((code,),) = [succeeded(answers) for answers in on_processes(1, on_a_full_disk)]
    printed = capfd.readouterr()
    assert "could not be written to" in printed.err
    assert "larger than this system allows" in printed.err
    assert "Traceback" not in printed.out + printed.err
    assert code == 1
    folder = here / "output" / "model" / "run"
    assert not list(folder.glob("checkpoint-*"))
    assert not (folder / "last-checkpoint").is_symlink()
    last = json.loads((folder / "logging.jsonl").read_text().splitlines()[-1])
    assert last["status"] == "failed"


def test_failed_run_reports_reason_and_unlocks_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift.errors import TrainingError
    from swift.train.loop import Loop

    def failing(*_: Any) -> None:
        raise TrainingError("It broke.")

    def failing_too(self: JsonlObserver) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Loop, "make_step", failing)
    monkeypatch.setattr(JsonlObserver, "swift_run_end", hookimpl(failing_too))
    assert swift("sft", "--logging.run_name", "run") == 1
    printed = capsys.readouterr()
    assert "Error: It broke." in printed.err
    assert "no room" in printed.out
    with lock_run_folder(here / "output" / "model" / "run"):
        pass
