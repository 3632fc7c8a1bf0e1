"""What a conversion holds in memory: a few of the largest tensor, however large the checkpoint."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from heap import show_blocks
from hf_trainer import model_of
from tiers import tiered
from tiny_runs import write_model

from swift.checkpoint import storage

LARGEST = 4 * 2**20
"""Bytes of the largest tensor in fp32: the gate of a block, 2048 × 512. The checkpoint is 30 times as large."""
ROUNDS = 3
"""How often it is looked: what is held is there each time, and what Python makes room for beside it is not."""
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 128,
}


def anonymous() -> int:
    """Bytes that are not backed by a file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Peak:
    """The most anonymous memory while it is entered, above that at the start."""

    def __enter__(self) -> Peak:
        self._start = anonymous()
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.bytes = max(self.bytes, anonymous() - self._start)
            time.sleep(0.002)


def write_trained(base: Path, folder: Path) -> None:
    """As the Trainer leaves it, without training: moments of ones."""
    model = model_of(base)
    model.save_pretrained(folder, max_shard_size="12MB")
    names = [name for name, _ in model.named_parameters()]
    decayed = [name for name in names if "norm" not in name]
    rest = [name for name in names if "norm" in name]
    shapes = {name: each.shape for name, each in model.named_parameters()}
    state = {
        number: {"step": torch.tensor(5.0), "exp_avg": torch.ones(shapes[name]), "exp_avg_sq": torch.ones(shapes[name])}
        for number, name in enumerate([*decayed, *rest])
    }
    common = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "initial_lr": 1e-3}
    groups = [
        {**common, "weight_decay": 0.1, "params": list(range(len(decayed)))},
        {**common, "weight_decay": 0.0, "params": list(range(len(decayed), len(names)))},
    ]
    torch.save({"state": state, "param_groups": groups}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5, "max_steps": 10}))


def measured(work: Callable[[], None], answer: Any) -> None:
    """In a process of its own; large blocks go back to the system at once, so that what is seen is what is held."""
    gc.collect()
    show_blocks(2**20)
    torch.set_num_threads(1)
    storage._STREAM_FILE_BYTES = LARGEST  # more by default, which would hide some of it
    work()  # once before: libraries, and what they keep
    found = []
    for _ in range(ROUNDS):
        with Peak() as peak:
            work()
        found.append(peak.bytes)
    answer.put(min(found))


class Both:
    """A conversion and its source, to be done in another process."""

    def __init__(self, to: str | None, source: Path, base: Path, out: Path) -> None:
        self.to, self.source, self.base, self.out = to, source, base, out

    def __call__(self) -> None:
        from swift_migrate.convert.run import convert_checkpoint
        from swift_migrate.convert.write import convert_to

        out = self.out / str(time.monotonic_ns())
        if self.to == "megatron":
            _learn_once()
        if self.to is not None:
            convert_to(self.source, to=self.to, out=out, say=lambda _: None)
        else:
            convert_checkpoint(self.source, model=str(self.base), out=out, adapter_config=None, say=lambda _: None)


def _learn_once() -> None:
    """Where Megatron's tensors lie is learned a layer at a time, by addresses of 8 bytes: not what is measured here."""
    from swift_backend_megatron import native_writer

    learn = native_writer.learn
    learned: list[Any] = []

    def once(source: Any) -> Any:
        learned.extend([] if learned else [learn(source)])
        return learned[0]

    if not getattr(learn, "once", False):
        once.once = True  # type: ignore[attr-defined]
        native_writer.learn = once


def peak_of(work: Both) -> int:
    context = get_context("fork")  # a new interpreter would import torch, transformers and an engine again
    answers = context.Queue()
    process = context.Process(target=measured, args=(work, answers))
    process.start()
    found: int = answers.get(timeout=240)
    process.join()
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from swift_migrate.convert.run import convert_checkpoint

    folder = tmp_path_factory.mktemp("memory")
    base = write_model(folder / "base", **SHAPE)
    write_trained(base, folder / "trained")
    total = sum(file.stat().st_size for file in (folder / "trained").iterdir())
    assert total > 30 * LARGEST
    stored = convert_checkpoint(
        folder / "trained", model=str(base), out=folder / "stored", adapter_config=None, say=lambda _: None
    )
    stored.rename(folder / "checkpoint-5")
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
@pytest.mark.parametrize("to", tiered([None, "trainer", "hf", "deepspeed", "megatron"], ["hf"]))
def test_memory_is_bounded_by_the_largest_tensor(place: Path, tmp_path: Path, to: str | None) -> None:
    if to in ("deepspeed", "megatron"):
        pytest.importorskip(f"swift_backend_{to}")
    largest = 2 * LARGEST if to == "megatron" else LARGEST  # gate and up are one of its tensors
    source = place / ("trained" if to is None else "checkpoint-5")
    peak = peak_of(Both(to, source, place / "base", tmp_path))
    assert peak < 3 * largest, f"{peak / largest:.1f} of the largest tensor"
