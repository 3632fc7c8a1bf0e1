"""A chat template that never ends, or that fills the memory, stops with a message that names it and the row."""

from __future__ import annotations

import json
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from swift.config.sections import DataSection
from swift.data import encode_corpus as tokenise
from swift.data import rendering
from swift.data.pipeline import prepare_data
from swift.data.rendering import render_chat
from swift.errors import DataError
from swift.untrusted import time_limit
from swift_testing.tokenizer import CHAT_TEMPLATE, byte_tokenizer

AT_BOOM = "{% if messages[0].content == 'boom' %}BODY{% endif %}" + CHAT_TEMPLATE
LOOP = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}END"
    "{% endfor %}{% endfor %}{% endfor %}"
)
TOO_MUCH = {
    "a loop without end": (LOOP.replace("END", ""), "has not come to an end within 0.3 seconds"),
    "a text without end": (LOOP.replace("END", "{{ 'x' * 9999 }}"), "writes more than"),
    "one enormous text": ("{{ messages[0].content * 99999999 }}", "writes more than"),
    "more than the memory": ("{{ messages[0].content * 999999999999 }}", "GiB of memory"),
    "a text that doubles": (
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "",  # whichever comes first
    ),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 0.3)
    monkeypatch.setattr(rendering, "MEMORY", 1 << 30)


def prepare(tmp_path: Path, template: str, *, rows: int = 9, **section: Any) -> None:
    path = tmp_path / "a.jsonl"
    questions = ["fine"] * (rows - 2) + ["boom", "fine"]
    path.write_text("".join(json.dumps({"query": each, "response": "A."}) + "\n" for each in questions))
    tokenizer = byte_tokenizer()
    tokenizer.name_or_path = "some/model"
    tokenizer.chat_template = template
    settings = DataSection(train=(str(path),), cache=tmp_path / "cache", **section)
    data = prepare_data(settings, tokenizer, encoding="chat", seed=1, say=lambda _: None)
    if data.stream is not None:
        list(data.stream.epoch(0))


@pytest.mark.parametrize(
    ("body", "why", "streaming"),
    [(*each, False) for each in TOO_MUCH.values()] + [(*TOO_MUCH["a loop without end"], True)],
    ids=[*TOO_MUCH, "a stream"],
)
def test_a_template_without_measure_is_named_with_the_row(tmp_path: Path, body: str, why: str, streaming: bool) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(DataError) as error:
        prepare(tmp_path, AT_BOOM.replace("BODY", body), streaming=streaming)
    assert f"{tmp_path / 'a.jsonl'}:8: the chat template of some/model, which begins " in error.value.message
    assert why in error.value.message
    assert "--model.chat_template" in str(error.value.hint)
    assert signal.getsignal(signal.SIGALRM) == handler


@pytest.mark.parametrize("template", [LOOP, "{{ 'x' * 99999999999 }}" + CHAT_TEMPLATE], ids=["rendering", "compiling"])
def test_a_template_that_always_loops_is_named_before_any_row(tmp_path: Path, template: str) -> None:
    """Also what is computed while a template is compiled is limited."""
    with pytest.raises(DataError, match=r"the chat template of some/model"):
        prepare(tmp_path, template)


def test_time_limit_is_per_task() -> None:
    """The time limit is that of one task however many there are."""
    tasks = count()
    with time_limit(0.02, DataError("too long"), watch=lambda: next(tasks)):
        time.sleep(0.2)
    with time_limit(0.02, DataError("too long"), watch=lambda: None):
        time.sleep(0.2)
    with pytest.raises(DataError, match="too long"), time_limit(0.02, DataError("too long"), watch=lambda: 1):
        time.sleep(600)


@pytest.mark.full
def test_a_worker_process_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenise, "CHUNK", 4)
    monkeypatch.setattr(tokenise, "_IN_PROCESS", 4)
    with pytest.raises(DataError, match=r"a\.jsonl:28: the chat template of some/model.*has not come to an end"):
        prepare(tmp_path, AT_BOOM.replace("BODY", LOOP), rows=29, workers=2)


def test_errors_that_templates_raise_are_reasons(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="can be trained on") as error:
        prepare(tmp_path, "{{ 1 // 0 }}")
    assert "refused by the chat template" in str(error.value.hint)


def test_a_single_chat_is_rendered_within_the_limits() -> None:
    tokenizer = byte_tokenizer()
    messages = [{"role": "user", "content": "Hi"}]
    assert render_chat(tokenizer, messages, location="The prompt") == "<|im_start|>user\nHi<|im_end|>\n"
    tokenizer.chat_template = LOOP
    with pytest.raises(DataError, match="The prompt: the chat template of"):
        render_chat(tokenizer, messages, location="The prompt")
