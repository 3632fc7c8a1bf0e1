"""Verified updates of an engine: what arrived is what was sent, and it computes what the model in training computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift.errors import TrainingError

if TYPE_CHECKING:
    from swift.contracts import Completion, InferenceEngine, Sampling, Score, WeightStream

Checksum = tuple[int, int]
"""Of the bits of a tensor: their sum, and one in which places count."""
_BLOCK = 64
_NAMED = 4
"""Tensors named in an error; the rest are counted."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SyncError(TrainingError):
    """An engine does not answer with the weights in training."""


class VerifiedEngine:
    """An engine whose updates are verified. Implements `swift.contracts.InferenceEngine`.

    Checksums of what was sent are compared with those of what the engine holds, where it can show it.
    """

    def __init__(self, engine: InferenceEngine, *, vocabulary: int | None = None) -> None:
        self.engine = engine
        self._vocabulary = vocabulary
        self.version: int | None = None
        """How many optimizer steps made its weights."""
        self.verified = False
        """Whether the last update was compared tensor by tensor."""
        self._sent: dict[str, Checksum] = {}
        self._before: dict[str, Checksum] = {}

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield the engine's answers; one by other weights than the last update's, or of other tokens, is an error."""
        for place, completion in self.engine.generate(prompts, sampling):
            if self.version is not None and completion.version not in (None, self.version):
                raise SyncError(
                    f"The engine answered with the weights of step {completion.version}, and was sent those of step "
                    f"{self.version}.",
                    hint="Does another run send its weights to the same server?",
                )
            if (strange := self._strange(completion.token_ids)) is not None:
                raise SyncError(
                    f"The engine answered with the token {strange}, and the model in training has {self._vocabulary} "
                    "tokens.",
                    hint="Does the server serve another model?",
                )
            yield place, completion

    def _strange(self, ids: Sequence[int]) -> int | None:
        """Return a token of an answer that the model does not have."""
        if self._vocabulary is None:
            return None
        return next((token for token in ids if not 0 <= token < self._vocabulary), None)

    def batches(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]] | None:
        """Return the places of prompts that the engine answers together; None where that makes no difference."""
        batches: Callable[..., list[list[int]]] | None = getattr(self.engine, "batches", None)
        return None if batches is None else batches(prompts, sampling)

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one answer."""
        return self.engine.stream(prompt, sampling)

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Yield the engine's scores."""
        return self.engine.score(prompts, top=top) if top else self.engine.score(prompts)

    def update_weights(self, weights: WeightStream) -> None:
        """Update the engine, and raise `SyncError` by the names of tensors that did not arrive as they were sent."""
        held: Callable[[], WeightStream] | None = getattr(self.engine, "weights", None)
        kinds = {} if held is None else {name: tensor.dtype for name, tensor in held()}
        self._before, self._sent = self._sent, {}

        def summed() -> WeightStream:
            for name, tensor in weights:
                if name in kinds:
                    self._sent[name] = checksum(tensor.to(kinds[name]))
                yield name, tensor

        self.version = None
        self.engine.update_weights(summed())
        self.verified = held is not None
        if held is not None:
            self._compare({name: checksum(tensor) for name, tensor in held()})

    @property
    def takes_adapters(self) -> bool:
        """Return whether the engine is sent the adapters in training alone."""
        return bool(getattr(self.engine, "takes_adapters", False))

    def update_adapter(self, weights: WeightStream, config: Mapping[str, Any]) -> None:
        """Put the adapters in training on the engine's model; the probe compares what becomes of it."""
        self.version = None
        self.verified = False
        self._before, self._sent = {}, {}
        self.engine.update_adapter(weights, config)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def __setattr__(self, name: str, value: Any) -> None:
        """Tell the engine its version as well."""
        super().__setattr__(name, value)
        if name == "version" and hasattr(self.engine, "version"):
            self.engine.version = value

    def _compare(self, held: Mapping[str, Checksum]) -> None:
        wrong = {name: told for name, told in held.items() if told != self._sent.get(name)}
        if not wrong:
            return
        named = "; ".join(f"{name} {self._why(name, told)}" for name, told in list(wrong.items())[:_NAMED])
        more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise SyncError(
            f"After an update the engine does not hold the weights that were sent, {len(wrong)} of {len(held)} differ: "
            f"{named}{more}.",
            hint="The engine's update_weights or the backend's swift_iter_weights is wrong. Another engine: "
            "--rollout_engine",
        )

    def _why(self, name: str, told: Checksum) -> str:
        if name not in self._sent:
            return "was not sent"
        if told == self._before.get(name):
            return "is still that of the update before"
        other = next((other for other, sent in self._sent.items() if sent == told), None)
        return "arrived changed" if other is None else f"holds what was sent as {other}"


def checksum(tensor: torch.Tensor) -> Checksum:
    """Return sums of a tensor's bits as whole numbers: exact, and the same on every device."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).flatten()
    whole = len(bits) // _BLOCK * _BLOCK
    blocks = bits[:whole].view(-1, _BLOCK).sum(1, dtype=torch.int64)
    rest = bits[whole:].to(torch.int64)
    places = torch.arange(1, len(blocks) + 1, device=bits.device)
    ends = torch.arange(len(blocks) + 1, len(blocks) + 1 + len(rest), device=bits.device)
    return int(blocks.sum() + rest.sum()), int((blocks * places).sum() + (rest * ends).sum())


@dataclass(frozen=True)
class ProbeResult:
    """How far an engine's log-probabilities of the probe are from those of the model in training, in nats."""

    mean: float
    largest: float


class Probe:
    """A few fixed texts that engine and trainer score after every update."""

    def __init__(self, texts: Sequence[Sequence[int]], *, tolerance: float) -> None:
        self.texts = [list(text) for text in texts if len(text) > 1]
        self.tolerance = tolerance
        """Largest mean difference, in nats per token."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], *, tolerance: float, count: int = 4, longest: int = 64) -> Probe:
        """Return a probe of the ends of the first prompts that differ."""
        texts = dict.fromkeys(tuple(int(token) for token in prompt[-longest:]) for prompt in prompts)
        return cls(list(texts)[:count], tolerance=tolerance)

    def check(self, engine: VerifiedEngine, logps: Sequence[np.ndarray]) -> ProbeResult:
        """Compare the engine with the trainer's log-probabilities, one for every token of a text after its first.

        Raise `SyncError` where they differ by more than the tolerance.
        """
        scores = dict(engine.score(self.texts))
        gaps = [
            np.abs(np.asarray(scores[place].logprobs, dtype=np.float64) - np.asarray(known, dtype=np.float64))
            for place, known in enumerate(logps)
        ]
        together = np.concatenate(gaps) if gaps else np.zeros(1)
        result = ProbeResult(float(together.mean()), float(together.max()))
        # A number that is none compares with nothing.
        if not result.mean <= self.tolerance:
            raise self._failure(engine, result, gaps)
        return result

    def _failure(self, engine: VerifiedEngine, result: ProbeResult, gaps: Sequence[np.ndarray]) -> SyncError:
        text = max(range(len(gaps)), key=lambda place: float(np.nan_to_num(gaps[place], nan=np.inf).max(initial=0.0)))
        token = int(np.nan_to_num(gaps[text], nan=np.inf).argmax()) + 1
        differs = (
            f"After the update at step {engine.version} the engine scores known texts {result.mean:.2g} nats per token "
            f"differently than the model in training, at most {self.tolerance:.2g} are allowed; furthest "
            f"({result.largest:.2g}) at token {token} of text {text}."
        )
        if engine.verified:
            return SyncError(
                f"{differs} Every weight arrived as it was sent: the engine computes differently.",
                hint="Give it the precision and the attention of the training, or raise --rollout_tolerance.",
            )
        return SyncError(
            f"{differs} The engine cannot show its weights: some may be missing, old, or in each other's place.",
            hint="Try --rollout_engine transformers, which names them; in lower precision raise --rollout_tolerance.",
        )
