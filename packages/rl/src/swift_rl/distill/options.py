"""Options of distillation, under the names that TRL and ms-swift gave them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat

from swift.config.limits import Name
from swift.config.sections import Section
from swift_rl.draw_options import DrawOptions

_OF_ENGINES = ("teacher_engine", "teacher_options", "teacher_dtype", "teacher_device", "teacher_batch_size")


class TeacherOptions(Section):
    """Which model teaches, and which inference engine answers for it."""

    teacher_model: Name | None = Field(
        None, description="The model that teaches: a run, a checkpoint, an adapter, a model folder or a hub id"
    )
    teacher_adapters: Name | None = Field(None, description="Adapter on top of teacher_model")
    teacher_model_server: Name | None = Field(
        None, description="Addresses of vLLM servers that serve the teacher, with commas between"
    )
    teacher_engine: Name = Field("transformers", description="Inference engine that loads teacher_model")
    teacher_options: dict[str, Any] = Field(default_factory=dict, description="Settings of the teacher's engine")
    teacher_dtype: Name = Field("auto", description="Precision of the teacher: auto, float32, bfloat16, float16")
    teacher_device: Name | None = Field(
        None, description="Device of a teacher in transformers; default: that of the model in training"
    )
    teacher_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Texts that the teacher scores at a time; nothing leaves it to its engine"
    )

    teacher_as_role: bool = Field(
        False,
        description="Hold teacher_model as a frozen model of the run, sharded as the policy is, instead of an "
        "inference engine",
    )

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher is named."""
        return self.teacher_model is not None or self.teacher_model_server is not None

    def problem_of_teacher(self) -> tuple[str, str] | None:
        """Return what is wrong with the teacher that is named, and what to type instead."""
        if self.teacher_as_role and (problem := self._problem_of_role()) is not None:
            return problem
        if self.teacher_adapters is not None and (self.teacher_model is None or self.teacher_model_server is not None):
            return (
                "teacher_adapters are put on teacher_model, and a server has loaded its own model.",
                "Type --teacher_model FOLDER with --teacher_adapters, or --teacher_model_server alone.",
            )
        return None

    def _problem_of_role(self) -> tuple[str, str] | None:
        for name in ("teacher_model_server", "teacher_adapters"):
            if getattr(self, name) is not None:
                return (
                    f"teacher_as_role holds teacher_model in the run, and {name} is named.",
                    f"Leave --{name} out, or --teacher_as_role.",
                )
        fields = type(self).model_fields
        for name in _OF_ENGINES:
            if getattr(self, name) != fields[name].get_default(call_default_factory=True):
                return (f"{name} is about an engine, and teacher_as_role asks none.", f"Leave --{name} out.")
        return None


class GkdOptions(TeacherOptions, DrawOptions):
    """Options of `gkd`."""

    steps_per_generation: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer steps that one round of answers serves"
    )
    lmbda: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.5, description="Part of the rounds in which the student learns from its own answers; in others from the data"
    )
    beta: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.5,
        description="Divergence from the teacher: 0 is KL(teacher || student), 1 KL(student || teacher), between them "
        "the generalized Jensen-Shannon divergence",
    )
    seq_kd: bool = Field(False, description="Instead of the data's answers, learn from answers of the teacher")
    sft_alpha: NonNegativeFloat = Field(
        0.0, description="Weight of the cross-entropy of answers that are not the student's own, added to the loss"
    )
    gkd_logits_topk: Annotated[int, Field(ge=0)] = Field(
        64,
        description="Compare so many of the teacher's likeliest tokens, and all others as one; 0 compares the whole "
        "vocabulary",
    )
    divergence_temperature: PositiveFloat = Field(
        1.0, description="Divide the logits of both models by this before they are compared"
    )

    @property
    def asks_student(self) -> bool:
        """Whether the student answers in some rounds."""
        return self.lmbda > 0

    @property
    def reads_prompts_alone(self) -> bool:
        """Whether no answer of the data is learned from."""
        return self.lmbda == 1 or self.seq_kd

    def problem(self) -> tuple[str, str] | None:
        """Return what is wrong with these options together, and what to type instead."""
        if not self.has_teacher:
            return (
                "There is no teacher to learn from.",
                "Name one: --teacher_model FOLDER, or --teacher_model_server http://HOST:PORT",
            )
        if (problem := self.problem_of_teacher()) is not None:
            return problem
        if self.teacher_as_role and self.seq_kd:
            return (
                "With seq_kd the teacher writes answers, and a model of the run (teacher_as_role) is only asked about "
                "them.",
                "Leave --teacher_as_role out: an inference engine holds the teacher then.",
            )
        if self.divergence_temperature != 1.0 and self.gkd_logits_topk:
            return (
                f"divergence_temperature {self.divergence_temperature:g} changes the probability of the tokens that "
                "gkd_logits_topk leaves out, which is not known.",
                "Type --gkd_logits_topk 0, or leave --divergence_temperature out.",
            )
        return None
