"""Files and folders that a configuration names for a run: pipes, devices, folders, text that is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judge import Case, judge, sampled

TRAIN = ("sft", "--model", "model", "--dataset", "data.jsonl", "--max_steps", "1", "--backend.device", "cpu")
LOOP = "{% for a in range(99999) %}"
ENDLESS = LOOP * 3 + "{% endfor %}" * 3


def _with(flag: str, name: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()
        (folder / "latin").write_bytes(b"caf\xe9")
        (folder / "loop").symlink_to("loop")
        (folder / "broken").write_text("{% if %}")
        (folder / "endless").write_text(ENDLESS)
        with (folder / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        return [*TRAIN, flag, name]

    return build


def _cases() -> Iterator[Case]:
    for name in ("pipe", "folder", "/dev/zero", "loop", "sparse", "latin", "gone", "data.jsonl/x", "broken", "endless"):
        yield Case(f"chat template: {name}", _with("--chat_template", name), names=(name,))
    for name in ("latin", "pipe", "/dev/zero", "loop", "data.jsonl/x"):
        yield Case(f"cache: {name}", _with("--data.cache", name), names=(name, "--data.cache"))
        yield Case(f"output: {name}", _with("--output_dir", name), names=(name, "--output_dir"))
    for name in ("pipe", "folder", "/dev/zero", "loop", "latin", "gone", "data.jsonl/x"):
        yield Case(f"resume: {name}", _with("--resume_from_checkpoint", name), names=(name,))
    yield Case("output: 1,500 folders", _with("--output_dir", "a/" * 1500), names=("--output_dir",))


CASES = list(_cases())


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_file_that_a_run_is_told_of_is_answered_clearly(
    case: Case, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.name.endswith("endless"):
        monkeypatch.setattr("swift.models.tokenizer.PATIENCE", 1.0)
    judge(case, template)
