"""Bodies of requests: JSON objects of texts that can be shown again, or one sentence that refuses them."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from swift.errors import UsageError
from swift.untrusted import is_unicode, parse_json


async def content_of(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise UsageError("The request ended before its body did.") from None
    content = parse_json(body, "This is not JSON", UsageError)
    if not isinstance(content, dict):
        raise UsageError("This is no JSON object.")
    if not is_unicode(json.dumps(content, ensure_ascii=False)):
        raise UsageError("A text of the request has half of a surrogate pair, which no file or terminal takes.")
    return content
