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
from swift.infer import OpenAiServer, at_once
from swift_export_vllm.adapters import incompatibility, write_adapter
from swift_export_vllm.logprobs import KINDS, SAID, Kind, kind_of, score_of
from swift_export_vllm.weights_folder import write_weights

AT_A_TIME = 128
"""Requests under way at once; the server has a queue of its own."""
_ROUNDED = 1e-2
"""Log-probabilities end at 0; a server that computes in few bits may round a little beyond."""
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

    Prompts are dealt to servers by their number, and each draws the same on any of them. `end_tokens` end an answer in
    addition to those that the server knows. New weights are written under `folder` (default: the system's temporary
    one), which the servers must see too; they must have been started with `VLLM_SERVER_DEV_MODE=1` in their environment
    to take them, as `swift rollout` does.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise UsageError("There is no address of a server to connect to.", hint="For example: http://127.0.0.1:8000")
    known = {each: _Served.of(OpenAiServer(each, api_key), model) for each in dict.fromkeys(addresses)}
    return VllmServer(
        [known[each] for each in addresses], tuple(end_tokens), None if folder is None else Path(folder), at_a_time
    )


_SETTINGS = ("servers", "model", "api_key", "folder")
_ONLY_WHOLE = "The servers are sent whole weights, with the adapter merged in:"


def open_servers(request: EngineRequest) -> InferenceEngine:
    """Connect to the servers of a request's settings, which have loaded the model in their own ways."""
    settings = dict(request.options)
    if unknown := [name for name in settings if name not in _SETTINGS]:
        raise UsageError(
            f"{unknown[0]!r} is a setting of vLLM, and the servers have been started with theirs.",
            hint=f"Give it to swift rollout. Settings of the connection are: {', '.join(_SETTINGS[1:])}",
        )
    if request.adapter is not None:
        raise UsageError(
            "An adapter cannot be put on a server from here.", hint="swift rollout serves runs and adapters as well."
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
            request.say(f"{_ONLY_WHOLE} it {trait}, which vLLM cannot put on.")
        elif fixed := opened.without_adapters():
            request.say(f"{_ONLY_WHOLE} {fixed} loads no adapters (swift rollout MODEL --runtime-adapters does).")
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
    """Name of the adapter that answers."""
    extended: bool | None = None
    """Whether its workers have the methods of `swift_export_vllm.worker`, once that was asked."""
    room: bool | None = None
    """Whether it has room for adapters, once that was asked."""
    mark: str = ""
    """Of the weights that it was sent last."""

    @classmethod
    def of(cls, server: OpenAiServer, model: str | None) -> _Served:
        # The base, which stands behind its adapters: it is what gets new weights.
        return cls(server, server.choose(model or next(reversed(server.models()), None), _nothing))

    @property
    def answers_as(self) -> str:
        """Return the model that requests name."""
        return self.adapter or self.model

    def completion(self, prompt: Sequence[int], settings: dict[str, Any]) -> Any:
        """Return the one choice of a completion, in tokens."""
        if not prompt:
            raise DataError("There is a prompt without any tokens.", hint="Give each prompt some text.")
        answer = self.server.post("/v1/completions", {**settings, "model": self.answers_as, "prompt": list(prompt)})
        choice: dict[str, Any] = self.server.found(answer, "choices", 0, kind=dict)
        if choice.get("token_ids") is None:
            raise ModelError(
                f"The server at {self.server.address} does not return tokens.",
                hint="Rollouts need vLLM's own server, of a version that swift-export-vllm goes with.",
            )
        return choice

    def drawn(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        """Return the tokens of a completion and their log-probabilities."""
        ids = self.server.numbers(choice, "token_ids", kind=int)
        logprobs = self.server.numbers(choice, "logprobs", "token_logprobs")
        if len(ids) != len(logprobs):
            told = f"{len(logprobs)} log-probabilities for {len(ids)} tokens"
            raise self.server.odd("logprobs.token_logprobs", told)
        for place, value in enumerate(logprobs):
            if not -math.inf < value <= _ROUNDED:  # logits, say: another --logprobs-mode returns them
                raise self.server.odd(f"logprobs.token_logprobs[{place}]", f"{value:g}, no log-probability,")
        reason = choice.get("finish_reason")
        if reason in ("abort", "error"):  # a part of an answer, which nobody has drawn to its end
            raise self.server.odd("finish_reason", f"{reason!r}")
        if reason is not None:
            self.server.found(choice, "finish_reason", kind=str)
        return ids, logprobs

    def scored(self, choice: Mapping[str, Any], prompt: Sequence[int], top: int) -> Score:
        """Return what a completion tells of its prompt."""
        steps = self.server.found(choice, "prompt_logprobs", kind=list)
        try:
            told = [
                {int(token): (_logprob(each["logprob"]), int(each["rank"])) for token, each in (step or {}).items()}
                for step in steps
            ]
            return score_of(prompt, told, top)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            told_of = "something that does not tell of each token of its prompt"
            raise self.server.odd("prompt_logprobs", told_of) from None

    def check_logprobs(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Refuse log-probabilities of another kind than the server returns; it does not say which, but they tell."""
        if sampling.samples_unmodified:
            return

        def likeliest(temperature: float) -> float:
            asked = {**_PLAIN, "max_tokens": 1, "temperature": temperature, "logprobs": 1, "return_token_ids": True}
            found = self.server.found(self.completion(prompt, asked), "logprobs", "top_logprobs", 0, kind=dict)
            return float(max(self.server.numbers({"logprobs": [*found.values()]}, "logprobs"), default=0.0))

        self.logprobs = self.logprobs or kind_of(likeliest)
        if self.logprobs != sampling.logprobs:
            mode = next(mode for mode, kind in KINDS.items() if kind == sampling.logprobs)
            returns = SAID[self.logprobs] if self.logprobs else "that do not tell of which distribution they are"
            raise UsageError(
                f"The server at {self.server.address} returns log-probabilities {returns}, and those "
                f"{SAID[sampling.logprobs]} are asked for.",
                hint=f"Start it with --logprobs-mode {mode}.",
            )

    def on_workers(self, method: str, **arguments: Any) -> list[Mapping[str, Any]]:
        """Call a method of `swift_export_vllm.worker` on all workers, and return what each says."""
        body = {"method": method, "kwargs": arguments}
        answer = self.server.post("/collective_rpc", body)
        results = self.server.found(answer, "results", kind=list)
        return [self.server.found(answer, "results", number) or {} for number in range(len(results))]

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
        self.told("/pause?mode=wait")
        try:
            if self.extended:
                missing = [
                    each
                    for report in self.on_workers("swift_reload", folder=str(folder), mark=mark)
                    for each in self.server.found(report, "missing", kind=list)
                ]
                if missing:
                    raise ModelError(
                        f"The server at {self.server.address} did not get all weights: {missing[0]}. Its answers would "
                        "be those of two models.",
                        hint="Stream every weight of the model; adapters are merged first.",
                    )
            else:
                self.told("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            self.told("/reset_prefix_cache")
            self.mark = mark
        finally:
            self.told("/resume")

    def put_on(self, folder: Path, mark: str) -> None:
        """Have the server load an adapter, and let go of the one before."""
        self.prepare()
        if not self.mark and self.extended and any(self.marks()):
            raise ModelError(
                f"The server at {self.server.address} has been sent the weights of another run, and adapters belong on "
                "those that it was started with.",
                hint="Stop it, and start it again: swift rollout MODEL",
            )
        name = mark.replace(" ", "-")
        self.told("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        before, self.adapter, self.mark = self.adapter, name, mark
        if before is not None:
            self.told("/v1/unload_lora_adapter", {"lora_name": before})

    def check_mark(self) -> None:
        """Refuse answers of a server that has other weights than it was sent."""
        if not self.mark or not self.extended or self.adapter is not None:
            return  # an adapter's name tells its version with every answer
        held = self.marks()
        if held != {self.mark}:
            why = "it was started again" if held == {""} else "another run has sent it its own"
            raise ModelError(
                f"The server at {self.server.address} does not have the weights that it was sent: {why}.",
                hint="Resume the run from its last checkpoint, with servers of its own.",
            )

    def marks(self) -> set[str]:
        """Return the marks of the weights that its workers have."""
        return {self.server.found(report, "mark", kind=str) for report in self.on_workers("swift_state")}

    def told(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a command of the development mode."""
        try:
            self.server.tell(path, body)
        except ModelError as failure:
            if "does not speak" not in failure.message:
                raise
            raise ModelError(
                f"The server at {self.server.address} takes no new weights: it has no {path.partition('?')[0]}.",
                hint="Start it with swift rollout, or with VLLM_SERVER_DEV_MODE=1 in its environment, on loopback.",
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
            self.server.tell("/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""})
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
        self._check(prompts, sampling)

        def ask(place: int) -> Completion:
            number = place if sampling.numbers is None else sampling.numbers[place]
            served = self._server_of(number)
            choice = served.completion(prompts[place], self._settings(sampling, place))
            ids, logprobs = served.drawn(choice)
            if len(ids) > sampling.max_new_tokens:
                told = f"{len(ids)} tokens where {sampling.max_new_tokens} were asked for"
                raise served.server.odd("token_ids", told)
            # The server knows no function: what it said after the end of an answer is left out here.
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
        body = {**self._settings(sampling, 0), "model": served.answers_as, "prompt": list(prompt), "stream": True}
        told: list[int] = []
        for event in served.server.events("/v1/completions", body, tokens=sampling.max_new_tokens):
            for choice in served.server.choices(event):
                given = choice.get("token_ids") is not None
                for token in served.server.numbers(choice, "token_ids", kind=int) if given else ():
                    yield token
                    told.append(token)
                    if sampling.is_over is not None and sampling.is_over(told):
                        return

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Yield a request for each prompt; the one token that is made is not looked at."""

        def ask(place: int) -> Score:
            asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top, "return_token_ids": True}
            served = self._server_of(place)
            return served.scored(served.completion(prompts[place], asked), prompts[place], top)

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

    def _check(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        for served in self._servers if prompts and prompts[0] else ():
            served.check_logprobs(prompts[0], sampling)

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


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not value <= _ROUNDED:
        raise ValueError("it is no log-probability")
    return float(value)


def _nothing(_: str) -> None:
    pass
