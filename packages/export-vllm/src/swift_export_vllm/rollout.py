"""A vLLM server next to a run, for rollouts: tokens in, tokens out, and new weights through files that both can see.

Of vLLM's own ways to take weights over the network, those between GPUs need a group of processes that holds trainer
and server, and a GPU for each. Reading a folder works on every machine, with any parallel layout of the server, and
needs nothing but vLLM's `reload_weights`; the price is one write and one read of the model, in memory where the folder
is in `/dev/shm`.
"""

from __future__ import annotations

import math
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.contracts import Completion, EngineRequest, InferenceEngine, Sampling, Score, WeightStream
from swift.errors import DataError, ModelError, SwiftError, UsageError
from swift.terminal import say_nothing
from swift_export_vllm.adapters import incompatibility, write_adapter
from swift_export_vllm.sampling import DISTRIBUTIONS, KINDS, Kind, kind_of, sampling_settings, score_of
from swift_export_vllm.weights_folder import write_weights
from swift_infer import OpenAiServer, at_once

AT_A_TIME = 128
"""Requests under way at once; the server has a queue of its own."""
_ROUNDED = 1e-2
"""Log-probabilities end at 0; a server that computes in low precision may round a little beyond."""
_PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Over what the served folder's generation config would set: nothing but the sampling decides."""


def connect(
    address: str | Sequence[str],
    *,
    model: str | None = None,
    api_key: str | None = None,
    end_tokens: Sequence[int] = (),
    folder: str | Path | None = None,
    at_a_time: int = AT_A_TIME,
) -> InferenceEngine:
    """Connect to the vLLM server at `address`, such as `http://127.0.0.1:8000`, or to several that serve one model.

    Prompts go to servers by their number, and sample the same on any of them. `end_tokens` end a completion in
    addition to those that the server knows. New weights are written under `folder` (default: the system's temporary
    one), which the servers must see too; they must have been started with `VLLM_SERVER_DEV_MODE=1` in their environment
    to take them, as `swift rollout` does.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("No server address was passed.", hint="For example: http://127.0.0.1:8000")
    known = {each: _Served.of(OpenAiServer(each, api_key), model) for each in dict.fromkeys(addresses)}
    return VllmServer(
        [known[each] for each in addresses], tuple(end_tokens), None if folder is None else Path(folder), at_a_time
    )


_SETTINGS = ("servers", "model", "api_key", "folder")
_ONLY_WHOLE = "Sending whole weights with the adapter merged in to the servers:"


def open_servers(request: EngineRequest) -> InferenceEngine:
    """Connect to the servers of a request's settings, which have loaded the model in their own ways."""
    settings = dict(request.options)
    if unknown := [name for name in settings if name not in _SETTINGS]:
        raise UsageError(
            f"{unknown[0]!r} is an option of vLLM, but the servers are already running.",
            hint=f"Pass it to swift rollout. Options of the connection: {', '.join(_SETTINGS[1:])}",
        )
    if request.adapter is not None:
        raise UsageError(
            "A running server cannot be given --adapters.", hint="Start it with the adapter: swift rollout RUN"
        )
    opened = connect(
        settings.pop("servers"),
        end_tokens=request.end_tokens,
        at_a_time=request.batch_size or AT_A_TIME,
        **settings,
    )
    assert isinstance(opened, VllmServer)
    if request.trained_adapter is not None:
        trait = incompatibility(request.trained_adapter)
        if trait is not None:
            request.say(f"{_ONLY_WHOLE} it {trait}, which vLLM does not support.")
        elif fixed := opened.without_adapters():
            request.say(
                f"{_ONLY_WHOLE} {fixed} loads no adapters (to change that: swift rollout MODEL --runtime-adapters)."
            )
        else:
            opened.takes_adapters = True
    return opened


@dataclass
class _Served:
    """A model on a server."""

    server: OpenAiServer
    model: str
    logprobs: Kind | None = None
    """Whose log-probabilities it returns, once that was found."""
    adapter: str | None = None
    """Name of the adapter in use."""
    extended: bool | None = None
    """Whether its workers have the methods of `swift_export_vllm.worker`, once known."""
    room: bool | None = None
    """Whether it has room for adapters, once known."""
    mark: str = ""
    """Of the weights that it was sent last."""

    @classmethod
    def of(cls, server: OpenAiServer, model: str | None) -> _Served:
        # The base, which stands behind its adapters: it is what gets new weights.
        return cls(server, server.choose(model or next(reversed(server.models()), None), say_nothing))

    @property
    def served_model(self) -> str:
        """Return the model that requests name."""
        return self.adapter or self.model

    def completion(self, prompt: Sequence[int], settings: dict[str, Any]) -> Any:
        """Return the one choice of a completion, in tokens."""
        if not prompt:
            raise DataError("A prompt has no tokens.", hint="Remove the empty prompt, or give it some text.")
        response = self.server.post("/v1/completions", {**settings, "model": self.served_model, "prompt": list(prompt)})
        choice: dict[str, Any] = self.server.field(response, "choices", 0, kind=dict)
        if choice.get("token_ids") is None:
            raise ModelError(
                f"The server at {self.server.address} does not return tokens.",
                hint="Rollouts need a vLLM server of a version that swift-export-vllm supports.",
            )
        return choice

    def sampled(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        """Return the tokens of a completion and their log-probabilities."""
        ids = self.server.numbers(choice, "token_ids", kind=int)
        logprobs = self.server.numbers(choice, "logprobs", "token_logprobs")
        if len(ids) != len(logprobs):
            count = f"{len(logprobs)} log-probabilities for {len(ids)} tokens"
            raise self.server.unexpected("logprobs.token_logprobs", count)
        for index, value in enumerate(logprobs):
            if not -math.inf < value <= _ROUNDED:  # logits, say: another --logprobs-mode returns them
                raise self.server.unexpected(f"logprobs.token_logprobs[{index}]", f"{value:g} (not a log-probability)")
        reason = choice.get("finish_reason")
        if reason in ("abort", "error"):  # an incomplete completion
            raise self.server.unexpected("finish_reason", f"{reason!r}")
        if reason is not None:
            self.server.field(choice, "finish_reason", kind=str)
        return ids, logprobs

    def scored(self, choice: Mapping[str, Any], prompt: Sequence[int], top: int) -> Score:
        """Return the score of the prompt of a completion."""
        steps = self.server.field(choice, "prompt_logprobs", kind=list)
        try:
            rows = [
                {int(token): (_logprob(each["logprob"]), int(each["rank"])) for token, each in (step or {}).items()}
                for step in steps
            ]
            return score_of(prompt, rows, top)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            raise self.server.unexpected("prompt_logprobs", "an invalid value") from None

    def check_logprobs(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Raise `ModelError` if the server returns log-probabilities of another kind, which is found by a request."""
        if sampling.samples_unmodified:
            return

        def likeliest(temperature: float) -> float:
            body = {**_PLAIN, "max_tokens": 1, "temperature": temperature, "logprobs": 1, "return_token_ids": True}
            found = self.server.field(self.completion(prompt, body), "logprobs", "top_logprobs", 0, kind=dict)
            return float(max(self.server.numbers({"logprobs": [*found.values()]}, "logprobs"), default=0.0))

        self.logprobs = self.logprobs or kind_of(likeliest)
        if self.logprobs != sampling.logprobs:
            mode = next(mode for mode, kind in KINDS.items() if kind == sampling.logprobs)
            returns = DISTRIBUTIONS[self.logprobs] if self.logprobs else "of an unknown distribution"
            raise UsageError(
                f"The server at {self.server.address} returns log-probabilities {returns}, but those "
                f"{DISTRIBUTIONS[sampling.logprobs]} are required.",
                hint=f"Restart it with --logprobs-mode {mode}.",
            )

    def on_workers(self, method: str, **arguments: Any) -> list[Mapping[str, Any]]:
        """Call a method of `swift_export_vllm.worker` on all workers, and return the results."""
        body = {"method": method, "kwargs": arguments}
        response = self.server.post("/collective_rpc", body)
        results = self.server.field(response, "results", kind=list)
        return [self.server.field(response, "results", number) or {} for number in range(len(results))]

    def prepare(self) -> None:
        """Have the server draw by seeds as the engine `transformers` does, where its workers know how."""
        if self.extended is None:
            try:
                self.on_workers("swift_sample_by_seed")
                self.extended = True
            except SwiftError:
                self.extended = False  # an older server, or one that somebody else has started

    def load(self, folder: Path, mark: str) -> None:
        """Have the server read all its weights from a folder, once it is at the end of what it is at."""
        self.prepare()
        self.command("/pause?mode=wait")
        try:
            if self.extended:
                missing = [
                    each
                    for report in self.on_workers("swift_reload", folder=str(folder), mark=mark)
                    for each in self.server.field(report, "missing", kind=list)
                ]
                if missing:
                    raise ModelError(
                        f"The server at {self.server.address} did not receive all weights ({missing[0]} is missing). "
                        "It would mix old and new weights.",
                        hint="Stream every weight of the model; adapters are merged first.",
                    )
            else:
                self.command("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            self.command("/reset_prefix_cache")
            self.mark = mark
        finally:
            self.command("/resume")

    def put_on(self, folder: Path, mark: str) -> None:
        """Have the server load an adapter, and let go of the one before."""
        self.prepare()
        if not self.mark and self.extended and any(self.marks()):
            raise ModelError(
                f"The server at {self.server.address} has whole weights of another run, so adapters do not fit.",
                hint="Restart it: swift rollout MODEL",
            )
        name = mark.replace(" ", "-")
        self.command("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        before, self.adapter, self.mark = self.adapter, name, mark
        if before is not None:
            self.command("/v1/unload_lora_adapter", {"lora_name": before})

    def check_mark(self) -> None:
        """Raise `ModelError` if a server no longer has the weights that it was sent."""
        if not self.mark or not self.extended or self.adapter is not None:
            return  # an adapter's name tells its version with every answer
        held = self.marks()
        if held != {self.mark}:
            why = "it was restarted" if held == {""} else "another run has sent its own"
            raise ModelError(
                f"The server at {self.server.address} no longer has this run's weights: {why}.",
                hint="Resume the run from its last checkpoint, with servers that no other run uses.",
            )

    def marks(self) -> set[str]:
        """Return the marks of the weights that its workers have."""
        return {self.server.field(report, "mark", kind=str) for report in self.on_workers("swift_state")}

    def command(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a command of the development mode."""
        try:
            self.server.send(path, body)
        except ModelError as failure:
            if "does not have OpenAI's API" not in failure.message:
                raise
            raise ModelError(
                f"The server at {self.server.address} cannot receive weights: no endpoint {path.partition('?')[0]}.",
                hint="Start it with swift rollout, or with VLLM_SERVER_DEV_MODE=1 on a loopback address.",
            ) from failure

    @property
    def has_room_for_adapters(self) -> bool:
        """Return whether it serves adapters, or may."""
        if self.room is None:
            self.room = len(self.server.models()) > 1 or self.loads_adapters()
        return self.room

    def loads_adapters(self) -> bool:
        """Return whether adapters may come while it runs."""
        try:
            self.server.send("/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""})
        except DataError:  # it asks for a name
            return True
        except SwiftError:
            return False
        return True


class VllmServer:
    """Implements `swift.contracts.InferenceEngine`, by one server or several."""

    def __init__(
        self, servers: Sequence[_Served], end_tokens: tuple[int, ...], folder: Path | None, at_a_time: int
    ) -> None:
        self._servers = servers
        self._ends = list(end_tokens)
        self._folder = folder
        self._at_a_time = at_a_time * len(servers)
        self.version: int | None = None
        """How many optimizer steps made the weights, where a run has sent them."""
        self.takes_adapters = False
        """Whether the adapters in training are sent alone."""
        self._run = uuid.uuid4().hex[:8]
        self._updates = 0

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield a request for each prompt, many at a time."""
        for served in self._servers if prompts and prompts[0] else ():
            served.check_logprobs(prompts[0], sampling)

        def ask(index: int) -> Completion:
            number = index if sampling.numbers is None else sampling.numbers[index]
            served = self._server_of(number)
            choice = served.completion(prompts[index], self._settings(sampling, index))
            ids, logprobs = served.sampled(choice)
            if len(ids) > sampling.max_new_tokens:
                count = f"{len(ids)} tokens instead of at most {sampling.max_new_tokens}"
                raise served.server.unexpected("token_ids", count)
            # The server knows no function: tokens after the end of a completion are cut off here.
            for length in range(1, len(ids) + 1 if sampling.is_over is not None else 0):
                if sampling.is_over is not None and sampling.is_over(ids[:length]):
                    return Completion(ids[:length], logprobs[:length], "stop", self.version)
            reason = "stop" if choice.get("finish_reason") == "stop" else "length"
            return Completion(ids, logprobs, reason, self.version)

        self._check_marks()
        yield from at_once(ask, range(len(prompts)), self._at_a_time)
        self._check_marks()

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Stream server-sent events."""
        served = self._servers[0]
        body = {**self._settings(sampling, 0), "model": served.served_model, "prompt": list(prompt), "stream": True}
        ids: list[int] = []
        for event in served.server.events("/v1/completions", body, tokens=sampling.max_new_tokens):
            for choice in served.server.choices(event):
                given = choice.get("token_ids") is not None
                for token in served.server.numbers(choice, "token_ids", kind=int) if given else ():
                    yield token
                    ids.append(token)
                    if sampling.is_over is not None and sampling.is_over(ids):
                        return

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Yield a request for each prompt; the one token that is made is not looked at."""

        def ask(index: int) -> Score:
            body = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top, "return_token_ids": True}
            served = self._server_of(index)
            return served.scored(served.completion(prompts[index], body), prompts[index], top)

        # With room for adapters, vLLM on a CPU takes the logits of a prompt for those of as many requests, and ends if
        # there are others: one at a time is right.
        alone = any(served.has_room_for_adapters for served in self._servers)
        yield from at_once(ask, range(len(prompts)), 1 if alone else self._at_a_time)

    def update_weights(self, weights: WeightStream) -> None:
        """Write them, let every server come to the end of what it is at, and have it read them."""
        with self._sent() as (folder, mark):
            write_weights(weights, folder)
            self._on_each(lambda served: served.load(folder, mark))

    def update_adapter(self, weights: WeightStream, config: Mapping[str, Any]) -> None:
        """Write an adapter, and have every server put it on the model that it was started with."""
        with self._sent() as (folder, mark):
            write_adapter(weights, config, folder)
            self._on_each(lambda served: served.put_on(folder, mark))

    def without_adapters(self) -> str | None:
        """Return the address of a server that takes no adapters while it runs."""
        return next((each.server.address for each in self._servers if not each.loads_adapters()), None)

    @contextmanager
    def _sent(self) -> Iterator[tuple[Path, str]]:
        """Yield a folder for what is sent, and the mark of this update."""
        self.version = None
        self._updates += 1
        with tempfile.TemporaryDirectory(prefix="swift-weights-", dir=self._folder) as folder:
            # Others may be the server's user.
            Path(folder).chmod(0o755)
            yield Path(folder).resolve(), f"run {self._run} update {self._updates}"

    def _on_each(self, work: Callable[[_Served], None]) -> None:
        different = list({id(served): served for served in self._servers}.values())
        for _ in at_once(lambda number: work(different[number]), range(len(different)), len(different)):
            pass

    def _check_marks(self) -> None:
        self._on_each(_Served.check_mark)

    def close(self) -> None:
        """Do nothing: the servers are not ours."""

    def _server_of(self, number: int) -> _Served:
        return self._servers[number % len(self._servers)]

    def _settings(self, sampling: Sampling, index: int) -> dict[str, Any]:
        return {**_PLAIN, **sampling_settings(sampling, index, self._ends), "return_token_ids": True}


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not value <= _ROUNDED:
        raise ValueError("not a log-probability")
    return float(value)
