"""The folder of a run: one per run, readable by other commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from swift.config.sections import Config
from swift.errors import ConfigError
from swift.train.run_folder import create_run_folder, lock_run_folder, write_run_files


def config_in(tmp_path: Path, **sections) -> Config:
    logging = {"output": str(tmp_path / "output"), **sections.pop("logging", {})}
    return Config.model_validate({"logging": logging, **sections})


def test_runs_are_numbered_under_the_models_last_name(tmp_path):
    config = config_in(tmp_path)
    first, second = (create_run_folder(config, "Qwen/Qwen3-0.6B") for _ in range(2))
    assert first.parent == second.parent == tmp_path / "output" / "Qwen3-0.6B"
    assert re.fullmatch(r"v0-\d{8}-\d{6}", first.name)
    assert re.fullmatch(r"v1-\d{8}-\d{6}", second.name)


def test_numbers_count_on_from_the_highest_and_not_by_letters(tmp_path):
    (tmp_path / "output" / "m" / "v10-20260101-000000").mkdir(parents=True)
    (tmp_path / "output" / "m" / "v9-20260101-000000").mkdir()
    assert create_run_folder(config_in(tmp_path), "m").name.startswith("v11-")


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path):
    config = config_in(tmp_path)
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: create_run_folder(config, "m"), range(64)))
    assert len(set(folders)) == 64


@pytest.mark.parametrize(
    ("model", "folder"),
    [("/models/my model/", "my-model"), ("../..", "model"), ("qwen-7b", "qwen-7b"), ("a/$(b)", "b")],
)
def test_a_models_name_becomes_a_tame_folder_name(tmp_path, model, folder):
    assert create_run_folder(config_in(tmp_path), model).parent == tmp_path / "output" / folder


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "output").write_text("a file")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "output"))) as caught:
        create_run_folder(config_in(tmp_path), "m")
    assert "--output_dir" in str(caught.value)


def test_taken_run_name_is_refused_unless_resuming(tmp_path):
    """A run name that is taken is refused unless the run resumes."""
    named = config_in(tmp_path, logging={"run_name": "trial"})
    folder = create_run_folder(named, "m")
    assert folder == tmp_path / "output" / "m" / "trial"
    (folder / "args.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds something already"):
        create_run_folder(named, "m")
    resuming = config_in(tmp_path, logging={"run_name": "trial"}, checkpoint={"resume": str(folder)})
    assert create_run_folder(resuming, "m") == folder


def test_second_run_in_locked_folder_is_refused(tmp_path):
    """A second run in the same folder is refused until the first is done."""
    with lock_run_folder(tmp_path), pytest.raises(ConfigError, match=r"Another run \(process \d+ on .*\) is writing"):
        lock_run_folder(tmp_path)
    lock_run_folder(tmp_path).release()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"Cannot write into .*gone: No such file"):
        lock_run_folder(tmp_path / "gone")


def test_a_run_that_was_killed_leaves_its_folder_free(tmp_path):
    code = (
        "import os, pathlib, sys; from swift.train.run_folder import lock_run_folder;"
        "lock = lock_run_folder(pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 9
    lock_run_folder(tmp_path).release()


def written_run(tmp_path) -> tuple[Path, Config]:
    config = config_in(
        tmp_path,
        model={"path": "Qwen/Qwen3-0.6B"},
        data={"train": ["日本語.jsonl#10"], "columns": {"a": "query"}},
        optim={"lr": 2e-5},
        backend={"name": "deepspeed", "stage": 2},
        objective={"name": "sft", "label_smoothing": 0.0},
        checkpoint={"resume": None},
    )
    folder = create_run_folder(config, config.model.path)
    plugins = {"deepspeed": "swift-backend-deepspeed 0.1.0"}
    write_run_files(folder, config, plugins, {"python": "3.11", "where": tmp_path})
    return folder, config


def test_the_written_configuration_reads_back_as_the_same_run(tmp_path):
    folder, config = written_run(tmp_path)
    values = yaml.safe_load((folder / "config.yaml").read_text())
    again = Config.model_validate(values)
    assert again.model_copy(update={"backend": None, "objective": None}) == config.model_copy(
        update={"backend": None, "objective": None}
    )
    assert values["backend"] == {"name": "deepspeed", "stage": 2}
    assert values["objective"] == {"name": "sft", "label_smoothing": 0.0}


def test_args_say_flatly_what_was_trained(tmp_path):
    folder, _ = written_run(tmp_path)
    args = json.loads((folder / "args.json").read_text())
    assert args["model.path"] == "Qwen/Qwen3-0.6B"
    assert args["backend.stage"] == 2
    assert args["data.train"] == ["日本語.jsonl#10"]
    assert args["plugins"] == {"deepspeed": "swift-backend-deepspeed 0.1.0"}
