"""What all tests share: a quiet machine, no network, caches of their own, and GPU tests only where there is a GPU."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import processors
import pytest
from tiers import Groups, is_full, is_rare, longest_first

pytest_plugins = ["times"]

# Before anything imports torch or huggingface_hub, which read these once. Commands that tests start inherit them.
CACHE = Path(tempfile.mkdtemp(prefix="swift-tests-cache-"))
LEDGER = CACHE / "plans.jsonl"
# What processes leave behind that are killed, as many tests do with theirs, goes with the rest. Folders of tests stay
# where they can be looked into.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
tempfile.tempdir = os.environ["TMPDIR"] = str(CACHE)
os.environ.update(
    OMP_NUM_THREADS="1",
    # Its own allocator keeps a list by thread, which a process that is forked after threads have used it runs around
    # for ever: sounds are prepared on threads.
    MKL_DISABLE_FAST_MM="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_HOME=str(CACHE / "huggingface"),
    XDG_CACHE_HOME=str(CACHE),
    # Kernels for the instructions that the processor reports. Without this every process tries each set of them first,
    # by compiling a program and starting Python with torch, which takes longer than most kernels.
    TORCHINDUCTOR_VEC_ISA_OK="1",
    # In the process that asks for it: a pool of others would each import torch first.
    TORCHINDUCTOR_COMPILE_THREADS="1",
    # Of one test each: what runs of others took would be the bars of its plans.
    SWIFT_PLAN_LEDGER=str(LEDGER),
    # Of the whole session: what one worker has compiled, the others find.
    TORCHINDUCTOR_CACHE_DIR=os.environ.setdefault("SWIFT_TESTS_COMPILED", str(CACHE / "inductor")),
    # Also of the whole session: what vLLM has found out about classes of models, by importing all of itself for each.
    VLLM_CACHE_ROOT=os.environ.setdefault("SWIFT_TESTS_VLLM", str(CACHE / "vllm")),
    # The interpreter that has imported vLLM, of all workers, and the process that it ends with.
    SWIFT_TESTS_IMPORTED=os.environ.setdefault("SWIFT_TESTS_IMPORTED", str(CACHE / "imported")),
    SWIFT_TESTS_OWNER=os.environ.setdefault("SWIFT_TESTS_OWNER", str(os.getpid())),
    # Enough for trials of the conformance kits to save on the way and to resume. `make conformance` and `make matrix`
    # make ten.
    SWIFT_TESTING_STEPS=os.environ.get(
        "SWIFT_TESTING_STEPS", "10" if {"SWIFT_WHOLE_KIT", "SWIFT_WHOLE_MATRIX"} & os.environ.keys() else "5"
    ),
    # And what these kits compare with, which all processes of the session share too.
    SWIFT_TESTING_REFERENCES=os.environ.get("SWIFT_TESTING_REFERENCES", str(CACHE / "references")),
)
# Hundreds of processes import the same modules: they are compiled once, whatever the machine's own setting.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts what it puts into the background with Ctrl-C ignored, which all tests of signals would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
processors.take_turns()
# What tests write need not survive a loss of power. `fsync` waits for the disk, and the workers wait for each other's.
os.fsync = os.fdatasync = lambda handle: None
# Looking for garbage so often costs up to a quarter of the time of tests that open many models. What garbage there is
# at a fork may have threads, which the fork has not, and would end it with an abort: there it is left alone.
gc.set_threshold(20_000, 20, 20)
os.register_at_fork(after_in_child=gc.freeze)
importlib.import_module("swift_testing.forks")  # for all that is forked here
importlib.import_module("swift.models.quiet").import_torchvision()  # if installed: before tests import transformers


@pytest.fixture(autouse=True)
def no_earlier_runs() -> None:
    """Begin with an empty ledger of plans."""
    LEDGER.unlink(missing_ok=True)


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let tests that share what takes long to make stay in one worker."""
    return Groups(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.parent.name == "export_vllm":
        item.add_marker(pytest.mark.vllm)
    if is_full(item):
        item.add_marker(pytest.mark.full)
    if is_rare(item):
        item.add_marker(pytest.mark.rare)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=longest_first)
    if "SWIFT_WHOLE_KIT" not in os.environ and (rare := [item for item in items if item.get_closest_marker("rare")]):
        config.hook.pytest_deselected(items=rare)
        items[:] = [item for item in items if not item.get_closest_marker("rare")]
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not needing_gpu or os.environ.get("SWIFT_GPU_TESTS_ON") == "cpu":  # a dry run of the tests themselves
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing_gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and this machine has none"))
