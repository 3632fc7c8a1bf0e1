"""Errors for scripts: keywords and torchrun instead of flags, one message instead of a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swift import Swift, TrainerConfig, UnsupportedLayout
from swift.script import reworded
from swift_testing.subjects import conversations, write_jsonl, write_model

SCRIPT = """
from swift import Swift, TrainerConfig
Swift.from_config(TrainerConfig(model="tiny", dataset="rows.jsonl", tp=2))
"""


def _run(tmp_path: Path, code: str = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(code)
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_script_error_is_one_message_about_keywords(tmp_path: Path) -> None:
    """An error that ends a script is one message about keywords."""
    ended = _run(tmp_path)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("Error: The torch backend does not support parallel.tp 2.")
    assert "backend='deepspeed', or tp=1" in ended.stderr
    assert "--" not in ended.stderr


def test_traceback_is_shown_on_request_and_for_script_errors(tmp_path: Path) -> None:
    """The traceback is printed on request and for errors of the script itself."""
    assert 'File "' in _run(tmp_path, SWIFT_TRACEBACK="1").stderr
    own = _run(tmp_path, SCRIPT.replace(", tp=2", "") + "1 / 0\n")
    assert "ZeroDivisionError" in own.stderr
    assert "Traceback" in own.stderr


def test_multi_process_layout_names_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("swift_backend_fsdp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    write_model(tmp_path / "tiny")
    write_jsonl(tmp_path / "rows.jsonl", conversations(4))
    config = TrainerConfig(model="tiny", dataset="rows.jsonl", backend="fsdp", tp=2)
    with pytest.raises(UnsupportedLayout) as refused:
        Swift.from_config(config).train()
    assert "torchrun --nproc-per-node 2 train.py" in str(refused.value)
    assert "--nproc 2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Type --optim.lr 1e-5.", "Type learning_rate=1e-5."),
        ("Type --packing true", "Type packing=True"),
        ("Run: swift export R --to hf", "Run: swift export R --to hf"),
        ('Run: pip install "swift-core[fsdp]" --upgrade', 'Run: pip install "swift-core[fsdp]" --upgrade'),
        ("Type --flag_of_nobody 1", "Type --flag_of_nobody 1"),
    ],
)
def test_flags_become_keywords_outside_commands(text: str, expected: str) -> None:
    assert reworded(text) == expected


def test_unknown_import_is_unchanged() -> None:
    import swift

    assert not hasattr(swift, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from swift import nonsense")
