"""Write the image of a run for the README, docs/images/run.svg: the terminal after a real `swift sft`.

    python tools/terminal_image.py

Trains a tiny model with random weights for a minute on the CPU, in a pseudo-terminal of 80 columns.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

from swift_demo.model import write_model

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "run.svg"
COLUMNS = 80
WORDS = """
Alfa Bravo Charlie Delta Echo Foxtrot Golf Hotel India Juliett Kilo Lima Mike November Oscar Papa Quebec Romeo
Sierra Tango Uniform Victor Whiskey Xray Yankee Zulu
"""
COMMAND = (
    "swift sft --model tiny --dataset alphabet.jsonl --split_dataset_ratio 0.2 --train_type full --learning_rate 3e-3 "
    "--max_steps 60 --per_device_train_batch_size 7 --logging_steps 10 --eval_steps 30 --save_steps 30 --run_name first"
)

sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from screen import shown  # type: ignore[import-not-found]  # noqa: E402 - the terminal that tests look at


def main() -> None:
    """Make the parts, train, and draw."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_model(folder / "tiny", hidden=64, layers=2)
        with (folder / "alphabet.jsonl").open("w") as file:
            for word in WORDS.split():
                question = {"role": "user", "content": f"What does {word[0]} stand for?"}
                answer = {"role": "assistant", "content": word}
                file.write(json.dumps({"messages": [question, answer]}) + "\n")
        lines = shown(typed(COMMAND, folder))
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(drawn(lines), encoding="utf-8")
    print(f"wrote {IMAGE.relative_to(ROOT)}")


def typed(command: str, folder: Path) -> str:
    """Return what a command writes to its terminal, control codes included."""
    ours, its = pty.openpty()
    variables = {"TERM": "xterm", "COLUMNS": str(COLUMNS), "XDG_CACHE_HOME": str(folder / "cache")}
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
    words = [sys.executable, "-m", *command.split()]
    pieces: list[bytes] = []
    process = subprocess.Popen(words, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its)
    os.close(its)
    reader = threading.Thread(target=_read, args=(ours, pieces))
    reader.start()
    code = process.wait()
    reader.join()
    os.close(ours)
    output = b"".join(pieces).decode()
    if code:
        raise SystemExit(f"{command} ended with exit code {code}:\n{output}")
    return output


def drawn(lines: list[str]) -> str:
    """Return the lines below their command as an SVG that fetches nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {COMMAND}", style="bold"))
    console.print(Text("\n".join(lines).rstrip()))
    image = console.export_svg(title="swift sft", unique_id="run")
    return re.sub(r"@font-face \{.*?\}\s*", "", image, flags=re.DOTALL)


def _read(terminal: int, pieces: list[bytes]) -> None:
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the command has ended
            return
        pieces.append(piece)


if __name__ == "__main__":
    main()
