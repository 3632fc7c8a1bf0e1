"""One side of the benchmark of exports, in a process of its own.

`python -m benchmarks.export_sides SIDE CHECKPOINT OUT`

Prints seconds, and the most memory above what libraries take, as JSON. Every side leaves its files synced.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.facts import MemoryWatch


def copy(checkpoint: Path, out: Path) -> None:
    """Copy the bytes of the model, whose files have just been read."""
    out.mkdir()
    for file in _base(checkpoint).glob("*.safetensors"):
        shutil.copyfile(file, out / file.name)
    _sync(out)


def swift(checkpoint: Path, out: Path, verify: str = "none") -> None:
    from swift.config.sections import ExportOptions
    from swift.export.run import export_checkpoint

    export_checkpoint(checkpoint, to="hf", options=ExportOptions(out=out, verify=verify), say=lambda _: None)


def verified(checkpoint: Path, out: Path) -> None:
    swift(checkpoint, out, "transformers")


def peft(checkpoint: Path, out: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(_base(checkpoint), dtype=torch.float32)
    PeftModel.from_pretrained(base, checkpoint).merge_and_unload().save_pretrained(out)
    AutoTokenizer.from_pretrained(_base(checkpoint)).save_pretrained(out)
    _sync(out)


SIDES: dict[str, Callable[[Path, Path], None]] = {"cp": copy, "swift": swift, "verified": verified, "peft": peft}


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
