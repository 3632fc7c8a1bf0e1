"""What importing swift and starting a run change in a process, and which libraries they import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import conversations, write_jsonl

IMPORT = """
import gc, sys, threading

modules, finders, hooks = dict(sys.modules), list(sys.meta_path), list(sys.path_hooks)
import swift

assert sys.meta_path == finders and sys.path_hooks == hooks, "import hooks"
assert all(sys.modules.get(name) is module for name, module in modules.items()), "replaced modules"
added = {name.partition(".")[0] for name in sys.modules.keys() - modules.keys()} - sys.stdlib_module_names
assert added == {"swift"}, added
assert threading.enumerate() == [threading.main_thread()], "threads"
assert gc.isenabled(), "garbage collector"
"""
RUN = """
import gc, json, sys
import swift.cli.main

finders = list(sys.meta_path)
try:
    swift.cli.main.main()
except SystemExit as done:
    assert not done.code, done.code
ours = [repr(finder) for finder in sys.meta_path if finder not in finders and "swift" in type(finder).__module__]
print("FOUND", json.dumps([sorted(sys.modules), ours, gc.isenabled(), gc.get_freeze_count()]))
"""


def test_import_swift_has_no_side_effects() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_run_imports_no_unused_libraries(tiny: Path, tmp_path: Path) -> None:
    """A LoRA run imports only the libraries it uses, and resumes the garbage collector after its imports."""
    data = write_jsonl(tmp_path / "chats.jsonl", conversations(8))
    arguments = [
        "sft", "--model", str(tiny), "--dataset", str(data), "--backend.device", "cpu", "--tuner.kind", "lora",
        "--data.workers", "1", "--train.micro_batch", "4", "--train.max_steps", "1", "--logging.report_to", "jsonl",
        "--logging.output", str(tmp_path), "--data.cache", str(tmp_path / "cache"),
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    imported, finders, collects, frozen = json.loads(done.stdout.split("FOUND ")[1])
    assert {"bitsandbytes", "deepspeed", "vllm"}.isdisjoint(imported)
    assert finders == []
    assert collects
    assert frozen > 100_000, "imported modules are looked through for garbage again and again"
