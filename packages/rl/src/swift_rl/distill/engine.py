"""The engine of a teacher, and which process asks it about which text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from swift.errors import ModelError
from swift.infer import find_source, open_engine
from swift.toolkit import heartbeat
from swift_rl.distill.vocabulary import check_vocabularies, size_of
from swift_rl.held import IN_PROCESS

if TYPE_CHECKING:
    from swift.contracts import Completion, InferenceEngine, Sampling, ScheduleContext
    from swift_rl.distill.options import TeacherOptions

Found = TypeVar("Found")


class TeacherEngine:
    """A teacher that is loaded when it is first asked. All methods are called on every process.

    A text is scored by one process, so that all that learn from it have the same numbers, to the last bit.
    """

    def __init__(self, context: ScheduleContext, options: TeacherOptions, *, top: int) -> None:
        self._context = context
        self._options = options
        self.students_tokens = self.teachers_tokens = size_of(context.source)
        """Sizes of the output layers; a server does not tell its own."""
        trusted = context.config.model.trust_remote_code
        if options.teacher_model is not None:
            source = find_source(options.teacher_model, adapter=options.teacher_adapters, trust_remote_code=trusted)
            check_vocabularies(source, context.source, options.teacher_model)
            self.teachers_tokens = size_of(source)
        self.shared = shared = min(self.students_tokens, self.teachers_tokens)
        """Tokens that both have."""
        self.kept = min(top, shared)
        """Likeliest tokens that are compared."""
        self.asked = min(self.kept + self.teachers_tokens - shared, self.teachers_tokens) if self.kept else 0
        """More than are kept, where the teacher's vocabulary is padded further than the student's."""
        self._engine: InferenceEngine | None = None
        self._slices = context.comms.gather(context.topology.data_rank)
        """By process."""
        one_each = options.teacher_engine == IN_PROCESS or options.teacher_model_server is not None
        rank = context.topology.world.rank
        first = {each: self._slices.index(each) for each in sorted(set(self._slices))}
        self._answered = [each for each, by in first.items() if (by if one_each else 0) == rank]
        """Slices whose texts this process asks about."""
        self._shares = len(first) < len(self._slices) or not one_each
        """Whether some process learns from what another one asked."""

    def check_server(self) -> None:
        """Ask a server about two tokens, before the student is loaded."""
        if self._options.teacher_model_server is None:
            return
        try:
            for _ in self.opened().score([[0, 1]], top=self.asked):
                pass
        except ModelError as failure:
            hint = f"Start the server with --max-logprobs {self.asked}, or type a smaller --gkd_logits_topk."
            raise ModelError(
                f"The teacher does not say what a student learns from it: {failure.message}",
                hint=hint if self.asked else "Start it with: swift serve TEACHER",
            ) from failure

    def of_slices(
        self, texts: Sequence[Sequence[int]], score: Callable[[Sequence[Sequence[int]]], list[Found]]
    ) -> list[Found]:
        """Return what is found about the texts of this process's slice, in order."""
        if not self._shares:
            return score(texts)
        comms = self._context.comms
        asked = dict(zip(self._slices, comms.gather(texts), strict=True))
        mine = {each: score(asked[each]) for each in self._answered}
        everyone = {each: answers for part in comms.gather(mine) for each, answers in part.items()}
        return everyone[self._context.topology.data_rank]

    def dealt(self, count: int, work: Callable[[Sequence[int]], dict[int, Found]]) -> list[Found]:
        """Return what is found about so many texts that every process has, each asked about by one of them.

        `work` is given the places of texts, and returns what it found by place.
        """
        comms, rank = self._context.comms, self._context.topology.world.rank
        askers = [each for each, answered in enumerate(comms.gather(self._answered)) if answered]
        share = range(askers.index(rank), count, len(askers)) if rank in askers else ()
        mine = work(share) if share else {}
        everyone = {place: each for part in comms.gather(mine) for place, each in part.items()}
        return [everyone[place] for place in range(count)]

    def answers(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Return the teacher's own answers to prompts, the same on every process."""

        def drawn(share: Sequence[int]) -> dict[int, Completion]:
            numbers = [place if sampling.numbers is None else sampling.numbers[place] for place in share]
            found = self.opened().generate([prompts[place] for place in share], replace(sampling, numbers=numbers))
            completions = {}
            for index, completion in found:
                heartbeat()
                completions[share[index]] = completion
            return completions

        return self.dealt(len(prompts), drawn)

    def opened(self) -> InferenceEngine:
        """Return the engine, with the teacher loaded."""
        if self._engine is None:
            options, topology = self._options, self._context.topology
            server = options.teacher_model_server
            in_process = server is None and options.teacher_engine == IN_PROCESS
            room = {"max_logprobs": self.asked} if server is None and options.teacher_engine == "vllm" else {}
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
        """Give the engine back."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
