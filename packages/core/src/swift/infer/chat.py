"""A conversation on the terminal."""

from __future__ import annotations

import sys
from typing import Any

from swift.contracts import Sampling
from swift.errors import UsageError
from swift.infer.answers import Speaker
from swift.untrusted import check_unicode


def converse(speaker: Speaker, sampling: Sampling) -> None:
    """Ask, answer, remember, until the user leaves."""
    interactive = sys.stdin.isatty()
    if interactive:
        sys.stdout.write("/clear forgets the conversation; /exit or Ctrl-D leaves.\n")
    messages: list[dict[str, Any]] = []
    while True:
        try:
            said = input("> " if interactive else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            raise UsageError("What was typed is not UTF-8 text.", hint="Write it in UTF-8.") from None
        check_unicode(said, "What was typed", UsageError)
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
        if speaker.multi_turn:
            messages.append({"role": "assistant", "content": answer})
        else:
            messages.clear()
