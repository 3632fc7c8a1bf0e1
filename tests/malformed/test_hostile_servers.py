"""Servers that send invalid responses, or never end one: one message that names the server and the field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hostile_server import Reply, hostile_server, reply, stream, without_end
from judge import Case, Table, judge, sampled, table

from swift.contracts import RewardItem, Sampling
from swift.errors import ModelError
from swift_export_vllm.rollout import connect
from swift_infer.remote import RemoteChatEngine
from swift_rl.rewards.judge import JudgeOptions, JudgeReward
from swift_rl.rewards.models import ServerReward

LATE = "has not "
NOT_OPENAI = "OpenAI's API"
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
DEEP = b"[" * 100_000
MODELS = reply({"data": [{"id": "swallow"}]})

BROKEN: Table[Reply] = {
    "a byte now and then": (without_end(HEAD, b" ", 0.02), LATE),
    "a body without end": (without_end(HEAD, b" " * 65536), "more than 1 MiB"),
    "an error without end": (without_end(b"HTTP/1.1 500 No\r\n\r\n", b" " * 65536), "failed with 500: No"),
    "half of an error": (reply(b'{"error"', "500 No", length=1000), "failed with 500: No"),
    "half of a response": (reply(b'{"data"', length=1000), "cannot be reached"),
    "nothing": (b"", "cannot be reached"),
    "a broken chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "cannot be reached"),
    "another address": (
        reply(b"", "307 There", "Location: http://127.0.0.1:1/v1"),
        "redirects to http://127.0.0.1:1/v1",
    ),
    "an invalid address": (reply(b"", "302 There", "Location: http://[::1"), "http://[::1"),
    "deep JSON": (reply(DEEP), NOT_OPENAI),
}
"""What a server does → what is sent of it."""


def unlike(**changes: Any) -> Reply:
    return reply({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"} | changes]})


RESPONSES: Table[Reply] = {
    "no content at all": (reply(b"", "204 None"), "choices"),
    "null": (reply(None), "choices"),
    "a string of choices": (reply({"choices": "Hi"}), "choices[0]"),
    "a choice that is null": (reply({"choices": [None]}), "null as choices[0]"),
    "a message that is null": (unlike(message=None), "null as message"),
    "a content of parts": (unlike(message={"content": [{"text": "Hi"}]}), "a list as content"),
    "a reason that is a number": (unlike(finish_reason=5), "the number 5 as finish_reason"),
    "an unpaired surrogate": (unlike(message={"content": "\ud800"}), "surrogate"),
}


def asking(models: Reply, chat: Reply, folder: Path) -> Sequence[str]:
    server = hostile_server({"/v1/models": models, "/v1/chat/completions": chat})
    SERVERS.append(server)
    return ["infer", "--engine", server.__enter__(), "--prompt", "Hello", "--max_new_tokens", "2"]


SERVERS: list[Any] = []
NAMES: Table[object] = {
    "null": (None, NOT_OPENAI),
    "a list": (["a"], NOT_OPENAI),
    "no Unicode": ("\ud800", NOT_OPENAI),
}
CASES = [
    *table("sends", BROKEN, lambda sent: partial(asking, MODELS, sent)),
    *table("responds with", RESPONSES, lambda sent: partial(asking, MODELS, sent)),
    *table("the name of its model is", NAMES, lambda name: partial(asking, reply({"data": [{"id": name}]}), b"")),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller limits, and no waiting between tries."""
    monkeypatch.setattr("swift_infer.openai_server.time.sleep", lambda _: None)
    monkeypatch.setattr("swift_infer.openai_server._TRIES", 2)
    monkeypatch.setattr("swift_infer.http_client.LARGEST", 1 << 20)
    monkeypatch.setattr("swift_infer.http_client.LONGEST_LINE", 1 << 20)


def wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that never respond in time: a busy machine must not make others late."""
    monkeypatch.setattr("swift_infer.openai_server._TIMEOUT", 0.2)


@pytest.mark.parametrize("case", sampled(CASES, 4))
def test_server_that_misbehaves_is_named(case: Case, template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if LATE in case.names:
        wait_less(monkeypatch)
    try:
        judge(case, template)
    finally:
        SERVERS.pop().__exit__(None, None, None)


def piece(delta: object) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "token_ids": [65]}]}


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (stream(b"5"), "the number 5 as an event"),
        (stream({"choices": 5}), "the number 5 as choices"),
        (stream(piece(None)), "null as delta"),
        (stream(piece({"content": 5})), "the number 5 as content"),
        (stream(piece({"content": "Hi"}), end=b""), "ended in the middle of "),
        (without_end(stream(end=b""), b": still there\n\n", 0.02), LATE),
        (without_end(stream(end=b""), b"data: {}\n\n"), "more than 1032 events"),
        (without_end(stream(end=b""), b"a" * 65536), "a line of more than 1 MiB"),
    ],
)
def test_invalid_stream_of_events_is_refused(sent: Reply, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if complaint == LATE:
        wait_less(monkeypatch)
    with hostile_server({"/v1/models": MODELS, "/v1/chat": sent}) as address:
        client = RemoteChatEngine(address, say=lambda _: None)
        with pytest.raises(ModelError, match=address) as refused:
            list(client.stream([{"role": "user", "content": "Hello"}], Sampling(max_new_tokens=2)))
    assert complaint in refused.value.message


def test_stream_with_a_finish_reason_needs_no_other_end() -> None:
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    with hostile_server({"/v1/models": MODELS, "/v1/chat": stream(piece({"content": "Hi"}), last, end=b"")}) as address:
        client = RemoteChatEngine(address, say=lambda _: None)
        sent = client.stream([{"role": "user", "content": "Hello"}], Sampling(max_new_tokens=2))
        assert "".join(sent) == "Hi"


def completion(**changes: Any) -> bytes:
    sent = {"token_ids": [65, 66], "logprobs": {"token_logprobs": [-1.0, -1.0]}, "finish_reason": "stop"}
    of_the_prompt = {"prompt_logprobs": [None, {"66": {"logprob": -1.0, "rank": 1}}]}
    return json.dumps({"choices": [sent | of_the_prompt | changes]}).encode()


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"{}", "choices"),
        (completion(token_ids=["a", "b"]), r" as token_ids\[0\]"),
        (completion(token_ids=[10**30, 5]), "a huge number as token_ids"),
        (completion(token_ids=[65]), "2 log-probabilities for 1 tokens"),
        (completion(logprobs=None), "logprobs.token_logprobs"),
        (completion(logprobs={"token_logprobs": [float("nan"), -1.0]}), r"nan as logprobs.token_logprobs\[0\]"),
        (completion(logprobs={"token_logprobs": [-1.0, 7.5]}), r"7.5.* as logprobs.token_logprobs\[1\]"),
        (completion(finish_reason="abort"), "'abort' as finish_reason"),
        (completion(token_ids=[65] * 3, logprobs={"token_logprobs": [-1.0] * 3}), "3 tokens instead of at most 2"),
    ],
)
def test_invalid_tokens_are_refused_by_their_index(sent: bytes, complaint: str) -> None:
    with (
        hostile_server({"/v1/models": MODELS, "/v1/completions": reply(sent)}) as address,
        pytest.raises(ModelError, match=complaint),
    ):
        list(connect(address).generate([[65]], Sampling(max_new_tokens=2, temperature=1.0)))


@pytest.mark.parametrize(
    "invalid",
    [
        None,
        [None],
        [None, {"67": {"logprob": -1.0, "rank": 1}}],
        [None, {"66": "likely"}],
        [None, {"66": {"logprob": float("nan"), "rank": 1}}],
        [None, {"b": {"logprob": -1.0, "rank": 1}}],
        [None, {"66": {"logprob": 7.5, "rank": 1}}],
    ],
)
def test_invalid_prompt_logprobs_are_refused(invalid: object) -> None:
    sent = completion(prompt_logprobs=invalid)
    with (
        hostile_server({"/v1/models": MODELS, "/v1/completions": reply(sent)}) as address,
        pytest.raises(ModelError, match=f"{address} .* as prompt_logprobs"),
    ):
        list(connect(address).score([[65, 66]]))


ITEM = RewardItem([{"role": "user", "content": "?"}], "!", [65], "stop", {}, "row 1")


@pytest.mark.parametrize("how", [*list(BROKEN)[::3], "other fields", "NaN", "a string"])
def test_reward_server_that_fails_is_named(how: str) -> None:
    score = {"NaN": float("nan"), "a string": "5"}.get(how)
    sent = BROKEN[how][0] if how in BROKEN else reply({} if score is None else {"data": [{"probs": [score]}]})
    seconds = 0.2 if LATE in BROKEN.get(how, ()) else 60.0
    with hostile_server({"/": sent}) as address:
        (scored,) = ServerReward(address, seconds=seconds).score([ITEM])
        (judged,) = JudgeReward(JudgeOptions(base_url=address, seconds=seconds)).score([ITEM])
    for problem in (scored, judged):
        assert isinstance(problem, OSError | ModelError)
        assert address in str(problem)
