"""Requests to servers that score completions."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from swift_infer import BROKEN, RequestRefused, opener_without_redirects, read_response

WAITED = 120.0
"""Seconds for one request, where nothing else is asked for."""


def posted(address: str, body: Mapping[str, Any], *, key: str | None = None, seconds: float = WAITED) -> Any:
    """Send JSON to a server and return the JSON of its response. Raise `OSError` with the reason and the address."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        request = urllib.request.Request(address, json.dumps(body, default=str).encode(), headers)
        response = read_response(opener_without_redirects(), request, seconds)
    except RequestRefused as problem:
        reason = (
            f"redirects to {problem.leads_to}" if problem.leads_to else problem.body[:500].decode("utf-8", "replace")
        )
        raise OSError(f"{address} returned {problem.code} {problem.reason}: {reason}") from None
    except (*BROKEN, ValueError) as problem:
        raise OSError(f"{address} cannot be reached: {getattr(problem, 'reason', problem)}") from None
    try:
        return json.loads(response)
    except (ValueError, RecursionError):
        raise OSError(f"{address} returned invalid JSON") from None
