"""Rows per second from chats about photographs to tokens: reading headers, compared with decoding whole files.

Three ways compute the same tokens of the same rows, alternating in one process:
- swift's `prepare_data`, as in a run (`--data.media_check header`)
- the same with every pixel read beforehand (`--data.media_check decode`)
- a call of the processor for each row, as in a hand-written loop

The model is only a processor of Qwen2-VL: nothing is trained. Figures are in CPU seconds.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.facts import Figure, read_lines
from benchmarks.image_inputs import processor, row, write_photographs
from benchmarks.inputs import WORK

FOLDER = WORK / "images"
SIZES = ((448, 448), (640, 480), (1024, 768))
FILES = 30
"""Photographs; the kernel keeps them in memory for all ways."""
ROWS = 400


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    rounds, rows = (1, 100) if quick else (3, ROWS)
    data = _data(rows)
    own = processor()
    ways = {
        "header": lambda: _encoded(own, data, "header"),
        "decode": lambda: _encoded(own, data, "decode"),
        "processor": lambda: _processed(own, data),
    }
    _encoded(own, data, "header")  # imports what is imported once
    turns = Rounds(ways, rounds)
    figures = [
        Figure(f"rows encoded per second by header over {other}, by CPU time", turns.ratio(way, "header", "cpu"))
        for way, other in (("processor", "the processor's own calls"), ("decode", "media_check decode"))
    ]
    rate = rows / turns.median("header", "cpu")
    figures += [
        Figure("rows encoded per second of one core's time, by header", rate, unit=""),
        Figure("ways that made other tokens", turns.odd("digest"), unit="", at_most=0),
    ]
    return figures, {"rows": rows, "files": FILES, "sizes": SIZES, "turns": turns.taken}


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
    prepare_data(section, processor.tokenizer, encoding="chat", seed=0, say=lambda _: None, images=rules)
    seconds = time.process_time() - begin
    (ids,) = cache.rglob("ids.bin")
    return {"cpu": seconds, "digest": _digest(np.memmap(ids, np.int32, "r"))}


def _processed(processor: Any, data: Path) -> dict[str, Any]:
    """Make tokens by calling the processor with each row's text and its image."""
    import numpy as np
    from PIL import Image

    begin = time.process_time()
    rows = []
    for content in read_lines(data):
        question, response = content["messages"]
        parts = [{"type": "image"}, {"type": "text", "text": question["content"].removeprefix("<image>")}]
        text = processor.apply_chat_template([{**question, "content": parts}, response], tokenize=False)
        with Image.open(data.parent / content["images"][0]) as image:
            made = processor(text=[text], images=[image])
        rows.append(np.array(made["input_ids"][0], np.int32))
    return {"cpu": time.process_time() - begin, "digest": _digest(np.concatenate(rows))}


def _digest(ids: Any) -> str:
    import xxhash

    return str(xxhash.xxh3_64_hexdigest(ids.tobytes()))


def _data(rows: int) -> Path:
    """Write photographs, and a question about each again and again."""
    write_photographs(FOLDER, SIZES, FILES)
    path = FOLDER / f"rows-{rows}.jsonl"
    lines = (row(number, "A cloud of colours.", f"{number % FILES}.jpg") for number in range(rows))
    path.write_text("".join(lines), encoding="utf-8")
    return path
