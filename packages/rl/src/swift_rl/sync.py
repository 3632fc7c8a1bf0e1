"""Verified updates of an engine: it holds the weights that were sent, and computes what the trainer computes."""

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
"""Two sums of a tensor's bits: plain, and weighted by position."""
_BLOCK = 64
_NAMED = 4
"""Tensors named in an error; the rest are counted."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SyncError(TrainingError):
    """An engine does not generate with the weights in training."""


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
        """Yield the engine's completions; raise for wrong weights or unknown tokens."""
        for index, completion in self.engine.generate(prompts, sampling):
            if self.version is not None and completion.version not in (None, self.version):
                raise SyncError(
                    f"The engine generated with the weights of step {completion.version}; expected those of step "
                    f"{self.version}.",
                    hint="Does another run send its weights to the same server?",
                )
            if (strange := self._strange(completion.token_ids)) is not None:
                raise SyncError(
                    f"The engine generated token {strange}, but the model in training has {self._vocabulary} tokens.",
                    hint="Does the server serve another model?",
                )
            yield index, completion

    def _strange(self, ids: Sequence[int]) -> int | None:
        """Return a token of a completion that the model does not have."""
        if self._vocabulary is None:
            return None
        return next((token for token in ids if not 0 <= token < self._vocabulary), None)

    def batches(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]] | None:
        """Return the indices of prompts that share a batch of the engine; None if batches do not affect results."""
        batches: Callable[..., list[list[int]]] | None = getattr(self.engine, "batches", None)
        return None if batches is None else batches(prompts, sampling)

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one completion."""
        return self.engine.stream(prompt, sampling)

    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Yield the engine's scores."""
        return self.engine.score(prompts, top=top) if top else self.engine.score(prompts)

    def update_weights(self, weights: WeightStream) -> None:
        """Update the engine; raise `SyncError` with the names of tensors that differ from those sent."""
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
        """Return whether the engine receives only the adapters in training."""
        return bool(getattr(self.engine, "takes_adapters", False))

    def update_adapter(self, weights: WeightStream, config: Mapping[str, Any]) -> None:
        """Put the adapters in training on the engine's model; the probe checks the result."""
        self.version = None
        self.verified = False
        self._before, self._sent = {}, {}
        self.engine.update_adapter(weights, config)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the engine's version too."""
        super().__setattr__(name, value)
        if name == "version" and hasattr(self.engine, "version"):
            self.engine.version = value

    def _compare(self, held: Mapping[str, Checksum]) -> None:
        wrong = {name: sum_held for name, sum_held in held.items() if sum_held != self._sent.get(name)}
        if not wrong:
            return
        named = "; ".join(f"{name} {self._why(name, sum_held)}" for name, sum_held in list(wrong.items())[:_NAMED])
        more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise SyncError(
            f"{len(wrong)} of {len(held)} weights of the engine differ from those sent: {named}{more}.",
            hint="Fix the engine's update_weights or the backend's swift_iter_weights, or choose another "
            "--rollout_engine.",
        )

    def _why(self, name: str, sum_held: Checksum) -> str:
        if name not in self._sent:
            return "was not sent"
        if sum_held == self._before.get(name):
            return "is still that of the previous update"
        other = next((other for other, sent in self._sent.items() if sent == sum_held), None)
        return "arrived changed" if other is None else f"holds what was sent as {other}"


def checksum(tensor: torch.Tensor) -> Checksum:
    """Return sums of a tensor's bits as whole numbers: exact, and the same on every device."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).flatten()
    whole = len(bits) // _BLOCK * _BLOCK
    blocks = bits[:whole].view(-1, _BLOCK).sum(1, dtype=torch.int64)
    rest = bits[whole:].to(torch.int64)
    positions = torch.arange(1, len(blocks) + 1, device=bits.device)
    ends = torch.arange(len(blocks) + 1, len(blocks) + 1 + len(rest), device=bits.device)
    return int(blocks.sum() + rest.sum()), int((blocks * positions).sum() + (rest * ends).sum())


@dataclass(frozen=True)
class ProbeResult:
    """How far an engine's log-probabilities of the probe are from those of the model in training, in nats."""

    mean: float
    largest: float


class Probe:
    """A few fixed sequences that engine and trainer score after every update."""

    def __init__(self, sequences: Sequence[Sequence[int]], *, tolerance: float) -> None:
        self.sequences = [list(each) for each in sequences if len(each) > 1]
        self.tolerance = tolerance
        """Largest mean difference, in nats per token."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], *, tolerance: float, count: int = 4, longest: int = 64) -> Probe:
        """Return a probe of the ends of the first prompts that differ."""
        sequences = dict.fromkeys(tuple(int(token) for token in prompt[-longest:]) for prompt in prompts)
        return cls(list(sequences)[:count], tolerance=tolerance)

    def check(self, engine: VerifiedEngine, logps: Sequence[np.ndarray]) -> ProbeResult:
        """Compare the engine with the trainer's log-probabilities of every token after the first of each sequence.

        Raise `SyncError` where they differ by more than the tolerance.
        """
        scores = dict(engine.score(self.sequences))
        differences = [
            np.abs(np.asarray(scores[index].logprobs, dtype=np.float64) - np.asarray(known, dtype=np.float64))
            for index, known in enumerate(logps)
        ]
        together = np.concatenate(differences) if differences else np.zeros(1)
        result = ProbeResult(float(together.mean()), float(together.max()))
        # nan must fail
        if not result.mean <= self.tolerance:
            raise self._failure(engine, result, differences)
        return result

    def _failure(self, engine: VerifiedEngine, result: ProbeResult, differences: Sequence[np.ndarray]) -> SyncError:
        worst = max(
            range(len(differences)),
            key=lambda index: float(np.nan_to_num(differences[index], nan=np.inf).max(initial=0.0)),
        )
        token = int(np.nan_to_num(differences[worst], nan=np.inf).argmax()) + 1
        differs = (
            f"After the update at step {engine.version} the engine's scores of known sequences differ from the "
            f"trainer's by {result.mean:.2g} nats per token; at most {self.tolerance:.2g} are allowed. The largest "
            f"difference ({result.largest:.2g}) is at token {token} of sequence {worst}."
        )
        if engine.verified:
            return SyncError(
                f"{differs} Every weight arrived unchanged, so the engine computes differently.",
                hint="Use the precision and attention of the training, or raise --rollout_tolerance.",
            )
        return SyncError(
            f"{differs} The engine cannot show its weights: some may be missing, stale or swapped.",
            hint="Try --rollout_engine transformers, which names them, or raise --rollout_tolerance for low precision.",
        )
