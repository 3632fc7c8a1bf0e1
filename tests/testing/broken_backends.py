"""Backends with one mistake each, as people make them. The conformance kit must catch every one.

Each is the built-in backend but for one thing; `CAUGHT_BY` says which check must fail, in which case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch

from swift.backends.torch.plugin import DataParallelBackend
from swift.contracts import Capabilities
from swift.hookspecs import hookimpl, lazy_hook

CAUGHT_BY: dict[str, tuple[str, str | None]] = {}
"""Backend → the check that catches it, and the case in which it does."""
BROKEN: dict[str, type] = {}
HANGING = {"leaves-out-stand-ins"}
"""Those in which a process fails, and others would wait for it."""


def caught_by(check: str, case: str | None = "clipped") -> Any:
    def note(backend: type) -> type:
        name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in backend.__name__)[1:]
        CAUGHT_BY[name], BROKEN[name] = (check, case), backend
        return backend

    return note


def scale_gradients(state: Any, factor: float) -> None:
    for parameter in state.trained():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


@contextlib.contextmanager
def before_clipping(state: Any, act: Any) -> Iterator[None]:
    """Calls `act` between the backward pass and clipping."""

    def clip(real: Any, *given: Any) -> float:
        act(state)
        return float(real(*given))

    with clipped_by(clip):
        yield


@contextlib.contextmanager
def clipped_by(clip: Any) -> Iterator[None]:
    """Calls `clip` with the real clipping and its arguments."""
    from swift.backends.torch import state as module

    real = module.clip
    module.clip = partial(clip, real)
    try:
        yield
    finally:
        module.clip = real


def step(run: Any, state: Any, batch: Any, objective: Any) -> Any:
    from swift.backends.torch.step import train_step

    return train_step(run, state, batch, objective)


@caught_by("time_breakdown", None)
class UpdatesUnannounced(DataParallelBackend):
    """Says that it calls `before_update`, and does not."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        import swift.train.steps

        real, swift.train.steps.before_update = swift.train.steps.before_update, lambda: None
        try:
            return step(run, state, batch, objective)
        finally:
            swift.train.steps.before_update = real


@caught_by("resume")
class ForgetsTheStepOfAdam(DataParallelBackend):
    """Bias correction begins anew."""

    @hookimpl
    def swift_load_checkpoint(self, run: Any, state: Any, reader: Any) -> bool:
        from swift.backends.torch.checkpoint import load

        load(run, state, reader)
        for moments in state.optimizer.state.values():
            moments["step"].zero_()
        return True


@caught_by("resume", "third party's optimizer")
class KnowsTheSlotsOfAdamOnly(DataParallelBackend):
    """What an optimizer of another package keeps for a weight is left where it is, and begins anew."""

    @hookimpl
    def swift_load_checkpoint(self, run: Any, state: Any, reader: Any) -> bool:
        from swift.backends.torch.checkpoint import load

        load(run, state, reader)
        for kept in state.optimizer.state.values():
            for slot in kept.keys() - {"step", "exp_avg", "exp_avg_sq"}:
                kept[slot].zero_()
        return True


@caught_by("resume")
class SavesRoundedWeights(DataParallelBackend):
    """What is saved is bfloat16, whatever it is called."""

    @hookimpl
    def swift_save_checkpoint(self, state: Any, writer: Any) -> bool:
        from swift.backends.torch.checkpoint import _tensors

        rounded = {name: tensor.bfloat16().float() for name, tensor in _tensors(state).items()}
        writer.tensors(rounded)
        return True


@caught_by("resume_in_other_layout")
class SavesItsShareOnly(DataParallelBackend):
    """Resumes under its own layout, because each process reads what it wrote; elsewhere it cannot."""

    @hookimpl
    def swift_load_checkpoint(self, run: Any, state: Any, reader: Any) -> bool:
        from swift.backends.torch.checkpoint import load

        load(run, state, reader)
        if reader.manifest["layout"]["world"] != run.world.size:
            for moments in state.optimizer.state.values():
                moments["exp_avg"].mul_(0.5)
        return True


@caught_by("weights")
class StreamsHalfPrecision(DataParallelBackend):
    @hookimpl
    def swift_iter_weights(self, state: Any) -> Any:
        from swift.backends.torch.checkpoint import stream

        return ((name, tensor.bfloat16()) for name, tensor in stream(state))


@caught_by("weights")
class StreamsNothingButNamesElsewhere(DataParallelBackend):
    @hookimpl
    def swift_iter_weights(self, run: Any, state: Any) -> Any:
        from swift.backends.torch.checkpoint import stream

        return ((name, tensor if run.topology.is_main else tensor * 0) for name, tensor in stream(state))


@caught_by("weights", "clipped hard, tied")
class StreamsTiedWeightsTwice(DataParallelBackend):
    @hookimpl
    def swift_iter_weights(self, state: Any) -> Any:
        from swift.backends.torch.checkpoint import stream

        for name, tensor in stream(state):
            yield name, tensor
            if "embed_tokens" in name:
                yield "lm_head.weight", tensor


@caught_by("one_tensor_at_a_time")
class GathersEverythingFirst(DataParallelBackend):
    @hookimpl
    def swift_iter_weights(self, state: Any) -> Any:
        from swift.backends.torch.checkpoint import stream

        yield from [(name, tensor.clone()) for name, tensor in stream(state)]


PART = "a part of the weights"


@caught_by("weights", PART)
class DecaysWhatIsFrozen(DataParallelBackend):
    """Weights without a gradient shrink as those with one do."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        result = step(run, state, batch, objective)
        with torch.no_grad():
            for parameter in state.model.parameters():
                if not parameter.requires_grad:
                    parameter.mul_(1 - result.learning_rate * run.config.optim.weight_decay)
        return result


@caught_by("trajectory", PART)
class ForgetsAWeightInTheOptimizer(DataParallelBackend):
    """It gets gradients, which are counted and clipped, and no updates."""

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from swift.backends.torch.shard import DataParallelState

        state = DataParallelState(run, model)
        for group in state.optimizer.param_groups:
            group["params"] = group["params"][1:]
        return state


@caught_by("trajectory")
class TrainsThePaddingRow(DataParallelBackend):
    """Inputs give the padding token's row a gradient, as in embeddings without `padding_idx`."""

    @hookimpl
    def swift_wrap_model(self, run: Any, source: Any) -> Any:
        from swift.models.build import build_view

        view = build_view(run, source)
        view.model.get_input_embeddings().padding_idx = None
        return view


@caught_by("trajectory", "padding token trained")
class IgnoresTrainPadToken(DataParallelBackend):
    """The padding token's row stays without the gradient of inputs, also where it is to be trained."""

    @hookimpl
    def swift_wrap_model(self, run: Any, source: Any) -> Any:
        from swift.models.build import build_view

        view = build_view(run, source)
        view.model.get_input_embeddings().padding_idx = source.padding_row
        return view


@caught_by("changes", PART)
class MovesWhatIsFrozenABit(DataParallelBackend):
    """So little that no loss shows it."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        result = step(run, state, batch, objective)
        with torch.no_grad():
            for parameter in state.model.parameters():
                if not parameter.requires_grad:
                    parameter.mul_(1 + 2e-7)
        return result


@caught_by("changes", "layer rotation")
class LeavesLaterTurnsOutOfTheOptimizer(DataParallelBackend):
    """Weights whose turn comes later get gradients and no updates: the optimizer is that of the first turn."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        state.make_optimizer = lambda run, kept=state.optimizer: kept
        return step(run, state, batch, objective)


@caught_by("trajectory")
class DoublesGradients(DataParallelBackend):
    """Twice the gradient: clipping hides it from the loss, the gradient norm tells."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        with before_clipping(state, lambda state: scale_gradients(state, 2.0)):
            return step(run, state, batch, objective)


@caught_by("trajectory", "accumulated")
class AveragesMicroBatches(DataParallelBackend):
    """A mean of means: short micro-batches count for too much."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        weight, parts = batch.weight, len(batch) * run.world.size

        class Mean:
            needs = objective.needs

            def loss(self, view: Any, micro_batch: Any) -> Any:
                sums = objective.loss(view, micro_batch)
                sums.loss = sums.loss / micro_batch.weights.sum().clamp(min=1) * weight / parts
                return sums

        return step(run, state, batch, Mean())


@caught_by("trajectory")
class DecaysEverything(DataParallelBackend):
    """Weight decay on norms too."""

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from swift.backends.torch.shard import DataParallelState

        state = DataParallelState(run, model)
        for group in state.optimizer.param_groups:
            group["weight_decay"] = run.config.optim.weight_decay
        return state


@caught_by("trajectory")
class SchedulesOneStepLate(DataParallelBackend):
    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        late = dataclasses.replace(run, schedule=lambda at: run.schedule(max(0, at - 1)))
        return step(late, state, batch, objective)


@caught_by("trajectory", "packed")
class AttendsAcrossSamples(DataParallelBackend):
    """Packed samples see those that lie before them."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.models import unchecked_view as module

        real = module.packing_of
        module.packing_of = lambda boundaries, tokens, device=None: real([0, tokens], tokens, device)
        try:
            return step(run, state, batch, objective)
        finally:
            module.packing_of = real


@caught_by("trajectory", "encoder, lora, packed")
class EncodesCausally(DataParallelBackend):
    """A token of an encoder sees only those before it."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.models import attention_both_ways as module

        real = module.scaled_dot_product_attention
        module.scaled_dot_product_attention = partial(real, is_causal=True)
        try:
            return step(run, state, batch, objective)
        finally:
            module.scaled_dot_product_attention = real


@caught_by("processes_agree")
class ReportsItsOwnLoss(DataParallelBackend):
    """The loss of this process's slice."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        seen: list[float] = []

        class Watched:
            needs = objective.needs

            def loss(self, view: Any, micro_batch: Any) -> Any:
                sums = objective.loss(view, micro_batch)
                seen.append(float(sums.loss.detach()))
                return sums

        result = step(run, state, batch, Watched())
        return dataclasses.replace(result, loss=sum(seen) / batch.weight * run.world.size)


@caught_by("evaluation")
class EvaluatesItsSliceOnly(DataParallelBackend):
    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.train.steps import score

        return score(state.view, state.model, batch, objective, state.arithmetic, all_reduce=None)


@caught_by("trajectory", "own plan")
class AnswersWithTheWeightsOfTheStart(DataParallelBackend):
    """A pass between two steps sees the model as it was at the first one."""

    start: ClassVar[list[torch.Tensor]] = []

    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.backends.torch.step import forward

        weights = [each.data for each in state.view.parameters()]
        now = [each.clone() for each in weights]
        self.start.extend(now[len(self.start) :])
        torch._foreach_copy_(weights, self.start)
        try:
            return forward(run, state, batch, objective)
        finally:
            torch._foreach_copy_(weights, now)


@caught_by("trajectory", "dpo, lora")
class KeepsAdaptersOnInTheReference(DataParallelBackend):
    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.backends.torch.step import forward

        class On:
            adapters_off = False
            needs = objective.needs
            loss = staticmethod(objective.loss)

        return forward(run, state, batch, On())


class Reading:
    """An objective that is given another batch than the one that it should be given."""

    def __init__(self, objective: Any, changed: Any) -> None:
        self._objective, self._changed = objective, changed
        self.needs, self.adapters_off = objective.needs, objective.adapters_off

    def loss(self, view: Any, batch: Any) -> Any:
        return self._objective.loss(view, self._changed(batch))


@caught_by("trajectory", "tokens")
class DropsTheShiftOfTokenValues(DataParallelBackend):
    """The value of a token stands at its own position, not at the one that predicts it."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        def unshifted(batch: Any) -> Any:
            values = {name: value.roll(1, -1) for name, value in batch.token_values.items()}
            return dataclasses.replace(batch, token_values=values)

        return step(run, state, batch, Reading(objective, unshifted))


@caught_by("trajectory", "tokens")
class IgnoresTemperature(DataParallelBackend):
    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        return step(run, state, dataclasses.replace(batch, temperature=1.0), objective)


@caught_by("trajectory", "tokens")
class TakesTheEntropyOfItsOwnTokens(DataParallelBackend):
    """Tokens of the vocabulary that other processes would have are left out of the sum."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        real = torch.xlogy

        def of_half(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            half = first.shape[-1] // 2
            return real(first[:, :half], second[:, :half])

        torch.xlogy = of_half
        try:
            return step(run, state, batch, objective)
        finally:
            torch.xlogy = real


@caught_by("trajectory", "tokens")
class GivesCandidatesTheWholeGradient(DataParallelBackend):
    """What is left beside the candidates is taken for a constant."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        class Constant(Reading):
            def loss(self, view: Any, batch: Any) -> Any:
                return super().loss(dataclasses.replace(view, candidate_rest=view.candidate_rest.detach()), batch)

        return step(run, state, batch, Constant(objective, lambda batch: batch))


@caught_by("token_results", "tokens")
class AveragesTokenResults(DataParallelBackend):
    """Results of tokens are treated like a metric: the mean over all processes."""

    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.backends.torch.step import forward

        result = forward(run, state, batch, objective)
        if not result.tokens:
            return result
        tokens = [{name: value / run.world.size for name, value in segment.items()} for segment in result.tokens]
        return dataclasses.replace(result, tokens=tokens)


@caught_by("token_results", "tokens")
class ReturnsTokensWhereTheyArePredicted(DataParallelBackend):
    """Results are not moved back from positions to tokens."""

    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        import numpy as np

        from swift.backends.torch.step import forward

        result = forward(run, state, batch, objective)
        tokens = [{name: np.roll(value, -1) for name, value in each.items()} for each in result.tokens or ()]
        return dataclasses.replace(result, tokens=result.tokens and tokens)


@caught_by("trajectory", "reward")
class ScoresThePadPosition(DataParallelBackend):
    """The score of a text is the head's output at the end of its row, as if no row were padded."""

    @hookimpl
    def swift_wrap_model(self, run: Any, source: Any) -> Any:
        from swift.models.build import build_view

        view = build_view(run, source)

        def ends(batch: Any, how: str) -> torch.Tensor:
            # Padding belongs to no segment: it is scored for the segment of its row.
            batch.segment_ids[:, -1] = batch.segment_ids[:, 0]
            weights = torch.zeros_like(batch.weights)
            weights[:, -1] = 1.0
            return weights

        view.pooling_weights = ends
        return view


@caught_by("trajectory", "reward")
class LeavesTheHeadOutOfTheNorm(DataParallelBackend):
    """The gradient of the head is clipped with all others, and not part of the norm."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        head = [each for name, each in state.model.named_parameters() if name.startswith("score.")]

        def clip(real: Any, parameters: Any, *given: Any) -> Any:
            return real([each for each in parameters if all(each is not one for one in head)], *given)

        with clipped_by(clip):
            return step(run, state, batch, objective)


@caught_by("trajectory", "negatives")
class ComparesItsOwnRowsOnly(DataParallelBackend):
    """The rows of other micro-batches and processes are not gathered: nothing is compared with them."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        def alone(micro_batch: Any) -> Any:
            return dataclasses.replace(micro_batch, segment_values={})

        return step(run, state, batch, Reading(objective, alone))


@caught_by("first_pass", "negatives, dropout")
class LeavesDropoutOutOfTheFirstPass(DataParallelBackend):
    """Every pass without gradient is an evaluation."""

    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.backends.torch.step import forward

        return forward(run, state, dataclasses.replace(batch, dropout=False), objective)


@caught_by("evaluation_without_dropout", "lora, dropout")
class EvaluatesWithDropout(DataParallelBackend):
    """Evaluation leaves the model in training mode."""

    @hookimpl
    def swift_forward(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.backends.torch.step import forward

        return forward(run, state, dataclasses.replace(batch, dropout=True), objective)


@caught_by("all_processes_end_alike")
class UpdatesWhateverComes(DataParallelBackend):
    """No look at loss or gradient before the update."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        from swift.errors import TrainingError

        quiet = run.config.train.model_copy(update={"detect_nan": False})
        unaware = dataclasses.replace(run, config=run.config.model_copy(update={"train": quiet}))
        result = step(unaware, state, batch, objective)
        if not math.isfinite(result.loss):
            raise TrainingError("not finite")
        return result


@caught_by("nothing_is_left_behind")
class StaysInTheGroup(DataParallelBackend):
    @hookimpl
    def swift_teardown(self) -> bool:
        os.environ["BROKEN_BACKEND"] = "1"
        return True


@caught_by("claims_are_tried", None)
class ClaimsMoreThanIsTried(DataParallelBackend):
    capabilities = dataclasses.replace(DataParallelBackend.capabilities, parallel=frozenset({"dp_replicate", "tp"}))


@caught_by("refuses_other_world", None)
class TakesAnyNumberOfProcesses(DataParallelBackend):
    @hookimpl
    def swift_check_layout(self, run: Any) -> None:
        """Refuse nothing."""


@caught_by("contract", None)
class NeedsAnOption(DataParallelBackend):
    """An option without a default: `--backend` alone would fail."""

    from swift.config.sections import Section as _Section

    class Options(_Section):
        stage: int

    config_model = Options  # type: ignore[assignment]
    capabilities = Capabilities(parallel=frozenset({"dp_replicate"}))


@caught_by("contract", None)
class NamesAFunctionThatIsNotThere(DataParallelBackend):
    """A hook that is called late: the run would fail at its first checkpoint."""

    swift_save_checkpoint = lazy_hook("swift.backends.torch.checkpoint:save_all")


@caught_by("two_roles", None)
class KeepsItsStateInAGlobal(DataParallelBackend):
    """The model that is opened last is the one that is trained, whichever is meant."""

    latest: ClassVar[Any] = None

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from swift.backends.torch.shard import DataParallelState

        KeepsItsStateInAGlobal.latest = DataParallelState(run, model)
        return KeepsItsStateInAGlobal.latest

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        return step(run, KeepsItsStateInAGlobal.latest, batch, objective)


@caught_by("two_roles_resumed", None)
class LoadsIntoTheLatestModel(DataParallelBackend):
    """A resume of two models fills one of them twice."""

    latest: ClassVar[Any] = None

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from swift.backends.torch.shard import DataParallelState

        LoadsIntoTheLatestModel.latest = DataParallelState(run, model)
        return LoadsIntoTheLatestModel.latest

    @hookimpl
    def swift_load_checkpoint(self, run: Any, state: Any, reader: Any) -> bool:
        from swift.backends.torch.checkpoint import load

        load(run, LoadsIntoTheLatestModel.latest, reader)
        return True


@caught_by("trajectory", "grpo on stored rounds")
class HandsOnOneValueOfTokens(DataParallelBackend):
    """Advantages reach the loss, and no other value of a token does: every ratio is 1."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        def without(batch: Any) -> Any:
            values = {name: value for name, value in batch.token_values.items() if name != "old_logps"}
            return dataclasses.replace(batch, token_values=values)

        return step(run, state, batch, Reading(objective, without))


@caught_by("trajectory", "ppo on fixed rows")
class LearnsAtTheRateOfThePolicy(DataParallelBackend):
    """The critic's own learning rate is overlooked."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        if run.config.model.task == "value":
            run = dataclasses.replace(run, schedule=lambda at: run.config.optim.lr / 2)
        return step(run, state, batch, objective)


@caught_by("trajectory", "gkd on fixed candidates")
class DropsTheShiftOfTheTeacher(DataParallelBackend):
    """What the teacher says of a token stands where the token itself is read."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        def unshifted(batch: Any) -> Any:
            said = {"teacher_logps": batch.token_values["teacher_logps"].roll(1, 1)}
            return dataclasses.replace(batch, token_values=batch.token_values | said)

        return step(run, state, batch, Reading(objective, unshifted))


SEEN, FEW, TRAINED = "images", "images, mixed", "vit trained"


def is_tower(name: str) -> bool:
    return ".visual." in name and ".merger." not in name


class Showing:
    """Reads the images of micro-batches, and hands on something else."""

    def __init__(self, reader: Any, changed: Any) -> None:
        self._reader, self._changed = reader, changed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __call__(self, batch: Any, references: Any) -> Any:
        media = self._reader(batch, references)
        return None if media is None else self._changed(media, batch)


@caught_by("trajectory", FEW)
class LeavesOutStandIns(DataParallelBackend):
    """Processes without an image call no encoder, and the others wait for its gradients."""

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from swift.backends.torch.shard import DataParallelState

        state = DataParallelState(run, model)
        state.trains_encoder = False
        return state


@caught_by("trajectory", SEEN)
class ShowsEachRowAnotherImage(DataParallelBackend):
    """The images of a micro-batch come to the encoder in another order than their placeholders."""

    @hookimpl
    def swift_train_step(self, run: Any, state: Any, batch: Any, objective: Any) -> Any:
        def turned(media: Any, _: Any) -> Any:
            return dataclasses.replace(
                media, inputs={**media.inputs, "pixel_values": media.inputs["pixel_values"].flip(0)}
            )

        return step(run, state, dataclasses.replace(batch, media_reader=Showing(batch.media_reader, turned)), objective)


@caught_by("trajectory", TRAINED)
class KeepsTheGradientsOfTheTower(DataParallelBackend):
    """Each process trains its encoder on its own images: gradients of the language model alone are added up."""

    @hookimpl
    def swift_shard(self, run: Any, model: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        from swift.backends.torch.shard import DataParallelState

        own = [name for name, _ in model.named_parameters() if is_tower(name)]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        return DataParallelState(run, model)


@caught_by("changes", TRAINED)
class FreezesTheTower(DataParallelBackend):
    """Whatever it is told, as many do to save memory."""

    @hookimpl
    def swift_wrap_model(self, run: Any, source: Any) -> Any:
        from swift.models.build import build_view

        view = build_view(run, source)
        for name, parameter in view.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not is_tower(name))
        return view
