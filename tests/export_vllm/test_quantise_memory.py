"""What quantising holds in memory: a block and what is known about it, however many blocks there are."""

from __future__ import annotations

import threading
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

WIDTH = 512
FEW, MANY = 2, 10
"""Blocks of the smaller model, and of the larger one."""


def anonymous() -> int:
    """Bytes that are not backed by a file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def measured(few: str, many: str, data: str, out: str, answer: Any) -> None:
    """The most that quantising each takes above what was there before; in a process of its own."""
    from heap import show_blocks

    from swift.config.sections import ExportOptions
    from swift.export.run import export_checkpoint

    show_blocks(2**20)
    torch.set_num_threads(1)
    peaks = []
    for number, quantised in enumerate((few, few, many)):  # the first brings libraries, and what they keep
        start, over, peak = anonymous(), threading.Event(), [0]

        def watch(start: int = start, over: threading.Event = over, peak: list[int] = peak) -> None:
            while not over.is_set():
                peak[0] = max(peak[0], anonymous() - start)
                time.sleep(0.002)

        thread = threading.Thread(target=watch)
        thread.start()
        options = ExportOptions(
            quant="w8a8", verify="none", out=Path(out, f"quantised-{number}"), calibration_dataset=(data,),
            calibration_samples=24, quant_tolerance=10.0, shard_size_gb=0.005,
        )  # fmt: skip
        export_checkpoint(quantised, to="hf", options=options, say=lambda _: None)
        over.set()
        thread.join()
        peaks.append(peak[0])
    answer.put(peaks[1:])


def peaks_of(folder: Path, few: Path, many: Path) -> tuple[int, int]:
    """Most memory that quantising the one and the other takes."""
    from swift_demo.task import write_data

    data, _ = write_data(folder)
    context = get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=measured, args=(str(few), str(many), str(data), str(folder), answers))
    process.start()
    peaks = answers.get(timeout=600)
    process.join()
    return peaks[0], peaks[1]


@pytest.mark.rare
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_memory_does_not_grow_with_the_number_of_blocks(tmp_path: Path) -> None:
    from swift_demo.model import write_model

    models = [write_model(tmp_path / str(layers), hidden=WIDTH, layers=layers) for layers in (FEW, MANY)]
    small, large = ((model / "model.safetensors").stat().st_size for model in models)
    few, many = peaks_of(tmp_path, *models)
    assert large > 4 * small
    assert many < 1.3 * few + 5_000_000, (few, many)  # a shard more, at most
    assert many < large
