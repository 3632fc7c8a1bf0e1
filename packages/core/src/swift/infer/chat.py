"""A conversation on the terminal."""

from __future__ import annotations

import sys
from typing import Any

from swift.infer.generate import Sampling, prompt_ids, stream_answer
from swift.infer.load import Speaker


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
        for piece in stream_answer(speaker, prompt_ids(speaker, messages), sampling):
            answer += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        if speaker.tokenizer.chat_template is None:
            messages.clear()
        else:
            messages.append({"role": "assistant", "content": answer})
