"""A conversation on the terminal."""

from __future__ import annotations

import sys
from typing import Any

from swift.contracts import Sampling
from swift.infer.speaker import Speaker


def converse(speaker: Speaker, sampling: Sampling) -> None:
    """Ask, answer, remember, until the user leaves."""
    interactive = sys.stdin.isatty()
    if interactive:
        sys.stdout.write("/clear forgets what was said; /exit or Ctrl-D leaves.\n")
    messages: list[dict[str, Any]] = []
    while True:
        try:
            said = input("> " if interactive else "").strip()
        except EOFError:
            return
        if said == "/exit":
            return
        if said == "/clear":
            messages.clear()
            continue
        if not said:
            continue
        messages.append({"role": "user", "content": said})
        answer = ""
        for piece in speaker.stream(messages, sampling):
            answer += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        if speaker.remembers:
            messages.append({"role": "assistant", "content": answer})
        else:
            messages.clear()
