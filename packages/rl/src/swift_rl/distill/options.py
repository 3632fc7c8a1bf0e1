"""Options of distillation, under the names that TRL and ms-swift gave them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat

from swift.config.limits import Name
from swift.config.sections import Section
from swift.errors import ConfigError
from swift_rl.rollout_options import GenerationOptions

_OF_ENGINES = ("teacher_engine", "teacher_options", "teacher_dtype", "teacher_device", "teacher_batch_size")


class TeacherOptions(Section):
    """The teacher, and the inference engine that runs it."""

    teacher_model: Name | None = Field(
        None, description="Teacher model: a run, a checkpoint, an adapter, a model folder or a hub id"
    )
    teacher_adapters: Name | None = Field(None, description="Adapter on top of teacher_model")
    teacher_model_server: Name | None = Field(
        None, description="Comma-separated addresses of vLLM servers that serve the teacher"
    )
    teacher_engine: Name = Field("transformers", description="Inference engine that loads teacher_model")
    teacher_options: dict[str, Any] = Field(default_factory=dict, description="Settings of the teacher's engine")
    teacher_dtype: Name = Field("auto", description="Precision of the teacher: auto, float32, bfloat16, float16")
    teacher_device: Name | None = Field(
        None, description="Device of a teacher in transformers; default: that of the model in training"
    )
    teacher_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Sequences that the teacher scores at a time; default: chosen by its engine"
    )

    teacher_as_role: bool = Field(
        False,
        description="Hold teacher_model as a frozen model of the run, sharded as the policy is, instead of an "
        "inference engine",
    )

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher is configured."""
        return self.teacher_model is not None or self.teacher_model_server is not None

    def check_teacher(self) -> None:
        """Raise for options of the teacher that contradict each other."""
        if self.teacher_as_role:
            self._check_role()
        if self.teacher_adapters is not None and (self.teacher_model is None or self.teacher_model_server is not None):
            raise ConfigError(
                "teacher_adapters needs teacher_model, and cannot be combined with teacher_model_server.",
                hint="Pass --teacher_model FOLDER with --teacher_adapters, or --teacher_model_server alone.",
            )

    def _check_role(self) -> None:
        for name in ("teacher_model_server", "teacher_adapters"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"teacher_as_role cannot be combined with {name}.",
                    hint=f"Leave --{name} or --teacher_as_role out.",
                )
        given = self.model_dump(exclude_defaults=True)
        for name in _OF_ENGINES:
            if name in given:
                raise ConfigError(
                    f"{name} has no effect with teacher_as_role, which uses no engine.", hint=f"Leave --{name} out."
                )


class GkdOptions(TeacherOptions, GenerationOptions):
    """Options of `gkd`."""

    steps_per_generation: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer steps that one round of completions serves"
    )
    lmbda: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.5, description="Fraction of the rounds in which the student learns from its own completions, not the data's"
    )
    beta: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.5,
        description="Divergence from the teacher: 0 is KL(teacher || student), 1 KL(student || teacher), between them "
        "the generalized Jensen-Shannon divergence",
    )
    seq_kd: bool = Field(False, description="Instead of the data's completions, learn from completions of the teacher")
    sft_alpha: NonNegativeFloat = Field(
        0.0, description="Weight of a cross-entropy term for completions that are not the student's own"
    )
    gkd_logits_topk: Annotated[int, Field(ge=0)] = Field(
        64,
        description="Number of the teacher's likeliest tokens to compare, all others count as one; 0: whole vocabulary",
    )
    divergence_temperature: PositiveFloat = Field(
        1.0, description="Divide the logits of both models by this before they are compared"
    )

    @property
    def samples_student(self) -> bool:
        """Whether the student generates in some rounds."""
        return self.lmbda > 0

    @property
    def reads_prompts_alone(self) -> bool:
        """Whether the run learns from no completion of the data."""
        return self.lmbda == 1 or self.seq_kd

    def check(self) -> None:
        """Raise for options that contradict each other, and without a teacher."""
        if not self.has_teacher:
            raise ConfigError(
                "No teacher is configured.",
                hint="Pass --teacher_model FOLDER or --teacher_model_server http://HOST:PORT.",
            )
        self.check_teacher()
        if self.teacher_as_role and self.seq_kd:
            raise ConfigError(
                "seq_kd cannot be combined with teacher_as_role: only an inference engine can generate.",
                hint="Leave --teacher_as_role out.",
            )
        if self.divergence_temperature != 1.0 and self.gkd_logits_topk:
            raise ConfigError(
                f"divergence_temperature needs the whole vocabulary, but gkd_logits_topk is {self.gkd_logits_topk}.",
                hint="Pass --gkd_logits_topk 0, or leave --divergence_temperature out.",
            )
