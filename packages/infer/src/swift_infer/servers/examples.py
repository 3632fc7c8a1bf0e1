"""Example requests for the server, for a shell and for Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from swift.contracts import ServeRequest
from swift.errors import ModelError
from swift.untrusted import read_json_object

GENERATES = "causal_lm"
EMBEDDING = "embedding"
QUESTION = "Hello! Who are you?"
DOCUMENTS = ("I am a language model.", "It is raining.")
TOKENS = 64
KEY = "SWIFT_API_KEY"


def url_of(request: ServeRequest, scheme: str = "http") -> str:
    """Return the URL of the server on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(request.host, request.host)
    return f"{scheme}://{f'[{host}]' if ':' in host and '[' not in host else host}:{request.port}"


def has_template(request: ServeRequest) -> bool:
    """Return whether the server supports chats."""
    if request.chat_template or (request.model / "chat_template.jinja").is_file():
        return True
    settings = request.model / "tokenizer_config.json"
    return settings.is_file() and bool(read_json_object(settings, ModelError).get("chat_template"))


def curl_line(request: ServeRequest, name: str, url: str) -> str:
    """Return one line for a shell."""
    path, body = example_request(request, name)
    args = ["curl", f"{url}{path}", "-H", "Content-Type: application/json"]
    line = shlex.join([*args, "-d", json.dumps(body, ensure_ascii=False)])
    return f'{line} -H "Authorization: Bearer ${KEY}"' if request.api_key else line


def example_request(request: ServeRequest, name: str) -> tuple[str, dict[str, object]]:
    """Return path and body of an example request."""
    model = {"model": name}
    if request.task == EMBEDDING:
        return "/v1/embeddings", {**model, "input": [QUESTION]}
    if request.task != GENERATES and request.chat_template:
        return "/rerank", {**model, "query": QUESTION, "documents": list(DOCUMENTS)}
    if request.task != GENERATES:
        return "/classify", {**model, "input": [QUESTION]}
    chat = has_template(request)
    question = {**model, **_question(request, chat), "max_tokens": TOKENS}
    return f"/v1/{'chat/' if chat else ''}completions", question


def python_lines(request: ServeRequest, name: str, url: str) -> Iterator[str]:
    """Yield a script of a few lines."""
    if request.api_key:
        yield "import os"
        yield ""
    yield "from openai import OpenAI"
    yield ""
    key = f'os.environ["{KEY}"]' if request.api_key else '"none"'
    yield f'client = OpenAI(base_url="{url}/v1", api_key={key})'
    model = json.dumps(name, ensure_ascii=False)
    path, body = example_request(request, name)
    if request.task == EMBEDDING:
        yield f'response = client.embeddings.create(model={model}, input=["{QUESTION}"])'
        yield "print(response.data[0].embedding)"
    elif request.task != GENERATES:
        yield f'print(client.post("{url}{path}", body={json.dumps(body, ensure_ascii=False)}, cast_to=object))'
    elif has_template(request):
        messages = json.dumps(_question(request, True)["messages"], ensure_ascii=False)
        yield f"response = client.chat.completions.create(model={model}, messages={messages}, max_tokens={TOKENS})"
        yield "print(response.choices[0].message.content)"
    else:
        yield f'response = client.completions.create(model={model}, prompt="{QUESTION}", max_tokens={TOKENS})'
        yield "print(response.choices[0].text)"


def summary(request: ServeRequest, name: str, url: str, log: Path) -> Iterator[str]:
    """Yield the lines printed when the server is ready."""
    yield f"Serving {request.model} at {url}/v1"
    yield f"  models  {', '.join([request.name, *(f'{each} (adapter)' for each in request.adapters)])}"
    if request.api_key:
        yield f"  key     required in requests; for the examples: export {KEY}=..."
    if request.system and request.task == GENERATES:
        yield "  system  requests must send the run's system message, as the examples do"
    yield f"  log     {log}"
    yield ""
    yield "From a shell:"
    yield f"  {curl_line(request, name, url)}"
    yield ""
    yield "From Python (pip install openai):"
    yield from (f"  {line}".rstrip() for line in python_lines(request, name, url))
    yield ""
    yield "Ctrl-C stops it."


def _question(request: ServeRequest, chat: bool) -> dict[str, object]:
    if not chat:
        return {"prompt": QUESTION}
    system = [{"role": "system", "content": request.system}] if request.system else []
    return {"messages": [*system, {"role": "user", "content": QUESTION}]}
