"""A vLLM server next to a run, for rollouts: tokens in, tokens out, and new weights through files that both can see.

Of vLLM's own ways to take weights over the network, those between GPUs need a group of processes that holds trainer
and server, and a GPU for each. Reading a folder works on every machine, with any parallel layout of the server, and
needs nothing but vLLM's `reload_weights`; the price is one write and one read of the model, in memory where the folder
is in `/dev/shm`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from swift.contracts import Completion, InferenceEngine, Sampling, Score, WeightStream
from swift.errors import DataError, ModelError
from swift.infer import OpenAiServer, at_once
from swift_export_vllm.weights_folder import write_weights

AT_A_TIME = 128
"""Requests under way at once; the server has a queue of its own."""
_PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Over what the served folder's generation config would set: nothing but the sampling decides."""


def connect(
    address: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    end_tokens: Sequence[int] = (),
    folder: str | Path | None = None,
    at_a_time: int = AT_A_TIME,
) -> InferenceEngine:
    """Connect to the vLLM server at `address`, such as `http://127.0.0.1:8000`.

    `end_tokens` end an answer in addition to those that the server knows. New weights are written under `folder`
    (default: the system's temporary one), which the server must see too; it must have been started with
    `VLLM_SERVER_DEV_MODE=1` in its environment to take them.
    """
    return VllmServer(
        OpenAiServer(address, api_key), model, tuple(end_tokens), None if folder is None else Path(folder), at_a_time
    )


class VllmServer:
    """Implements `swift.contracts.InferenceEngine`."""

    def __init__(
        self,
        server: OpenAiServer,
        model: str | None,
        end_tokens: tuple[int, ...],
        folder: Path | None,
        at_a_time: int,
    ) -> None:
        self._server = server
        # The base, which stands behind its adapters: it is what gets new weights.
        self._model = server.choose(model or next(reversed(server.models()), None), _nothing)
        self._ends = list(end_tokens)
        self._folder = folder
        self._at_a_time = at_a_time

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield a request for each prompt, many at a time."""

        def ask(place: int) -> Completion:
            choice = self._completion(prompts[place], self._settings(sampling, place))
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            # The server knows no function: what it said after the end of an answer is left out here.
            for length in range(1, len(ids) + 1 if sampling.is_over is not None else 0):
                if sampling.is_over is not None and sampling.is_over(ids[:length]):
                    return Completion(ids[:length], logprobs[:length], "stop")
            return Completion(ids, logprobs, "stop" if choice["finish_reason"] == "stop" else "length")

        yield from at_once(ask, range(len(prompts)), self._at_a_time)

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Stream server-sent events."""
        body = {**self._settings(sampling, 0), "model": self._model, "prompt": list(prompt), "stream": True}
        told: list[int] = []
        for event in self._server.events("/v1/completions", body):
            for choice in event.get("choices") or ():
                for token in choice.get("token_ids") or ():
                    yield token
                    told.append(token)
                    if sampling.is_over is not None and sampling.is_over(told):
                        return

    def score(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Score]]:
        """Yield a request for each prompt; the one token that is made is not looked at."""

        def ask(place: int) -> Score:
            asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "return_token_ids": True}
            steps = self._completion(prompts[place], asked)["prompt_logprobs"]
            told = [step[str(token)] for token, step in list(zip(prompts[place], steps, strict=True))[1:]]
            return Score([each["logprob"] for each in told], [each["rank"] == 1 for each in told])

        yield from at_once(ask, range(len(prompts)), self._at_a_time)

    def update_weights(self, weights: WeightStream) -> None:
        """Write them, let the server come to the end of what it is at, and have it read them."""
        with tempfile.TemporaryDirectory(prefix="swift-weights-", dir=self._folder) as folder:
            # Others may be the server's user.
            Path(folder).chmod(0o755)
            write_weights(weights, Path(folder))
            self._told("/pause?mode=wait")
            try:
                reload = {"method": "reload_weights", "kwargs": {"weights_path": str(Path(folder).resolve())}}
                self._told("/collective_rpc", reload)
                self._told("/reset_prefix_cache")
            finally:
                self._told("/resume")

    def close(self) -> None:
        """Do nothing: the server is not ours."""

    def _settings(self, sampling: Sampling, place: int) -> dict[str, Any]:
        return {
            **_PLAIN,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p if sampling.top_p > 0 else 1e-9,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed_of(place) if sampling.temperature > 0 else None,
            "stop_token_ids": self._ends,
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _completion(self, prompt: Sequence[int], settings: dict[str, Any]) -> Any:
        if not prompt:
            raise DataError("There is a prompt without any tokens.", hint="Give each prompt some text.")
        answer = self._server.post("/v1/completions", {**settings, "model": self._model, "prompt": list(prompt)})
        choice = answer["choices"][0]
        if choice.get("token_ids") is None:
            raise ModelError(
                f"The server at {self._server.address} does not return tokens.",
                hint="Rollouts need vLLM's own server, of a version that swift-export-vllm goes with.",
            )
        return choice

    def _told(self, path: str, body: dict[str, Any] | None = None) -> None:
        try:
            self._server.post(path, body)
        except ModelError as failure:
            if "does not speak" not in failure.message:
                raise
            raise ModelError(
                f"The server at {self._server.address} takes no new weights: it has no {path.partition('?')[0]}.",
                hint="Start it with VLLM_SERVER_DEV_MODE=1 in its environment, on loopback.",
            ) from failure


def _nothing(_: str) -> None:
    pass
