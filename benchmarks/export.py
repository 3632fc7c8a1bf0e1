"""Compare merging adapters into a model folder with `cp` of the same bytes and with PEFT, at three model sizes.

Each side is a process that does its work twice and measures the second time. The time to compare the export with the
training state is reported separately.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.commands import RUNS, SWIFT, call, environment
from benchmarks.facts import Figure, MemoryWatch
from benchmarks.inputs import CHATS, HUGE, LARGE, MIDDLE, WORK, ensure

SIZES = {"28M": MIDDLE, "84M": LARGE, "447M": HUGE}
ROUNDS = 3
LORA = ("--train_type", "lora", "--max_steps", "1", "--per_device_train_batch_size", "1", "--save_steps", "1")
"""An adapter like any other: what it has learned does not matter here."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure(huge=not quick)
    sizes, rounds = (dict(list(SIZES.items())[:1]), 1) if quick else (SIZES, ROUNDS)
    found = {size: _found(size, model, rounds) for size, model in sizes.items()}
    figures = []
    for size, sides in found.items():
        figures += [
            Figure(
                f"{size}: export over cp of the same bytes, synced", sides.ratio("swift", "cp", "seconds"), at_most=1.5
            ),
            Figure(f"{size}: export over PEFT's, synced", sides.ratio("swift", "peft", "seconds"), at_most=1.0),
            Figure(f"{size}: memory of the export over PEFT's", sides.ratio("swift", "peft", "mib"), at_most=0.5),
            Figure(f"{size}: export with its comparison over without", sides.ratio("verified", "swift", "seconds")),
        ]
    return figures, {"rounds": rounds, "found": {size: sides.taken for size, sides in found.items()}}


def _found(size: str, model: Path, rounds: int) -> Rounds:
    output = ("--output_dir", str(RUNS), "--logging.run_name", f"export-{size}", "--report_to", "jsonl")
    shutil.rmtree(RUNS / model.name / f"export-{size}", ignore_errors=True)
    call([SWIFT, "sft", "--model", str(model), "--dataset", str(CHATS), *LORA, *output], environment())
    checkpoint = (RUNS / model.name / f"export-{size}" / "last-checkpoint").resolve()

    def side(name: str) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.export", name, str(checkpoint), str(WORK / "exported")]
        return dict(json.loads(call(command, environment()).strip().splitlines()[-1]))

    return Rounds({name: partial(side, name) for name in SIDES}, rounds)


def copy(checkpoint: Path, out: Path) -> None:
    """Copy the bytes of the model, whose files have just been read."""
    out.mkdir()
    for file in _base(checkpoint).glob("*.safetensors"):
        shutil.copyfile(file, out / file.name)
    _sync(out)


def export(checkpoint: Path, out: Path, verify: str = "none") -> None:
    from swift.config.sections import ExportOptions
    from swift.export.run import export_checkpoint

    export_checkpoint(checkpoint, to="hf", options=ExportOptions(out=out, verify=verify), say=lambda _: None)


def verified(checkpoint: Path, out: Path) -> None:
    export(checkpoint, out, "transformers")


def peft(checkpoint: Path, out: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(_base(checkpoint), dtype=torch.float32)
    PeftModel.from_pretrained(base, checkpoint).merge_and_unload().save_pretrained(out)
    AutoTokenizer.from_pretrained(_base(checkpoint)).save_pretrained(out)
    _sync(out)


SIDES: dict[str, Callable[[Path, Path], None]] = {"cp": copy, "swift": export, "verified": verified, "peft": peft}


def _base(checkpoint: Path) -> Path:
    return Path(json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"])


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def main() -> None:
    side, checkpoint, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    work = SIDES[side]
    work(checkpoint, out)  # libraries are imported, and the files are in the kernel's cache
    shutil.rmtree(out)
    watch = MemoryWatch()
    started = time.perf_counter()
    work(checkpoint, out)
    seconds = time.perf_counter() - started
    watch.mark("all")
    print(json.dumps({"seconds": seconds, "mib": watch.end()["all"]}))
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
