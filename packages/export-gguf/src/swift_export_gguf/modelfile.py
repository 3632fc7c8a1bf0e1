"""Ollama's `Modelfile`: where the weights are, and the chat template in Ollama's language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swift_export_gguf.vocabulary import adds_bos

_SYSTEM, _USER, _RESPONSE, _NEXT = (
    "The system text.",
    "The first question.",
    "The first response.",
    "The next question.",
)


def write_modelfile(folder: Path, weights: str, tokenizer: Any) -> None:
    """Write `Modelfile`; without TEMPLATE where the chat template is not a frame around each message."""
    lines = [f"FROM ./{weights}"]
    template = ollama_template(tokenizer) if isinstance(tokenizer.chat_template, str) else None
    if template is None:
        lines.append("# The chat template does not translate to Ollama's language. Add a TEMPLATE before use.")
    else:
        lines.append(f'TEMPLATE """{template}"""')
    if tokenizer.eos_token:
        lines.append(f'PARAMETER stop "{tokenizer.eos_token}"')
    (folder / "Modelfile").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ollama_template(tokenizer: Any) -> str | None:
    """Return the chat template in Ollama's language, if it puts a fixed frame around each message."""
    try:
        frames = _frames(tokenizer)
    except Exception:  # templates raise anything, for a system message say
        return None
    (before_system, after_system), (before_user, after_user), (before_response, after_response) = frames
    if any('"""' in part or "{{" in part for frame in frames for part in frame):
        return None
    system, default = "", _default_system(tokenizer, frames)
    if default is not None:
        # The template speaks where a conversation has no system message.
        otherwise = f"{{{{ else }}}}{default}" if default else ""
        system = f"{{{{ if .System }}}}{before_system}{{{{ .System }}}}{after_system}{otherwise}{{{{ end }}}}"
    return (
        f'{system}{{{{ range .Messages }}}}{{{{ if eq .Role "user" }}}}{before_user}{{{{ .Content }}}}{after_user}'
        f'{{{{ else if eq .Role "assistant" }}}}{before_response}{{{{ .Content }}}}{after_response}'
        f"{{{{ end }}}}{{{{ end }}}}{before_response}"
    )


Frame = tuple[str, str]


def _frames(tokenizer: Any) -> tuple[Frame, Frame, Frame]:
    """Return what the template writes before and after system, user and assistant messages; raise where that varies."""
    system, user = ("system", _SYSTEM), ("user", _USER)
    response, following = ("assistant", _RESPONSE), ("user", _NEXT)
    whole = _rendered(tokenizer, system, user, response, following, prompt=True)
    start, rest = whole.split(_SYSTEM)
    between_system, rest = rest.split(_USER)
    between_user, rest = rest.split(_RESPONSE)
    between_response, prompt = rest.split(_NEXT)
    after_user = _rendered(tokenizer, system, user).split(_USER)[1]
    after_response = _rendered(tokenizer, system, user, response).split(_RESPONSE)[1]
    before_user = _without(between_response, after_response)
    before_response = _without(between_user, after_user)
    after_system = between_system[: len(between_system) - len(before_user)]
    if between_system != after_system + before_user or prompt != after_user + before_response:
        raise ValueError("The frames of messages differ from each other.")
    return (_without_bos(start, tokenizer), after_system), (before_user, after_user), (before_response, after_response)


def _default_system(tokenizer: Any, frames: tuple[Frame, Frame, Frame]) -> str:
    """Return what the template writes before a conversation without a system message."""
    start = _without_bos(_rendered(tokenizer, ("user", _USER)).split(_USER)[0], tokenizer)
    if not start.endswith(frames[1][0]):
        raise ValueError("The first message has a frame of its own.")
    return start[: len(start) - len(frames[1][0])]


def _without_bos(start: str, tokenizer: Any) -> str:
    """Leave out the token that llama.cpp adds itself."""
    return start.removeprefix(tokenizer.bos_token) if adds_bos(tokenizer) else start


def _rendered(tokenizer: Any, *messages: tuple[str, str], prompt: bool = False) -> str:
    listed = [{"role": role, "content": content} for role, content in messages]
    text: str = tokenizer.apply_chat_template(listed, tokenize=False, add_generation_prompt=prompt)
    return text


def _without(text: str, start: str) -> str:
    if not text.startswith(start):
        raise ValueError(f"{text!r} does not begin with {start!r}.")
    return text[len(start) :]
