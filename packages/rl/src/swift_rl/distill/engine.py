"""The inference engine of a teacher, and which process scores which sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from swift.errors import ConfigError, ModelError
from swift.toolkit import heartbeat
from swift_infer import find_source, open_engine
from swift_rl.roles import IN_PROCESS

if TYPE_CHECKING:
    from swift.contracts import Completion, InferenceEngine, ModelSource, Sampling, ScheduleContext
    from swift_rl.distill.options import TeacherOptions

Found = TypeVar("Found")


class TeacherEngine:
    """A teacher that is loaded on first use. All methods are called on every process.

    One process scores a sequence, so that all processes that learn from it have the same values, to the last bit.
    """

    def __init__(self, context: ScheduleContext, options: TeacherOptions, *, top: int) -> None:
        self._context = context
        self._options = options
        self.students_tokens = self.teachers_tokens = size_of(context.source)
        """Sizes of the output layers; a server does not report its own."""
        trusted = context.config.model.trust_remote_code
        if options.teacher_model is not None:
            source = find_source(options.teacher_model, adapter=options.teacher_adapters, trust_remote_code=trusted)
            check_vocabularies(source, context.source, options.teacher_model)
            self.teachers_tokens = size_of(source)
        self.shared = shared = min(self.students_tokens, self.teachers_tokens)
        """Tokens that both have."""
        self.kept = min(top, shared)
        """Number of likeliest tokens that are compared."""
        self.requested = min(self.kept + self.teachers_tokens - shared, self.teachers_tokens) if self.kept else 0
        """Number of tokens to request: more than `kept` if the teacher's vocabulary has more padding."""
        self._engine: InferenceEngine | None = None
        self._slices = context.comms.gather(context.topology.data_rank)
        """Data rank of each process."""
        one_each = options.teacher_engine == IN_PROCESS or options.teacher_model_server is not None
        rank = context.topology.world.rank
        first = {each: self._slices.index(each) for each in sorted(set(self._slices))}
        self._mine = [each for each, by in first.items() if (by if one_each else 0) == rank]
        """Slices whose sequences this process scores."""
        self._exchanges = len(first) < len(self._slices) or not one_each
        """Whether some process learns from scores of another one."""
        self._check_server()

    def _check_server(self) -> None:
        """Let a server score two tokens, before the student is loaded."""
        if self._options.teacher_model_server is None:
            return
        try:
            for _ in self.opened().score([[0, 1]], top=self.requested):
                pass
        except ModelError as failure:
            hint = f"Start the server with --max-logprobs {self.requested}, or lower --gkd_logits_topk."
            raise ModelError(
                f"The teacher's server does not return the log-probabilities to learn from: {failure.message}",
                hint=hint if self.requested else "Start it with: swift serve TEACHER",
            ) from failure

    def of_slices(
        self, sequences: Sequence[Sequence[int]], score: Callable[[Sequence[Sequence[int]]], list[Found]]
    ) -> list[Found]:
        """Return the scores of this process's slice, in order."""
        if not self._exchanges:
            return score(sequences)
        comms = self._context.comms
        by_slice = dict(zip(self._slices, comms.gather(sequences), strict=True))
        mine = {each: score(by_slice[each]) for each in self._mine}
        everyone = {each: scores for part in comms.gather(mine) for each, scores in part.items()}
        return everyone[self._context.topology.data_rank]

    def divided(self, count: int, work: Callable[[Sequence[int]], dict[int, Found]]) -> list[Found]:
        """Return the results for `count` sequences that every process has, each computed by one of them.

        `work` gets indices of sequences, and returns results by index.
        """
        comms, rank = self._context.comms, self._context.topology.world.rank
        workers = [each for each, mine in enumerate(comms.gather(self._mine)) if mine]
        share = range(workers.index(rank), count, len(workers)) if rank in workers else ()
        mine = work(share) if share else {}
        everyone = {index: each for part in comms.gather(mine) for index, each in part.items()}
        return [everyone[index] for index in range(count)]

    def completions(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Return the teacher's completions of prompts, the same on every process."""

        def sampled(share: Sequence[int]) -> dict[int, Completion]:
            numbers = [index if sampling.numbers is None else sampling.numbers[index] for index in share]
            found = self.opened().generate([prompts[index] for index in share], replace(sampling, numbers=numbers))
            completions = {}
            for index, completion in found:
                heartbeat()
                completions[share[index]] = completion
            return completions

        return self.divided(len(prompts), sampled)

    def opened(self) -> InferenceEngine:
        """Return the engine, with the teacher loaded."""
        if self._engine is None:
            options, topology = self._options, self._context.topology
            server = options.teacher_model_server
            in_process = server is None and options.teacher_engine == IN_PROCESS
            room = {"max_logprobs": self.requested} if server is None and options.teacher_engine == "vllm" else {}
            self._engine = open_engine(
                server or options.teacher_engine,
                # A server has loaded the teacher itself: the student's folder has the tokenizer.
                options.teacher_model or self._context.model,
                adapter=options.teacher_adapters,
                dtype=options.teacher_dtype,
                device=options.teacher_device or (topology.device if in_process else None),
                batch_size=options.teacher_batch_size,
                options={**room, **options.teacher_options},
                trust_remote_code=self._context.config.model.trust_remote_code,
            )
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def size_of(source: ModelSource) -> int:
    """Return the size of a model's output layer, padding included."""
    return int(source.config.get_text_config().vocab_size)


def check_vocabularies(teacher: ModelSource, student: ModelSource, name: str) -> None:
    """Raise if the teacher's vocabulary differs from the student's.

    Output layers may be padded to different sizes, and either tokenizer may have tokens beyond the end of the other's.
    """
    theirs, ours = ({at: token for token, at in each.tokenizer.get_vocab().items()} for each in (teacher, student))
    differing = sorted(at for at in theirs.keys() & ours.keys() if theirs[at] != ours[at])
    if differing:
        first = differing[0]
        raise ConfigError(
            f"The vocabularies of the teacher {name} ({len(theirs)} tokens) and the student ({len(ours)} tokens) "
            f"differ in {len(differing)} ids: {first} is {theirs[first]!r} and {ours[first]!r}.",
            hint="Choose a teacher with the student's tokenizer, or train on its completions: swift infer TEACHER "
            "--dataset FILE --result_path completions.jsonl, then swift sft",
        )
