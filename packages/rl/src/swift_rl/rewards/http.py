"""Requests to servers that score answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

WAITED = 120.0
"""Seconds for one request, where nothing else is asked for."""


def posted(address: str, body: Mapping[str, Any], *, key: str | None = None, seconds: float = WAITED) -> Any:
    """Send JSON to a server and return the JSON that it answers; an `OSError` says what went wrong, and where."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(address, json.dumps(body, default=str).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as problem:
        reply = problem.read(500).decode("utf-8", "replace")
        raise OSError(f"{address} answers {problem.code} {problem.reason}: {reply}") from None
    except OSError as problem:
        raise OSError(f"{address} cannot be reached: {getattr(problem, 'reason', problem)}") from None
