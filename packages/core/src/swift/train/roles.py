"""Models of a run besides the policy: opened with the same hooks, trained and asked by whoever asked for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swift.checkpoint.load import Checkpoint
from swift.checkpoint.manifest import RoleRecord
from swift.checkpoint.save import before_update
from swift.checkpoint.writers import owned_writer
from swift.contracts import ForwardResult, ModelRole, Objective, OpenedRun, Run, StepResult, TrainState, WeightStream
from swift.errors import CheckpointError, ConfigError, SwiftError, UnsupportedLayout
from swift.models.source import open_source
from swift.optim.schedule import Schedule
from swift.parsing.capabilities import check_capabilities
from swift.parsing.tasks import check_labels
from swift.plugins.hooks import Hooks
from swift.plugins.load import load_tuner
from swift.train.following import follow

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import CheckpointWriter, ModelSource
    from swift.data.batch import Batch

_SECTIONS = ("model", "tuner", "optim")


def check_roles(roles: Sequence[ModelRole], hooks: Hooks, policy: Config) -> None:
    """Raise `UnsupportedLayout` when a run asks for more models, or for another kind of one, than its backend has."""
    names = [role.name for role in roles]
    if len(set(names)) < len(names):
        raise ValueError(f"two roles have the same name: {', '.join(names)}")
    most = hooks.capabilities.roles
    if 1 + len(roles) > most:
        raise UnsupportedLayout(
            f"This run holds {1 + len(roles)} models at once (policy, {', '.join(names)}); the "
            f"{policy.backend.name} backend "
            f"holds {most}.",
            hint="Choose a backend that holds more, such as --backend torch. See: swift plugins",
        )
    for role in roles:
        config = role.config(policy)
        try:
            check_labels(config.model)
            check_capabilities(hooks.capabilities, config)
        except SwiftError as error:
            error.message = f"The {role.name} of this run cannot be opened. {error.message}"
            raise


@dataclass
class RoleModel:
    """A model of the run besides the policy, ready to be trained or asked. All calls are made on every process."""

    role: ModelRole
    run: Run
    hooks: Hooks
    source: ModelSource
    state: TrainState
    policy_weights: Callable[[], WeightStream] | None = None
    """Stream the policy's weights, for a role that follows it."""

    @property
    def name(self) -> str:
        """The role's name."""
        return self.role.name

    def train_step(self, batch: Batch, objective: Objective) -> StepResult:
        """Make one optimizer step over one global batch."""
        if not self.role.trained:
            raise ValueError(f"{self.name} is not trained in this run")
        return self.hooks.swift_train_step(self.run, self.state, batch, objective)

    def forward(self, batch: Batch, objective: Objective) -> ForwardResult:
        """Compute the objective's sums without gradient."""
        return self.hooks.swift_forward(self.run, self.state, batch, objective)

    def follow(self, part: float) -> None:
        """Make each weight a mixture: `part` of the policy's, and the rest of its own."""
        if not self.role.follows or self.policy_weights is None:
            raise ValueError(f"{self.name} does not follow the policy in this run")
        before_update()  # a checkpoint that is written in the background has its weights as they were
        with follow(self.iter_weights(), self.policy_weights(), part, self.run.folder) as mixture:
            self.hooks.swift_load_checkpoint(self.run, self.state, mixture)

    def iter_weights(self) -> WeightStream:
        """Stream whole tensors by their Hugging Face names; every process reads it to its end."""
        return self.hooks.swift_iter_weights(self.run, self.state)

    def save(self, writer: CheckpointWriter) -> None:
        """Hand everything that changes to the writer of the run's checkpoint, under names that the role owns."""
        self.hooks.swift_save_checkpoint(self.run, self.state, owned_writer(writer, self.name))

    def load(self, checkpoint: Checkpoint) -> None:
        """Fill the model and its optimizer from the run's checkpoint."""
        reader = checkpoint.for_role(self.name)
        record = checkpoint.facts.roles[self.name]
        if record.model_fingerprint != self.source.fingerprint:
            saved = self.run.config.model.path
            raise CheckpointError(
                f"The checkpoint of step {checkpoint.facts.step} belongs to another run. Changed: the model of the "
                f"{self.name} (now {saved}).",
                hint="Resume with the settings of the run, or start a new one without --resume_from_checkpoint.",
            )
        self.hooks.swift_load_checkpoint(self.run, self.state, reader)
        self.state.step = record.step

    def record(self) -> RoleRecord:
        """Return what the manifest of a checkpoint says of it."""
        sections = self.run.config.model_dump(mode="json", include=set(_SECTIONS))
        return RoleRecord(
            step=self.state.step,
            model_fingerprint=self.source.fingerprint,
            adapter=self.run.facts.adapter,
            config=sections,
        )


def role_sources(roles: Sequence[ModelRole], policy: OpenedRun, hooks: Hooks) -> dict[str, ModelSource]:
    """Open the models of roles, of which no weights are read yet, and refuse those that the backend cannot hold."""
    sources: dict[str, ModelSource] = {}
    for role in roles:
        run = policy.for_role(role)
        source = open_source(run.config.model, say=run.say, seed=run.config.train.seed)
        hooks.swift_check_model(run, source.config)
        sources[role.name] = source
    return sources


def check_vocabularies(sources: Mapping[str, ModelSource], policy: ModelSource) -> None:
    """Refuse a model that would read the policy's tokens as other ones."""
    vocabulary = policy.tokenizer.get_vocab()
    for name, source in sources.items():
        own = vocabulary if source.fingerprint == policy.fingerprint else source.tokenizer.get_vocab()
        if own != vocabulary:
            raise ConfigError(
                f"The {name} has another vocabulary ({len(own)} tokens) than the policy ({len(vocabulary)}), so it "
                "would misread the policy's tokens.",
                hint="Name a model with the policy's tokenizer.",
            )


def open_role(
    role: ModelRole,
    policy: Run,
    hooks: Hooks,
    source: ModelSource,
    policy_weights: Callable[[], WeightStream] | None = None,
) -> RoleModel:
    """Let the backend build, distribute and fill the model of a role, in the processes that hold the policy."""
    opened = policy.for_role(role)
    hooks.swift_check_layout(opened)
    config, optim = opened.config, opened.config.optim
    if optim.lr is None:  # as for the policy, whose configuration has it filled in
        optim = optim.model_copy(update={"lr": load_tuner(config.tuner.kind).object.learning_rate})
        config = config.model_copy(update={"optim": optim})
    schedule = role.schedule or Schedule.from_config(optim, config.learning_rate, policy.total_steps)
    run = replace(opened, config=config).prepared(policy.total_steps, schedule)
    state = hooks.swift_shard(run, hooks.swift_wrap_model(run, source))
    run.adapter_start.clear()  # the model has them
    return RoleModel(role, run, hooks, source, state, policy_weights)
