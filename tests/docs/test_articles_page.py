"""The commands on the page about articles run, or are refused, as shown; its table of features is that of the code."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pages import DOCS, Command, blocks, commands
from reader import Reader

from swift.cli.commands import commands as swift_commands
from swift.cli.main import run
from swift.config.fields import core_fields
from swift.config.media import NAMES
from swift.errors import SwiftError
from swift.parsing import parse
from swift.parsing.tasks import TASKS
from swift.plugins.discover import plugin_names
from swift.plugins.load import find, load
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


def _accepted(line: str, zero: object = None) -> bool:
    """Return whether a run is accepted; `zero` is the offloading of ZeRO 3 in a JSON of DeepSpeed."""
    if zero is not None:
        Path("zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3, **zero}}))  # type: ignore[dict-item]
        line += " --deepspeed zero.json"
    try:
        parse(["--model", "m", "--dataset", "d", *line.split()], "train")
    except SwiftError:
        return False
    return True


def _fits(line: str, zero: object = None) -> bool:
    """Return whether the backend accepts a run on two processes, too."""
    return _accepted(line, zero) and run(["config", "show", "train", *_two(line, zero)]) == 0


def _two(line: str, zero: object) -> list[str]:
    rest = [] if zero is None else ["--deepspeed", "zero.json"]
    return ["--model", "m", "--dataset", "your_data", "--nproc", "2", *line.split(), *rest]


def _objectives(*names: str) -> bool:
    return {*names} <= {*plugin_names("swift.objectives")}


def _engines(*names: str) -> bool:
    return {*names} <= {*plugin_names("swift.engines")}


def _resumes_on_megatron() -> bool:
    pairs = json.loads((DOCS / "reference" / "resume-matrix.json").read_text())["pairs"]
    return any(pair["wrote"].startswith("ZeRO-3") and pair["reads"].startswith("Megatron PP") for pair in pairs)


def _packs_images() -> bool:
    types = json.loads((DOCS / "reference" / "architectures.json").read_text())["images"]["types"]
    return any(cells.get("packed", {}).get("result") == "equal" for cells in types.values())


def _schemes() -> set[str]:
    return {*load(find("swift.exporters", "vllm")).object.schemes}


NVME = {"device": "nvme", "nvme_path": "/tmp/nvme"}
CPU = {"device": "cpu"}
Q4 = "--train_type qlora"
FEATURES: dict[str, Callable[[], Sequence[bool]]] = {
    "ZeRO 2 and 3": lambda: (
        _accepted("--deepspeed zero2_offload"),
        _accepted("", {"offload_param": CPU, "offload_optimizer": CPU}),
        _accepted("", {"offload_optimizer": NVME}),
    ),
    "parameters on NVMe": lambda: (_fits("", {"offload_param": NVME}),),
    "LoRA, QLoRA, DoRA": lambda: (_accepted("--use_dora true"), _accepted(f"{Q4} --deepspeed zero3")),
    "QLoRA and DoRA with FSDP2": lambda: (
        _accepted(f"{Q4} --backend fsdp"),
        _accepted("--backend fsdp --use_dora true"),
    ),
    "DoRA on quantized": lambda: (_fits(f"{Q4} --use_dora true --deepspeed zero3"),),
    "TP mixed": lambda: (_fits("--deepspeed zero2 --tp 2"), _fits("--deepspeed zero3 --tp 2")),
    "PP mixed": lambda: (_accepted("--deepspeed zero1 --pp 2"), _accepted("--deepspeed zero3 --pp 2")),
    "interleaved": lambda: (_accepted("--backend megatron --pp 2 --vpp 2"),),
    "start with ZeRO 3": lambda: (_resumes_on_megatron(),),
    "MoE": lambda: (_accepted("--backend fsdp --ep 2"), _accepted("--backend megatron --ep 2")),
    "context parallel": lambda: (_accepted("--backend fsdp --cp 2"), _accepted("--backend megatron --cp 2")),
    "Ulysses": lambda: (_accepted("--backend fsdp --ulysses 2"), _accepted("--deepspeed zero2 --ulysses 2")),
    "FP8": lambda: [_accepted(f"--backend {name} --fp8 hybrid --bf16") for name in ("torch", "fsdp", "megatron")],
    "Megatron for the vision": lambda: (_accepted("--backend megatron --deepspeed zero3"),),
    "continued": lambda: (_accepted("--train_type cpt"),),
    "DPO": lambda: (_objectives("dpo", "kto", "orpo", "simpo", "cpo"),),
    "GRPO": lambda: (_objectives("grpo", "ppo"),),
    "reward models": lambda: (_objectives("rm", "seq_cls"),),
    "embeddings": lambda: (_objectives("embedding", "reranker"),),
    "VQA": lambda: ("image" in NAMES, "data.bounding_boxes" in core_fields()),
    "packing": lambda: (_packs_images(),),
    "audio": lambda: ("audio" in NAMES,),
    "video": lambda: ("video" in NAMES, "data.video_times" in core_fields()),
    "any-to-any": lambda: ("any_to_any" in TASKS,),
    "GaLore": lambda: [_accepted(f"--optim {name} --train_type full") for name in ("galore", "q_galore")],
    "FlashAttention-2": lambda: (_accepted("--attn_impl fa2"), _accepted("--attn_impl fa3")),
    "Liger": lambda: (_accepted("--use_liger_kernel true --gradient_checkpointing true"),),
    "activations": lambda: (_accepted("--activation_cpu_offload true"),),
    "AWQ": lambda: ({"awq", "gptq", "w8a8"} <= _schemes(),),
    "vLLM": lambda: (_engines("vllm"), "serve" in swift_commands()),
    "SGLang": lambda: (_engines("sglang", "lmdeploy"),),
    "a GUI": lambda: ("ui" in swift_commands(),),
    "a recommended": lambda: ("plan" in swift_commands(),),
    "time in communication": lambda: (
        "logging.time_breakdown" in core_fields(),
        "logging.collectives" in core_fields(),
    ),
    "NPU": lambda: (_accepted("--device npu"),),
}
"""Beginning of a row → what it rests on: all of it is there (yes), some of it (partly), or nothing (no)."""


def test_features_of_articles_are_those_of_the_code(place: Path) -> None:
    """Each row of the table says yes, partly or no, as the code has it, and no row lacks a check."""
    table = PAGE.read_text().split("## Features that articles mention")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (.*?) \| \[?(yes|partly|no)\b", table, re.MULTILINE))
    assert len(rows) == table.count("\n| ") - 1, "a row says neither yes, partly nor no"
    found = {}
    for row in rows:
        checks = [check for beginning, check in FEATURES.items() if row.startswith(beginning)]
        assert len(checks) == 1, row
        there = checks[0]()
        found[row] = "yes" if all(there) else "partly" if any(there) else "no"
    assert found == rows
    assert len(rows) == len(FEATURES)
