"""Training on images against ms-swift, installed from the package index: images a second, by the clock.

The same folder of a Qwen2-VL, the same photographs and questions, full fine-tuning of the language model in fp32 with
vision encoder and aligner frozen, batches of four, from the command line. Both log every step. ms-swift runs with its
defaults, which recompute activations, and without that. What it also needs: torchvision, which the index has for CUDA
alone and which this command lets it import; a file about videos in the model's folder, which it reads and does not
use; and the ids of Qwen's own vocabulary, which are written into its template, so the model has a vocabulary of that
size.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import image_inputs, ms_swift
from benchmarks.commands import RUNS, Course
from benchmarks.facts import Figure
from benchmarks.image_inputs import FOLDER
from benchmarks.inputs import WORK
from benchmarks.ms_swift import HOME, VERSION, WITHOUT_RECOMPUTING, first_step, train_ms_swift, train_swift
from benchmarks.turns import Rounds

MODEL = WORK / "model-sees-as-qwen"
BATCH, PACK = 4, 1_200
"""Samples of a padded batch, and tokens of a pack: about as many as four samples have."""
PADDED = ("--per_device_train_batch_size", str(BATCH), "--max_length", "2000")
PACKED = ("--per_device_train_batch_size", "1", "--packing", "true", "--max_length", str(PACK))
ONE_BY_ONE = ("--per_device_train_batch_size", "1")
"""Without padding; then ms-swift, too, computes scores of the tokens alone that are learned."""
PACKAGES = ("torchvision==0.28.0", "qwen-vl-utils==0.0.14")
VIDEOS = {"video_processor_type": "Qwen2VLVideoProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
FIRST_SPECIAL = 151_643
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""The special tokens of Qwen2-VL, in the order of their ids."""
_DECLARED = "swift benchmark: declare operators"
_DECLARE = f"""

# {_DECLARED}
_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in () if _has_ops() else ("nms", "qnms"):
    _library.define(f"{{_name}}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""What torchvision for CUDA lacks with a CPU build of torch, to be appended to its `extension.py`."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    image_inputs.ensure()
    _model()
    install()
    tokens = _tokens_of_a_batch()
    _swift("packed", *PACKED)(_data(2 * BATCH))
    images = 40 if quick else 96
    data = _data(images)
    variants: dict[str, Callable[[Path], Course]] = {
        "ms-swift": _ms_swift(),
        "padded": _swift("padded", *PADDED),
        "ms-swift, nothing recomputed": _ms_swift(*WITHOUT_RECOMPUTING),
        "packed": _swift("packed", *PACKED),
        "ms-swift, one by one": _ms_swift(*WITHOUT_RECOMPUTING, *ONE_BY_ONE),
        "one by one": _swift("one-by-one", *PADDED, *ONE_BY_ONE),
    }
    runs = Rounds({name: partial(run, data) for name, run in variants.items()}, 1 if quick else 2)
    speed = partial(runs.ratio, value=lambda course: course.rate(images))
    of_a_batch = tokens["padded"] / tokens["ms-swift"]
    first = runs.ratio("padded", "ms-swift", first_step)
    figures = [
        Figure("tokens of one batch of the same rows, padding counted, over ms-swift's", of_a_batch, at_least=1.0),
        Figure("images/s over ms-swift's, padded alike", speed("padded", "ms-swift"), at_least=1.0),
        Figure("images/s over ms-swift's, packed", speed("packed", "ms-swift"), at_least=1.0),
        Figure("the same, nothing recomputed by either, padded", speed("padded", "ms-swift, nothing recomputed")),
        Figure("the same, nothing recomputed by either, packed", speed("packed", "ms-swift, nothing recomputed")),
        Figure("the same, nothing recomputed by either, one by one", speed("one by one", "ms-swift, one by one")),
        Figure("time to the first step over ms-swift's", first),
    ]
    details = {
        "ms-swift": VERSION,
        "sizes": image_inputs.SIZES,
        "images": images,
        "tokens_of_a_batch": tokens,
        "images_per_second": runs.medians(lambda course: course.rate(images)),
        "seconds_to_first_step": runs.medians(first_step),
        "notes": [
            "By the clock, in turns, with as many threads as each takes by itself on this machine. swift prepares its "
            "data anew in each run, as ms-swift does. The start-up and the first step count for the last figure only. "
            "The model is small compared with its vocabulary of 151,936, whose scores are most of the work. Swift "
            "computes them for the tokens that are learned; ms-swift does so for batches of one row, and for others "
            "from the first learned token of any row to the end of the longest. With a larger model they matter less."
        ],
    }
    return figures, details


def install() -> None:
    """Put ms-swift into its environment, with what it needs for images."""
    ms_swift.install()
    (packages,) = HOME.glob("lib/python*/site-packages")
    extension = packages / "torchvision" / "extension.py"
    if extension.is_file() and _DECLARED in extension.read_text():
        return
    print("Installing what it needs for images", flush=True)
    ms_swift.add_to(HOME, *PACKAGES, f"torch=={metadata.version('torch').partition('+')[0]}")
    text = extension.read_text()
    extension.unlink()  # it may be a link into the installer's cache
    extension.write_text(text + _DECLARE)


def _model() -> None:
    """Make the folder of the model with Qwen's whole vocabulary again, with Qwen's ids and the file about videos."""
    if MODEL.exists():
        return
    folder = MODEL.with_suffix(".tmp")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(image_inputs.WIDE, folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    letters = tokens["model"]["vocab"]
    tokens["model"]["vocab"] = letters | {f"word {number}": number for number in range(len(letters), FIRST_SPECIAL)}
    special = tokens["added_tokens"][0]
    ids = {content: FIRST_SPECIAL + number for number, content in enumerate(SPECIAL)}
    tokens["added_tokens"] = [{**special, "content": content, "id": number} for content, number in ids.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    config = json.loads((folder / "config.json").read_text())
    config |= {f"{kind}_token_id": ids[f"<|{kind}_pad|>"] for kind in ("image", "video")}
    config |= {f"vision_{end}_token_id": ids[f"<|vision_{end}|>"] for end in ("start", "end")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEOS))
    folder.rename(MODEL)


def _data(count: int) -> Path:
    """Return rows that name their photographs by whole paths."""
    lines = image_inputs.rows(count).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    path = FOLDER / f"whole-paths-{count}.jsonl"
    whole = [{**row, "images": [str(FOLDER / name) for name in row["images"]]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in whole), encoding="utf-8")
    return path


def _tokens_of_a_batch() -> dict[str, int]:
    """Return how many tokens each makes of a batch, padding included, in a run of it that also warms both up."""
    rows = _data(BATCH)
    _ms_swift("--include_num_input_tokens_seen", "true")(rows)
    _swift("padded", *PADDED)(rows)
    theirs, ours = (_lines(RUNS / name) for name in ("ms-swift-images", "images-padded"))
    whole = ours[-1]["tokens"] / (1 - ours[0]["padding_fraction"])
    return {"ms-swift": theirs[0]["num_input_tokens_seen"], "padded": round(whole)}


def _lines(output: Path) -> list[dict[str, Any]]:
    (log,) = output.rglob("logging.jsonl")
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _ms_swift(*more: str) -> Callable[[Path], Course]:
    words = ("--model_type", "qwen2_vl", "--template", "qwen2_vl", "--system", "", "--save_strategy", "no", *PADDED)
    return lambda data: train_ms_swift("ms-swift-images", MODEL, data, *words, *more)


def _swift(name: str, *arguments: str) -> Callable[[Path], Course]:
    return lambda data: train_swift(f"images-{name}", MODEL, data, "--save_strategy", "no", *arguments)
