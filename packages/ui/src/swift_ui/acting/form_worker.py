"""Worker process of forms: it imports plugins, so that the server does not.

It reads one request per line and writes one response per line, both JSON, and ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from swift.errors import SwiftError
from swift.forms import check_command, form_of


def respond(request: dict[str, Any]) -> dict[str, Any]:
    """Return the response to one request; errors are responses too."""
    try:
        if request["kind"] == "form":
            return {"sections": [asdict(each) for each in form_of(request["command"], request.get("selected") or {})]}
        return {"checked": asdict(check_command(request["argv"], expect=bool(request.get("expect"))))}
    except SwiftError as error:
        return {"refused": {"message": error.message, "hint": error.hint}}
    except Exception as error:  # of a plugin, for example: the worker goes on
        return {"refused": {"message": f"The form could not be checked: {type(error).__name__}: {error}", "hint": None}}


def main() -> None:
    """Serve requests until the input ends. Output of plugins goes to stderr."""
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        responses.write(json.dumps(respond(json.loads(line)), default=str) + "\n")
        responses.flush()


if __name__ == "__main__":
    main()
