"""Rows a second from chats about photographs to tokens: by the header of each file, against decoding all of it.

Three ways make the same tokens of the same rows, in turns in one process, so that the machine is in the same mood:
- swift's own `prepare_data`, as a run does it (`--data.media_check header`);
- the same with every pixel read beforehand (`--data.media_check decode`);
- the processor's own call with text and picture, row by row, as a loop written by hand has it.

The model is a processor of Qwen2-VL alone: nothing is trained. CPU seconds are what counts.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.facts import Figure
from benchmarks.inputs import ROOT, WORK

FOLDER = WORK / "pictures"
SIZES = ((448, 448), (640, 480), (1024, 768))
FILES = 30
"""Photographs, of each size as many: the kernel keeps them in memory for both ways."""
ROWS = 400


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    rounds, rows = (1, 100) if quick else (3, ROWS)
    data = _data(rows)
    processor = _processor()
    ways = {
        "header": lambda: _encoded(processor, data, "header"),
        "decode": lambda: _encoded(processor, data, "decode"),
        "processor": lambda: _processed(processor, data),
    }
    _encoded(processor, data, "header")  # imports what is imported once
    turns = [{way: make() for way, make in ways.items()} for _ in range(rounds)]
    digests = {made["digest"] for turn in turns for made in turn.values()}

    def over(other: str) -> float:
        return median(turn[other]["cpu"] / turn["header"]["cpu"] for turn in turns)

    figures = [
        Figure("rows encoded per second by header over the processor's own calls, by CPU time", over("processor")),
        Figure("rows encoded per second by header over media_check decode, by CPU time", over("decode")),
        Figure(
            "rows encoded per second of one core's time, by header",
            median(rows / turn["header"]["cpu"] for turn in turns),
            unit="",
        ),
        Figure("ways that made other tokens", float(len(digests) - 1), unit="", at_most=0),
    ]
    return figures, {"rows": rows, "files": FILES, "sizes": SIZES, "turns": turns}


def _encoded(processor: Any, data: Path, check: str) -> dict[str, Any]:
    """Make tokens in one way; CPU seconds of this process, which has no workers."""
    import numpy as np

    from swift.config.sections import DataSection
    from swift.data.pipeline import prepare_data
    from swift.models.media_processor import MediaProcessor

    cache = FOLDER / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    section = DataSection(train=(str(data),), cache=cache, workers=1, max_length=4096, media_check=check)
    rules = MediaProcessor(processor, section)
    begin = time.process_time()
    prepare_data(section, processor.tokenizer, encoding="chat", seed=0, say=lambda _: None, pictures=rules)
    seconds = time.process_time() - begin
    (ids,) = cache.rglob("ids.bin")
    return {"cpu": seconds, "digest": _digest(np.memmap(ids, np.int32, "r"))}


def _processed(processor: Any, data: Path) -> dict[str, Any]:
    """Make tokens by calling the processor with each row's text and its picture."""
    import numpy as np
    from PIL import Image

    begin = time.process_time()
    rows = []
    for line in data.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        question, answer = row["messages"]
        parts = [{"type": "image"}, {"type": "text", "text": question["content"].removeprefix("<image>")}]
        text = processor.apply_chat_template([{**question, "content": parts}, answer], tokenize=False)
        with Image.open(data.parent / row["images"][0]) as picture:
            made = processor(text=[text], images=[picture])
        rows.append(np.array(made["input_ids"][0], np.int32))
    return {"cpu": time.process_time() - begin, "digest": _digest(np.concatenate(rows))}


def _digest(ids: Any) -> str:
    import xxhash

    return str(xxhash.xxh3_64_hexdigest(ids.tobytes()))


def _processor() -> Any:
    """Return the processor of the tests' Qwen2-VL, with the limit of pixels that 1024×768 stays under."""
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from tiny_pictures import processor_of

    processor = processor_of("qwen2_vl")
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28}
    return processor


def _data(rows: int) -> Path:
    """Write JPEGs of smooth noise, which compress as photographs do, and a question about each again and again."""
    import numpy as np
    from PIL import Image

    FOLDER.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(FILES):
        size = SIZES[number % len(SIZES)]
        noise = np.random.RandomState(number).randint(0, 255, (48, 64, 3), dtype=np.uint8)
        names.append(f"{number}.jpg")
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(FOLDER / names[-1], quality=90)
    path = FOLDER / f"rows-{rows}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            messages = [
                {"role": "user", "content": f"<image>What is number {number}?"},
                {"role": "assistant", "content": "A cloud of colours."},
            ]
            file.write(json.dumps({"messages": messages, "images": [names[number % FILES]]}) + "\n")
    return path
