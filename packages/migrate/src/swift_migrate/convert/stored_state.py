"""A checkpoint of swift by parameters in memory, for writers of third-party checkpoints."""

from __future__ import annotations

import torch

from swift.checkpoint import Checkpoint
from swift.config.sections import Config, OptimSection
from swift.contracts import ModelSource, TrainedState
from swift.errors import CheckpointError
from swift.models import is_frozen_factor
from swift.optim import Schedule
from swift.plugins.tuner import tuner_of
from swift.terminal import say_nothing
from swift.toolkit import apply_tuner, model_name, optim_name
from swift_migrate.convert.hf_folder import ADAM
from swift_migrate.convert.trainer_order import pieces_by_parameter, skeleton_of, trainer_groups

WEIGHT = "weight"


class StoredState(TrainedState):
    """The trained state in a checkpoint, read on demand."""

    def __init__(self, checkpoint: Checkpoint, source: ModelSource) -> None:
        facts = checkpoint.facts
        self._checkpoint = checkpoint
        self.source = source
        self._stored = frozenset(checkpoint.names())
        if any(map(is_frozen_factor, self._stored)):
            raise CheckpointError(
                f"{checkpoint.folder} has an adapter with frozen initial factors (tuner.init), whose optimizer state "
                "third-party formats cannot represent.",
                hint=f"To export the adapter only, type swift export {checkpoint.folder} --to adapter",
            )
        self.step = facts.step
        self.rows_per_step = facts.rows_per_step
        self.total_steps = int(str(facts.schedule.get("total_steps") or 0))
        self.adapter = facts.adapter
        config = Config.model_validate(
            {name: facts.config[name] for name in ("tuner", "optim", "train") if name in facts.config}
        )
        self.config = config
        self.optim: OptimSection = config.optim
        self.optim_is_known = "optim" in facts.config
        self.peak = config.optim.lr or tuner_of(config.tuner).tuner.learning_rate
        schedule = Schedule.from_config(self.optim, self.peak, self.total_steps) if self.total_steps else None
        self.learning_rate = self.peak if schedule is None else schedule(self.step)
        self.warmup_steps = 0 if schedule is None else schedule.warmup_steps
        self.min_lr = 0.0 if schedule is None else schedule.min_lr
        model = skeleton_of(source, facts.adapter)
        if facts.adapter is None:
            model = apply_tuner(model, config.tuner.model_copy(update={"kind": "full"}), seed=0, say=say_nothing)
        self._pieces = pieces_by_parameter(model)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self.groups = trainer_groups(model)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def slots(self) -> list[str]:
        """Return AdamW's slots, if the checkpoint has them for all trained weights."""
        kept = {each.rpartition(".")[2] for each in self._stored if each.startswith("optim.")}
        trained = [piece.name for group in self.groups for name in group for piece in self._pieces[name]]
        whole = kept == ADAM and all(optim_name(name, slot) in self._stored for name in trained for slot in ADAM)
        return sorted(ADAM) if whole else []

    def read(self, name: str, slot: str) -> torch.Tensor:
        """Return a tensor, assembled from its pieces on disk."""
        pieces = self._pieces[name]
        stored = {piece: model_name(piece.name) if slot == WEIGHT else optim_name(piece.name, slot) for piece in pieces}
        if slot == "step" or len(pieces) == 1:
            return self._checkpoint.read(stored[pieces[0]]).float()
        whole = torch.empty(self._shapes[name])
        for piece in pieces:
            piece.view_of(whole).copy_(self._checkpoint.read(stored[piece]))
        return whole

    def read_stored(self, name: str, slot: str) -> torch.Tensor:
        """Return a tensor from the checkpoint, or else from the model that training started from."""
        stored = model_name(name) if slot == WEIGHT else optim_name(name, slot)
        if stored in self._stored:
            return self._checkpoint.read(stored).float()
        return self.source.read(name).float() if slot == WEIGHT else torch.zeros(self.source.shape(name))
