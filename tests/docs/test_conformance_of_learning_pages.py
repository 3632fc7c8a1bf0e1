"""The commands of the pages about online learning run on tiny models with the same names: `make conformance`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kit_cases import WHOLE_KIT
from pages import DOCS, Command, blocks, commands
from reader import Reader

from swift_demo.model import write_model

pytestmark = pytest.mark.skipif(not WHOLE_KIT, reason="takes minutes: make conformance")

PAGES = ("online-learning", "ppo", "distillation", "write-an-environment", "sample")
PLUGIN = """
from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns


class Door(Env):
    async def reset(self, config):
        return "The door is closed.", {}, "You are in a room."

    async def step(self, action):
        return "Nothing happens.", 0.0, False, {}

    async def close(self):
        pass


class Tips(MultiTurnScheduler):
    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "user", "content": "Think again."})
        return {"infer_request": infer_request}


envs["door"] = Door
multi_turns["tips"] = Tips
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, rows and ms-swift plugins that the pages name."""
    work = tmp_path_factory.mktemp("reader") / "work"
    work.mkdir()
    write_model(work / "begun", hidden=32, layers=1)
    asked = [[{"role": "user", "content": f"What is {number} less {number}?"}] for number in range(9)]
    answered = [[*each, {"role": "assistant", "content": "0"}] for each in asked]
    rows = {
        "prompts": [{"messages": each, "solution": "0"} for each in asked],
        "questions": [{"messages": each, "solution": "0"} for each in asked],
        "chats": [{"messages": each} for each in answered],
        "pairs": [{"messages": each, "rejected_response": "No idea."} for each in answered],
    }
    for name, lines in rows.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (work / "plugin.py").write_text(PLUGIN)
    reader = Reader(work)
    for line in (
        "swift sft --model begun --dataset chats.jsonl --train_type full --learning_rate 1e-2 --max_steps 40 "
        "--per_device_train_batch_size 9 --save_strategy no --run_name sft --output_dir sft",
        "swift export sft/begun/sft/checkpoint-40 --to hf --out qwen3-0.6b",
        "cp -r begun qwen3-8b",
        "swift rm --model qwen3-0.6b --dataset pairs.jsonl --max_steps 1 --run_name rm --output_dir rm",
        "swift export rm/qwen3-0.6b/rm/checkpoint-1 --to hf --out rm-export",
    ):
        done = reader.types(Command(line))
        assert done.code == 0, f"{line}\n{done.printed}\n{done.complained}"
    return work


@pytest.mark.full
@pytest.mark.parametrize("name", PAGES)
def test_commands_of_page_run(work: Path, name: str) -> None:
    page = DOCS / "how-to" / f"{name}.md"
    for block in blocks(page):
        if block.file:
            (work / block.file).write_text(block.text, encoding="utf-8")
    reader = Reader(work)
    typed = [each for block in blocks(page) if block.language == "console" for each in commands(block)]
    typed += [Command(f"{sys.executable} {block.file}") for block in blocks(page) if block.file == "try_it.py"]
    assert typed
    for command in typed:
        done = reader.types(command)
        assert done.code == 0, f"{command.line}\n{done.printed}\n{done.complained}"
