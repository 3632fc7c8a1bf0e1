"""The clerk: a process that answers what forms ask, so that plugins are imported there and not in the server.

It reads a question a line and answers a line, both JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from swift.errors import SwiftError
from swift.forms import check_command, form_of


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one question; a refusal is an answer."""
    try:
        if question["ask"] == "form":
            return {"sections": [asdict(each) for each in form_of(question["verb"], question.get("selected") or {})]}
        checked = check_command(question["words"], expect=bool(question.get("expect")))
        return {"checked": asdict(checked)}
    except SwiftError as error:
        return {"refused": {"message": error.message, "hint": error.hint}}
    except Exception as error:  # of a plugin, say: the clerk goes on, and whoever asked hears it
        return {"refused": {"message": f"The form could not be checked: {type(error).__name__}: {error}", "hint": None}}


def main() -> None:
    """Answer until the input ends. What plugins print goes where errors go."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line)), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
