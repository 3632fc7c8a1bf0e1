"""Rewards that users name: installed ones, functions as TRL has them, ms-swift's plugin files; and `swift rewards`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import typed
from safetensors.numpy import save_file

from swift.contracts import RewardItem
from swift.errors import ConfigError, DataError, PluginError
from swift.parsing import parse
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import check_columns, select_rewards

FUNCTIONS = """
import re
import neighbour  # stands next to this file


def text_style(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def message_style(prompts, completions, completion_ids, solution, level=None):
    texts = [completion[0]["content"] for completion in completions]
    assert [prompt[-1]["role"] for prompt in prompts] == ["user"] * len(texts)
    assert completions[0][0]["role"] == "assistant"
    return [float(text == right) + len(ids) / 10 for text, right, ids in zip(texts, solution, completion_ids)]


def all_at_once(completions, **kwargs):
    return [len(completions)] * len(completions)


all_at_once.batched = True


def plain(completions):
    match = re.search("b+", completions[0])
    return [None if match is None else completions[0].count("b")]
"""
PLUGIN = """
import asyncio
from typing import List

from swift.plugin import ORM, orms
from swift.rewards import AsyncORM
from swift.rewards import orms as same
from swift.utils import get_logger

logger = get_logger()
assert orms is same


class Dummy(ORM):
    def __call__(self, completions, **kwargs) -> List[float]:
        return [1.0 if len(completion) > 3 else 0.0 for completion in completions]


class Told(ORM):
    def __init__(self, args=None, **kwargs):
        super().__init__(args)
        self.most = args.soft_max_length

    def __call__(self, completions, solution, messages, **kwargs):
        assert messages[0][-1] == {"role": "assistant", "content": completions[0]}
        return [self.most + len(ids) for ids in kwargs["response_token_ids"]]


class Slow(AsyncORM):
    async def __call__(self, completions, **kwargs):
        async def one(text):
            await asyncio.sleep(0)
            return len(text)

        return await asyncio.gather(*[one(text) for text in completions])


orms["dummy"] = Dummy
orms["told"] = Told
orms["slow"] = Slow
orms["exact_match"] = Dummy
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    functions, plugin = tmp_path / "mine.py", tmp_path / "plugin.py"
    functions.write_text(FUNCTIONS)
    plugin.write_text(PLUGIN)
    (tmp_path / "neighbour.py").write_text("")
    return functions, plugin


def items(*texts: str) -> list[RewardItem]:
    asked = [{"role": "user", "content": "?"}]
    return [RewardItem(asked, text, [1] * len(text), columns={"solution": "abb"}) for text in texts]


def test_trl_reward_functions_get_strings_for_messages(files: tuple[Path, Path]) -> None:
    """Functions of TRL's signature get texts that are messages too."""
    names = ["text_style", "message_style", "all_at_once", "plain"]
    options = RewardOptions(reward_workers=1)
    selected = select_rewards([f"{files[0]}:{name}" for name in names], options)
    assert [reward.name for reward in selected] == names
    assert [reward.wants for reward in selected] == [(), ("solution",), (), ()]
    with RewardPool(selected, options) as pool:
        abb, c = pool.score(items("abb", "c"))
    assert {name: abb[name].value for name in names} == {
        "text_style": 3.0,
        "message_style": 1.3,
        "all_at_once": 2.0,
        "plain": 2.0,
    }
    assert c["plain"].value is None
    assert c["plain"].failure is None


def test_ms_swift_plugin_files_work_unchanged(files: tuple[Path, Path]) -> None:
    """Plugin files of ms-swift work unchanged and leave this process as it was."""
    names = ("dummy", "told", "slow", "exact_match", "number")
    options = RewardOptions(
        reward_funcs=names,
        external_plugins=(files[1],),
        soft_max_length=100,
        reward_workers=1,
        reward_weights=(1, 2, 3, 4, 5),
    )
    selected = select_rewards(names, options)
    assert [reward.weight for reward in selected] == [1, 2, 3, 4, 5]
    assert [reward.wants for reward in selected] == [(), ("solution",), (), (), ("solution",)]
    with RewardPool(selected, options) as pool:
        found = pool.score(items("abb", "abba"))
    assert [[verdicts[name].value for name in names] for verdicts in found] == [
        [0, 103, 3, 0, None],
        [1, 104, 4, 1, None],
    ]
    assert not {"swift.rewards", "swift.plugin", "swift.utils"} & sys.modules.keys()


def refused(names: list[str], **options: object) -> str:
    with pytest.raises((ConfigError, PluginError)) as caught:
        select_rewards(names, RewardOptions(reward_funcs=tuple(names), **options))
    return str(caught.value)


def test_what_cannot_be_selected_is_refused_with_what_to_type(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert "Did you mean 'number'?" in refused(["numbr"])
    assert "FILE.py:FUNCTION" in refused(["numbr"])
    assert "Registered by external_plugins: dummy, exact_match, slow, told" in refused(
        ["dumy"], external_plugins=(files[1],)
    )
    assert "the file does not exist" in refused([f"{tmp_path}/other.py:f"])
    assert "mine.py:FUNCTION" in refused([str(files[0])])
    assert "has no function 'nothing'" in refused([f"{files[0]}:nothing"])
    assert "reward_weights has 1 values for 2 rewards (number, format)" in refused(
        ["number", "format"], reward_weights=(1.0,)
    )
    assert "Two rewards have the name 'number'" in refused(["number", "number"])
    assert "Did you mean 'tolerance'?" in refused(["number"], reward_options={"number": {"tolerances": 1}})
    assert "reward_options.number.tolerance" in refused(["number"], reward_options={"number": {"tolerance": 7}})
    assert "no reward of this name is selected" in refused(["number"], reward_options={"numbers": {}})
    assert "'format' has no options" in refused(["format"], reward_options={"format": {"x": 1}})


def test_a_file_that_cannot_be_run_is_refused_with_its_own_lines(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module\n")
    said = refused([f"{file}:f"])
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said
    assert f'File "{file}", line 1' in said
    assert "swift_rl" not in said
    file.write_text("import os\nos._exit(5)\n")
    assert "ended itself with the exit code 5" in refused([f"{file}:f"])


def test_missing_reward_column_is_refused_before_run(files: tuple[Path, Path]) -> None:
    """A column that a reward wants and no row has is an error before the run."""
    selected = select_rewards(["number", f"{files[0]}:plain"], RewardOptions())
    check_columns(selected, ["solution"])
    with pytest.raises(DataError, match=r"'number' needs the column 'solution'.*Did you mean 'solutions'"):
        check_columns(selected, ["solutions"])


@pytest.fixture
def completions(tmp_path: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "solution": "4"},
        {"prompt": "3+3?", "completion": "7", "solution": "6"},
    ]
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_command_shows_rewards_of_stored_completions(
    completions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = typed(
        ["rewards", "test", str(completions), "--reward_funcs", "number", "format", "--reward_weights", "2", "1"],
        tmp_path,
    )
    assert done.code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[1:3] == [["1", "1", "0", "2", "4"], ["2", "0", "0", "0", "7"]]
    assert "number: mean 0.5, 0 to 1" in done.output


def test_command_repeats_row_with_printed_output(completions: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "shaky.py"
    file.write_text("def shaky(completions):\n    print('looking')\n    return [1 / (completions[0] == '4')]\n")
    done = typed(["rewards", "test", str(completions), "--reward_funcs", f"{file}:shaky", "--row", "2"], tmp_path)
    assert done.code == 1
    assert "shaky: ZeroDivisionError" in done.output
    assert "    looking\n" in done.output
    assert f'File "{file}", line 3' in done.output
    assert "line 2: 7" in done.output
    assert typed(["rewards", "test", str(completions), "--reward_funcs", "number", "--row", "3"], tmp_path).code == 2


def test_command_reads_rounds_with_tokens(tmp_path: Path) -> None:
    prompts = [{"messages": [{"role": "user", "content": "?"}], "columns": {"solution": "4"}}]
    lines = [{"round": 3, "prompts": prompts}]
    lines += [{"prompt": 0, "text": text, "finish_reason": "stop"} for text in ("4", "five")]
    file = tmp_path / "round-000003.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arrays = {"lengths": np.array([2, 3]), "token_ids": np.arange(5, dtype=np.int32)}
    save_file(arrays, file.with_suffix(".safetensors"))
    done = typed(
        ["rewards", "test", str(file), "--reward_funcs", "number", "length", "--max_completion_length", "10"], tmp_path
    )
    assert done.code == 0, done.output
    lines_shown = [line.split()[:3] for line in done.output.splitlines()]
    assert lines_shown[1:3] == [["1", "1", "-0.2"], ["2", "0", "-0.3"]]


def test_file_without_completions_names_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for text, said in (
        ('{"prompt": "a"}', "line 1: the row has no completion"),
        ("{", "line 1: invalid JSON"),
        ("", "no completions"),
    ):
        file.write_text(text)
        done = typed(["rewards", "test", str(file), "--reward_funcs", "format"], tmp_path)
        assert done.code == 2
        assert said in done.output


@pytest.mark.parametrize(
    "named", ["objective:\n  external_plugins: [plugin.py]\n", "reward_funcs: [number, 'mine.py:reward']\n"]
)
def test_config_file_cannot_enable_python_files(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration file cannot decide that Python files are run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"model: m\ndataset: d.jsonl\nobjective.name: grpo\n{named}")
    typed_too = ["--external_plugins", "plugin.py", "--reward_funcs", "number", "mine.py:reward"]
    with pytest.raises(ConfigError) as caught:
        parse(["run.yaml"], "train")
    file = "plugin.py" if "plugin" in named else "mine.py:reward"
    assert f"which would run {file}" in caught.value.message
    assert "run.yaml:" in caught.value.message
    assert f" {file}" in str(caught.value.hint)
    parse(["run.yaml", *typed_too], "train")
    (tmp_path / "run.yaml").write_text("model: m\ndataset: d.jsonl\nobjective.name: grpo\nreward_funcs: number\n")
    parse(["run.yaml"], "train")
