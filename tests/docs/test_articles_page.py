"""The commands on the page about articles run, or are refused, as shown."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from pages import DOCS, Command, blocks, commands
from reader import Reader

from swift.cli.main import run
from swift_demo.model import write_model

PAGE = DOCS / "how-to" / "commands-from-articles.md"
LAUNCHER = "deepspeed --num_gpus=8 train.py "


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page and a data set."""
    folder = tmp_path / "work"
    folder.mkdir()
    for block in blocks(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
    rows = ({"query": f"{number} + 1?", "response": str(number + 1)} for number in range(64))
    (folder / "your_data").mkdir()
    (folder / "your_data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(folder)
    return folder


def _typed(language: str) -> list[Command]:
    return [each for block in blocks(PAGE) if block.language == language for each in commands(block)]


# Flash attention is refused on machines without a GPU.
@pytest.mark.parametrize(
    "command", [each for each in _typed("console") if "flash_attn" not in each.line], ids=lambda each: each.line
)
def test_config_is_shown_for_each_command_with_data(command: Command, place: Path) -> None:
    """A configuration is shown for each command that names its data."""
    refused = any(line.startswith("Error:") for line in command.shown)
    assert refused == ("--dataset" not in command.line)
    data = ["--dataset", "your_data"] if refused else []
    assert run(["config", "show", *command.words()[1:], *data]) == 0


def test_launcher_command_is_refused_for_pipelines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher's command is refused for its pipelines, and the other two are not."""
    typed = [line for block in blocks(PAGE) if block.language == "text" for line in block.text.splitlines()]
    codes = []
    for line in typed:
        assert line.startswith(LAUNCHER)
        words = line.removeprefix(LAUNCHER).split()
        codes.append(run(["config", "show", "train", *words, "--nproc", "8", "--dataset", "your_data"]))
    assert codes == [2, 0, 0]
    assert "does not support parallel.pp 2" in capsys.readouterr().err


def test_the_megatron_script_describes_its_layout(place: Path) -> None:
    script = (place / "megatron.py").read_text()
    names = runpy.run_path(_saved(place, script.replace("trainer.train()\n", "")))
    config = names["trainer"].parsed.config
    assert (config.backend.name, config.parallel.tp, config.parallel.pp) == ("megatron", 4, 2)
    assert (config.train.epochs, config.train.micro_batch, config.optim.lr) == (3, 4, 1e-5)


def _saved(folder: Path, script: str) -> str:
    path = folder / "described.py"
    path.write_text(script)
    return str(path)


@pytest.mark.full
def test_commands_for_one_process_train(place: Path) -> None:
    """The same commands and script run on a tiny model, with a batch for one process."""
    write_model(place / "tiny", hidden=32, layers=1)
    reader = Reader(place)
    started = 0
    for command in _typed("console"):
        if "--dataset" not in command.line or "megatron" in command.line:
            continue
        line = re.sub(r"--model_type \S+", "--model_type ./tiny", command.line)
        done = reader.types(Command(f"{line} --max_steps 1"))
        assert done.code == 0, f"{line}\n{done.printed}\n{done.complained}"
        assert "Completed after 1 step" in done.printed
        started += 1
    assert started == 5

    file = place / "ds_config_zero2.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "train_batch_size": 16}))
    script = place / "zero2.py"
    script.write_text(script.read_text().replace('"qwen-7b"', '"./tiny"'))
    done = reader.types(Command("python zero2.py"))
    assert done.code == 0, done.printed + done.complained
    assert "Completed after 4 steps" in done.printed
