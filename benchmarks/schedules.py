"""Schedules of pipelines, replayed: each process does its work in its order, each piece as soon as its input is there.

What a schedule costs is read off the replay and not off a formula, so that unequal stages, slow messages and orders
without a formula come out alike. `python -m benchmarks megatron` replays the orders that Megatron really takes in the
same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "backward", "weights"]


@dataclass(frozen=True)
class Work:
    """One pass of a micro-batch through the layers that a process has of a chunk."""

    kind: Kind
    chunk: int
    micro_batch: int


@dataclass(frozen=True)
class Durations:
    """Seconds of one pass through all layers of a process, whatever the number of chunks that they are cut into."""

    forward: float
    backward: float
    """Of which the gradients of weights, where a schedule does them by themselves, are half."""
    message: float = 0.0
    """From one stage to the next."""


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay."""

    seconds: float
    bubble: float
    """The share of the time in which processes, taken together, did nothing."""
    in_flight: tuple[float, ...]
    """Micro-batches, in units of all layers of a process, that each process kept activations of at most."""


def gpipe(stages: int, rank: int, micro_batches: int) -> Iterator[Work]:
    """Yield all forward passes, then all backward passes."""
    for kind in ("forward", "backward"):
        for number in range(micro_batches):
            yield Work("forward" if kind == "forward" else "backward", 0, number)


def one_forward_one_backward(stages: int, rank: int, micro_batches: int) -> Iterator[Work]:
    """Yield a few forward passes, then forward and backward in turn: no more is kept than the pipeline is deep."""
    ahead = min(stages - rank - 1, micro_batches)
    for number in range(ahead):
        yield Work("forward", 0, number)
    for number in range(micro_batches - ahead):
        yield Work("forward", 0, ahead + number)
        yield Work("backward", 0, number)
    for number in range(micro_batches - ahead, micro_batches):
        yield Work("backward", 0, number)


def interleaved(stages: int, rank: int, micro_batches: int, chunks: int) -> Iterator[Work]:
    """Yield Megatron's order of several chunks a process: groups of as many micro-batches as there are stages."""
    total = micro_batches * chunks

    def piece(kind: Kind, index: int) -> Work:
        group, within = divmod(index, stages * chunks)
        chunk = within // stages
        return Work(kind, chunk if kind == "forward" else chunks - 1 - chunk, group * stages + within % stages)

    ahead = total if micro_batches == stages else min(total, (stages - rank - 1) * 2 + (chunks - 1) * stages)
    for index in range(ahead):
        yield piece("forward", index)
    for index in range(total - ahead):
        yield piece("forward", ahead + index)
        yield piece("backward", index)
    for index in range(total - ahead, total):
        yield piece("backward", index)


def zero_bubble(stages: int, rank: int, micro_batches: int) -> Iterator[Work]:
    """Yield ZB-H1: as 1F1B, with the gradients of weights put off into what would be bubble; no more memory."""
    put_off = 0
    done: list[int] = []
    for work in one_forward_one_backward(stages, rank, micro_batches):
        yield work
        if work.kind == "backward":
            done.append(work.micro_batch)
            # So many are put off that later stages have their inputs sooner.
            if len(done) - put_off > rank:
                yield Work("weights", 0, done[put_off])
                put_off += 1
    for number in done[put_off:]:
        yield Work("weights", 0, number)


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def orders(name: str, stages: int, micro_batches: int, chunks: int = 1) -> list[list[Work]]:
    """Return what each process does, in its order; the number of chunks counts for `interleaved` alone."""
    if name == "interleaved":
        if micro_batches % stages:
            raise ValueError(f"interleaved: {micro_batches} micro-batches are no multiple of {stages} stages")
        return [list(interleaved(stages, rank, micro_batches, chunks)) for rank in range(stages)]
    order = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero-bubble": zero_bubble}[name]
    return [list(order(stages, rank, micro_batches)) for rank in range(stages)]


def replay(work: Sequence[Sequence[Work]], durations: Durations, slower: Sequence[float] = ()) -> Replay:
    """Let every process do its work; `slower` has a factor for each stage, where they are not alike."""
    return _Replayed(work, durations, slower).run()


class _Replayed:
    """One replay, while it runs."""

    def __init__(self, work: Sequence[Sequence[Work]], durations: Durations, slower: Sequence[float]) -> None:
        self.work, self.durations = work, durations
        self.stages = len(work)
        self.chunks = 1 + max(each.chunk for own in work for each in own)
        self.apart = any(each.kind == "weights" for own in work for each in own)
        self.slower = slower or [1.0] * self.stages
        self.ends: dict[tuple[Kind, int, int], float] = {}
        self.clocks = [0.0] * self.stages
        self.busy = 0.0

    def run(self) -> Replay:
        """Go around the processes until all work is done."""
        done = [0] * self.stages
        while any(count < len(own) for count, own in zip(done, self.work, strict=True)):
            before = sum(done)
            for rank, own in enumerate(self.work):
                while done[rank] < len(own) and self._do(rank, own[done[rank]]):
                    done[rank] += 1
            if sum(done) == before:
                raise ValueError("no order of work: each waits for another")
        took = max(self.clocks)
        kept = tuple(_most_kept(own, self.chunks) for own in self.work)
        return Replay(took, 1 - self.busy / (self.stages * took), kept)

    def _do(self, rank: int, work: Work) -> bool:
        """Do one piece if its input is there; return whether it was."""
        stage = work.chunk * self.stages + rank
        begin = self.clocks[rank]
        for needed in self._needed(stage, work):
            if needed not in self.ends:
                return False
            begin = max(begin, self.ends[needed] + (self.durations.message if needed[1] != stage else 0.0))
        seconds = self._seconds(work.kind) * self.slower[rank] / self.chunks
        self.clocks[rank] = self.ends[work.kind, stage, work.micro_batch] = begin + seconds
        self.busy += seconds
        return True

    def _needed(self, stage: int, work: Work) -> Iterator[tuple[Kind, int, int]]:
        last = self.stages * self.chunks - 1
        if work.kind == "forward" and stage > 0:
            yield "forward", stage - 1, work.micro_batch
        if work.kind == "backward":
            yield "forward", stage, work.micro_batch
            if stage < last:
                yield "backward", stage + 1, work.micro_batch
        if work.kind == "weights":
            yield "backward", stage, work.micro_batch

    def _seconds(self, kind: Kind) -> float:
        if kind == "forward":
            return self.durations.forward
        return self.durations.backward / 2 if self.apart else self.durations.backward


def _most_kept(work: Sequence[Work], chunks: int) -> float:
    """Return the most micro-batches of which a process keeps what its backward passes need."""
    apart = any(each.kind == "weights" for each in work)
    now = most = 0
    for each in work:
        if each.kind == "forward":
            now += 1
        elif each.kind == ("weights" if apart else "backward"):
            now -= 1
        most = max(most, now)
    return most / chunks
