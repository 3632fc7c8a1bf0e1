"""Plugins that print where a program reads what a command prints: theirs goes to standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from plugin_maker import hook, install, module_of, plugin

from swift.cli.main import run

PRINTS = """
import os, subprocess, sys
print("hello from {where}")
sys.__stdout__.write("hello from the stream in {where}")
os.write(1, b"hello from C in {where}")
subprocess.run([{shell!r}, "-c", "echo hello from a process in {where}"])
"""
WAYS = ("print", "stream", "C", "process")


def printing(where: str) -> str:
    return PRINTS.format(where=where, shell="/bin/sh").strip()


@pytest.mark.parametrize(
    ("argv", "read", "wheres"),
    [
        (["plugins", "--check", "--json"], json.loads, ["import"]),
        (["doctor", "--json"], json.loads, ["import"]),
        (["config", "schema"], json.loads, ["import"]),
        (
            ["config", "show", "sft", "--model", "model", "--dataset", "data.jsonl", "--backend", "hostile"],
            yaml.safe_load,
            ["import", "swift_check_layout"],
        ),
        (
            ["plan", "model", "--gpus", "2xA100", "--train_type", "full", "--backend", "hostile", "--json"],
            json.loads,
            ["import", "swift_estimate_memory"],
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_plugins_print_is_not_part_of_a_result(
    argv: Sequence[str],
    read: Callable[[str], Any],
    wheres: Sequence[str],
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    module = module_of(f"prints, {argv[0]} {argv[1]}")
    hooks = [hook(each, printing(each)) for each in wheres[1:]]
    source = f"{printing('import')}\n{plugin('backend', *hooks)}"
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "here").mkdir()
    install(tmp_path / "here", module, source, f"[swift.backends]\nhostile = {module}:Plugin\n")
    monkeypatch.setenv("SWIFT_PLUGINS", f"{module.replace('_', '-')},swift-core,swift-plan")
    monkeypatch.chdir(template)
    run(argv)
    printed = capfd.readouterr()
    assert read(printed.out)
    assert "hello" not in printed.out
    for where in wheres:
        assert f"hello from {where}" in printed.err
        assert f"hello from C in {where}" in printed.err
        assert f"hello from a process in {where}" in printed.err
