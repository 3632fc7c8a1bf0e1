"""Compare swift with ms-swift, installed from the package index into a separate environment.

Both train the same model on the same chats from the command line: full fine-tuning in fp32, batch 8, a log line for
each step. ms-swift runs with its defaults, which recompute activations, and without recomputation. Two defaults that
would slow it down are changed: two micro-batches per step, and a request to the ModelScope hub about a local model. A
short run of each comes first, so that neither compiles modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.commands import PACKED, PADDED, RUNS, SWIFT, TRAINING, Course, call, environment, watch
from benchmarks.facts import Figure
from benchmarks.inputs import MODEL, ROOT, SOME_CHATS, WORK, ensure, take_chats

VERSION = "4.6.0"
ALONGSIDE = ("torch", "transformers")
"""Packages that both environments have in the same version."""
HOME = WORK / f"ms-swift-{VERSION}"
MS_SWIFT = HOME / "bin" / "swift"

ONE_EPOCH = ("--num_train_epochs", "1", "--logging_steps", "1")
THEIRS = (
    "--tuner_type", "full", "--torch_dtype", "float32", *TRAINING[2:], "--gradient_accumulation_steps", "1",
    "--use_hf", "true", "--split_dataset_ratio", "0", *ONE_EPOCH,
)  # fmt: skip
CHATML = ("--model_type", "qwen3", "--template", "chatml")
COMPILED = ("--train.compile", "true")
WITHOUT_RECOMPUTING = ("--gradient_checkpointing", "false")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    install()
    rounds = 1 if quick else 2
    theirs = partial(train_ms_swift, "ms-swift", MODEL, SOME_CHATS, *CHATML, *PADDED)
    variants: dict[str, Callable[[], Course]] = {
        "ms-swift": theirs,
        "padded": partial(train_swift, "padded", MODEL, SOME_CHATS, *PADDED),
        "ms-swift, nothing recomputed": partial(theirs, *WITHOUT_RECOMPUTING),
        "packed": partial(train_swift, "packed", MODEL, SOME_CHATS, *PACKED),
        "packed, compiled": partial(train_swift, "packed-compiled", MODEL, SOME_CHATS, *PACKED, *COMPILED),
    }
    take_chats(64)
    for name in ("ms-swift", "packed", "packed, compiled"):  # modules are compiled, and not counted
        variants[name]()
    take_chats(96 if quick else 480)
    tokens = _tokens()
    runs = Rounds(variants, rounds)
    speed = partial(runs.ratio, value=lambda course: course.rate(tokens))
    first = runs.ratio("packed", "ms-swift", Course.first_step)
    figures = [
        Figure("real tokens/s over ms-swift's, packed", speed("packed", "ms-swift"), at_least=3.0),
        Figure("the same, packed and compiled", speed("packed, compiled", "ms-swift"), at_least=3.0),
        Figure("real tokens/s over ms-swift's, padded alike", speed("padded", "ms-swift")),
        Figure("the same, nothing recomputed by either, packed", speed("packed", "ms-swift, nothing recomputed")),
        Figure("the same, nothing recomputed by either, padded", speed("padded", "ms-swift, nothing recomputed")),
        Figure("time to the first step over ms-swift's", first, at_most=1 / 3),
    ]
    details = {
        "ms-swift": VERSION,
        "tokens": tokens,
        "tokens_per_second": runs.medians(lambda course: course.rate(tokens)),
        "seconds_to_first_step": runs.medians(Course.first_step),
    }
    return figures, details


def install() -> None:
    """Put ms-swift into its environment, unless it is there."""
    if MS_SWIFT.is_file():
        return
    print(f"Installing ms-swift {VERSION} into {HOME.relative_to(ROOT)}", flush=True)
    pins = [f"{package}=={metadata.version(package)}" for package in ALONGSIDE]
    install_into(HOME, f"ms-swift=={VERSION}", *pins)


def install_into(home: Path, *packages: str) -> None:
    """Make an environment of its own for a third-party program: with uv, from wherever pip's settings point."""
    sys.path.append(str(ROOT / "tools"))
    import pip_settings

    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-config"]
    command += ["--python", str(home / "bin" / "python"), *packages]
    if subprocess.run(command, env={**pip_settings.for_uv(), **os.environ}).returncode:
        shutil.rmtree(home)
        raise SystemExit(f"{' '.join(packages)} cannot be installed: see above.")


def _tokens() -> int:
    count = (
        "import json, sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]); "
        "print(sum(len(t.apply_chat_template(json.loads(line)['messages'], return_dict=True)['input_ids']) "
        "for line in open(sys.argv[2])))"
    )
    return int(call([sys.executable, "-c", count, str(MODEL), str(SOME_CHATS)], environment()))


def train_ms_swift(name: str, model: Path, data: Path, *more: str) -> Course:
    output = RUNS / name
    command = [str(MS_SWIFT), "sft", "--model", str(model), "--dataset", str(data), *THEIRS, *more]
    return watch([*command, "--output_dir", str(output)], environment(), output)


def train_swift(name: str, model: Path, data: Path, *more: str) -> Course:
    """Watch `swift sft`, with a cache of tokenised data of its own: every run tokenises, as ms-swift does."""
    output = RUNS / name
    command = [SWIFT, "sft", "--model", str(model), "--dataset", str(data), *TRAINING, *ONE_EPOCH, *more]
    return watch([*command, "--output_dir", str(output), "--data.cache", str(output / "cache")], environment(), output)
