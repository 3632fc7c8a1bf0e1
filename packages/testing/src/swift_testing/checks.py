"""Checks of a backend. Each raises `AssertionError` with what differs, where, and by how much."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from swift.checkpoint import read_manifest
from swift.contracts import RequestedRun, StepResult, World
from swift.errors import UnsupportedLayout, listed
from swift.hookspecs import lazy_hooks, resolve_hook
from swift.parsing import FEATURE_SWITCHES, config_from_mapping
from swift.plugins import load_plugin, open_hooks
from swift.terminal import say_nothing
from swift_testing.cases import BY_NAME, FP32, SAVED_AT, STEPS, Case
from swift_testing.crew import Job, succeeded
from swift_testing.layouts import Layout
from swift_testing.reference import Expected
from swift_testing.roles import CRITIC, role_of
from swift_testing.slow_steps import ASLEEP, LATE_RANK, SLOW_AT
from swift_testing.trials import Needed, Trials, batches_of

__tracebackhide__ = True  # pytest shows the sentence alone

MOVED = 0.01
"""How far a final weight may be from the reference's, as a part of how far weights moved at most."""
SAME_LAYOUT = 1e-5
"""Relative difference between a resumed run and an uninterrupted one under the same layout."""
SAME_VECTORS = 1e-8
"""Mean square of the distance between the vectors of two passes with the same dropout."""
AFTER_RESUME = min(3, STEPS - SAVED_AT)
"""Steps that are compared after a resume under another layout."""
POISONED_STEP, POISONED_ROW = 3, 1
PARALLEL = ("dp_replicate", "dp_shard", "tp", "pp", "vpp", "cp", "ep", "etp", "ulysses")
EXPERTS = frozenset({"ep", "etp"})
"""Those that only a mixture of experts has."""


class Checks:
    """The checks of one backend under its layouts."""

    def __init__(self, trials: Trials, layouts: Sequence[Layout]) -> None:
        self.trials = trials
        self.layouts = layouts

    def announce(self, check: str, layout: Layout, case: Case | None = None, reads: Layout | None = None) -> None:
        """Note that a check will be made: what checks need under one layout is run in as few launches as possible."""
        plain, trials, needed = BY_NAME["clipped"], self.trials, list[Needed]()
        if check == "all_processes_end_alike":
            needed = [self._poisoned(layout)]
        elif check == "time_breakdown":
            needed = [self._measured()]
        elif check == "two_roles" and trials.capabilities.roles > 1:
            resumed = trials.resumed_run_of_both(plain, layout, layout, AFTER_RESUME)
            needed = [trials.run_of_both(plain, layout), resumed]
        elif check == "resume_in_other_layout" and reads is not None:
            needed = [trials.whole_run(plain, layout), trials.resumed_run(plain, layout, reads, AFTER_RESUME)]
        elif check in ("one_tensor_at_a_time", "nothing_is_left_behind"):
            needed = [trials.whole_run(plain, layout)]
        elif case is not None:
            needed = [trials.whole_run(case, layout)]
            if check == "resume":
                needed.append(trials.resumed_run(case, layout, layout, STEPS - SAVED_AT))
        for each in needed:
            trials.announce(each)

    def _observed(self, case: Case, layout: Layout) -> Iterator[tuple[str, Any]]:
        """Yield what each process of a whole run has observed, and which it is, for messages."""
        for rank, outcome in enumerate(succeeded(self.trials.whole(case, layout))):
            yield f"{case.name} under {layout}, process {rank}", outcome

    def trajectory(self, case: Case, layout: Layout) -> None:
        """Loss, gradient norm and learning rate of every step, on every process, are the reference's."""
        expected = self.trials.expected(case)
        of_loss, of_norm = case.tolerance
        for where, outcome in self._observed(case, layout):
            assert list(outcome.results) == list(range(1, STEPS + 1)), f"{where}: steps {list(outcome.results)}"
            for step, result in outcome.results.items():
                at = f"{where}, step {step}"
                near(f"{at}: loss", result.loss, expected.losses[step - 1], of_loss)
                if not result.skipped:
                    near(f"{at}: gradient norm", result.grad_norm, expected.grad_norms[step - 1], of_norm)
                near(f"{at}: learning rate", result.learning_rate, expected.rates[step - 1], 1e-6)
                for name, values in expected.metrics.items():
                    near(f"{at}: {name}", result.metrics[name], values[step - 1], of_norm)

    def processes_agree(self, case: Case, layout: Layout) -> None:
        """Check that the result of a step is the same on every process, to the last bit."""
        first, *others = succeeded(self.trials.whole(case, layout))
        for rank, outcome in enumerate(others, start=1):
            for step, result in outcome.results.items():
                at = f"{case.name} under {layout}, step {step}: process {rank} against process 0"
                _near_step(at, result, first.results[step].loss, first.results[step].grad_norm, 1e-6, 1e-6)
                assert result.metrics.keys() == first.results[step].metrics.keys(), f"{at}: other metrics"

    def evaluation(self, case: Case, layout: Layout) -> None:
        """Check that evaluating on held-out samples gives the reference's loss, on every process."""
        expected = self.trials.expected(case)
        for where, outcome in self._observed(case, layout):
            assert list(outcome.evaluations) == list(expected.evaluations), f"{where}: {list(outcome.evaluations)}"
            for step, loss in outcome.evaluations.items():
                at = f"{where}: evaluation after step {step}"
                near(at, loss, expected.evaluations[step], case.tolerance[0])

    def evaluation_without_dropout(self, case: Case, layout: Layout) -> None:
        """Check that evaluation has no dropout: it gives the loss of transformers' model in `eval()` mode.

        Training has dropout, which differs from the reference's. So the weights are those that the backend streams.
        """
        outcomes = succeeded(self.trials.whole(case, layout))
        streamed = outcomes[0].streamed
        expected = self.trials.evaluated(case, streamed.weights)
        for rank, outcome in enumerate(outcomes):
            at = f"{case.name} under {layout}, process {rank}: evaluation after step {STEPS}"
            near(at, outcome.evaluations[STEPS], expected, case.tolerance[0])

    def first_pass(self, case: Case, layout: Layout) -> None:
        """Check that the pass before a step has the dropout of the step: the vectors of both are the same."""
        for where, outcome in self._observed(case, layout):
            for step, result in outcome.results.items():
                off = result.metrics.get("drift", math.nan)
                at = f"{where}, step {step}"
                assert off <= SAME_VECTORS, f"{at}: the vectors of the first pass are {off:.1e} from those of the step"

    def token_results(self, case: Case, layout: Layout) -> None:
        """`swift_forward` returns the reference's values of the tokens of every sample, on a process that has it."""
        expected = self.trials.expected(case).tokens
        seen: set[int] = set()
        for where, outcome in self._observed(case, layout):
            results = outcome.token_results
            for (sample, tokens), (_, vector) in zip(results.tokens, results.segments, strict=True):
                seen.add(sample)
                _near_all(f"{where}, sample {sample}", tokens, expected[sample])
                for name, total in zip(("logps", "entropy"), vector, strict=True):
                    near(f"{where}, sample {sample}: sum of {name}", total, sum(expected[sample][name]), FP32)
        missing = sorted(expected.keys() - seen)
        assert not missing, f"{case.name} under {layout}: no process has results of the samples {_some(missing)}"

    def weights(self, case: Case, layout: Layout) -> None:
        """`swift_iter_weights` streams the reference's weights, under the names that they have on disk, in fp32."""
        expected = self.trials.expected(case)
        outcomes = succeeded(self.trials.whole(case, layout))
        where = f"{case.name} under {layout}"
        for rank, outcome in enumerate(outcomes):
            streamed = outcome.streamed
            assert not streamed.twice, f"{where}, process {rank}: streamed twice: {_some(streamed.twice)}"
            missing, extra = (
                sorted(expected.weights.keys() - streamed.dtypes), sorted(streamed.dtypes.keys() - expected.weights)
            )  # fmt: skip
            assert not missing, f"{where}, process {rank}: not streamed: {_some(missing)}"
            assert not extra, f"{where}, process {rank}: names that are not on disk: {_some(extra)}"
            other = {name: dtype for name, dtype in streamed.dtypes.items() if dtype != "float32"}
            assert not other, f"{where}, process {rank}: not in float32: {_some(other.items())}"
            # Every process may hold an inference engine of its own.
            for name, total in outcomes[0].streamed.sums.items():
                near(f"{where}, process {rank}: sum of {name}", streamed.sums[name], total, FP32)
        if case.tolerance[0] > 1e-3:
            return  # in lower precisions single weights may go another way
        _same_weights(where, outcomes[0].streamed.weights, expected)

    def changes(self, case: Case, layout: Layout) -> None:
        """Check that each step changes the weights that it is to change on every process, and no others."""
        expected = self.trials.expected(case).changed
        for rank, outcome in enumerate(succeeded(self.trials.whole(case, layout))):
            assert list(outcome.changed) == list(expected), f"{case.name} under {layout}: steps {list(outcome.changed)}"
            for step, names in outcome.changed.items():
                missing, extra = set(expected[step]) - set(names), set(names) - set(expected[step])
                where = f"{case.name} under {layout}, process {rank}: step {step}"
                assert not missing, f"{where} has not changed {_some(sorted(missing))}"
                assert not extra, f"{where} has changed {_some(sorted(extra))}"

    def one_tensor_at_a_time(self, case: Case, layout: Layout) -> None:
        """While weights are streamed, no process holds more than two of the largest tensors next to its own state."""
        for where, outcome in self._observed(case, layout):
            streamed = outcome.streamed
            allowed = 2 * streamed.largest
            assert allowed < streamed.total, "the model is too small to tell"
            assert streamed.held <= allowed, (
                f"{where}: {streamed.held:,} bytes were held while weights were "
                f"streamed; the largest tensor has {streamed.largest:,}, all have {streamed.total:,}"
            )

    def nothing_is_left_behind(self, case: Case, layout: Layout) -> None:
        """After teardown there is no group, process, thread, listener or variable that was not there before."""
        for where, outcome in self._observed(case, layout):
            left = ", ".join(outcome.left_behind)
            assert not left, f"{where} left behind: {left}"

    def resume(self, case: Case, layout: Layout) -> None:
        """Gone on with under the same layout from a checkpoint: the very steps of the run that saved it on its way."""
        outcomes = self.trials.outcomes(self.trials.resumed_run(case, layout, layout, STEPS - SAVED_AT))
        whole = succeeded(self.trials.whole(case, layout))
        for rank, outcome in enumerate(succeeded(outcomes)):
            where = f"{case.name} under {layout}, process {rank}"
            assert list(outcome.results) == list(range(SAVED_AT + 1, STEPS + 1)), f"{where}: {list(outcome.results)}"
            for step, result in outcome.results.items():
                at, same = f"{where}, step {step}, resumed after step {SAVED_AT}", whole[rank].results[step]
                _near_step(at, result, same.loss, same.grad_norm, SAME_LAYOUT, SAME_LAYOUT)
        self._follows_reference(case, outcomes, f"{case.name} under {layout}")

    def resume_in_other_layout(self, case: Case, wrote: Layout, reads: Layout) -> None:
        """Resume under one layout from another's checkpoint and follow the reference."""
        outcomes = self.trials.outcomes(self.trials.resumed_run(case, wrote, reads, AFTER_RESUME))
        self._follows_reference(case, outcomes, f"{case.name}, saved under {wrote}, resumed under {reads}")

    def _follows_reference(self, case: Case, outcomes: list[Any], where: str) -> None:
        expected = self.trials.expected(case)
        for rank, outcome in enumerate(succeeded(outcomes)):
            assert outcome.results, f"{where}, process {rank}: no step was made"
            for step, result in outcome.results.items():
                at = f"{where}, process {rank}, step {step}"
                _near_step(at, result, expected.losses[step - 1], expected.grad_norms[step - 1], *case.tolerance)

    def two_roles(self, layout: Layout) -> None:
        """Check that a policy and a critic trained in turn have the numbers of each alone, on every process."""
        case = BY_NAME["clipped"]
        outcomes = succeeded(self.trials.both(case, layout))
        self._both_follow_references(case, outcomes, f"two models under {layout}")
        expected, weights = self.trials.expected_of_critic(case), outcomes[0].weights
        assert weights.keys() == expected.weights.keys(), f"the critic under {layout} streams other weights"
        _same_weights(f"the critic under {layout}", weights, expected)

    def two_roles_resumed(self, wrote: Layout, reads: Layout) -> None:
        """One checkpoint holds both models, and both are resumed from it."""
        case, where = BY_NAME["clipped"], f"two models, saved under {wrote}, resumed under {reads}"
        checkpoint = succeeded(self.trials.both(case, wrote))[0].checkpoint
        assert list(read_manifest(checkpoint).roles) == [CRITIC], f"{where}: the manifest lists other roles"
        outcomes = succeeded(self.trials.outcomes(self.trials.resumed_run_of_both(case, wrote, reads, AFTER_RESUME)))
        self._both_follow_references(case, outcomes, where)

    def _both_follow_references(self, case: Case, outcomes: Sequence[Any], where: str) -> None:
        policy, critic = self.trials.expected(case), self.trials.expected_of_critic(case)
        for rank, outcome in enumerate(outcomes):
            for role, results, own in (("policy", outcome.policy, policy), (CRITIC, outcome.critic, critic)):
                assert results, f"{where}, process {rank}: the {role} made no step"
                for step, result in results.items():
                    at = f"{where}, process {rank}: step {step} of the {role}"
                    _near_step(at, result, own.losses[step - 1], own.grad_norms[step - 1], *case.tolerance)

    def refuses_more_roles(self, layout: Layout) -> None:
        """More models than the backend holds at once are refused before weights are read."""
        case = BY_NAME["clipped"]
        roles = [replace(role_of(self.trials.critic()), name=f"r{n}") for n in range(self.trials.capabilities.roles)]
        trial = self.trials.trial(case, layout, "too many roles")
        needed = Needed(layout, (layout, "too many roles"), lambda _: partial(trial.refused, roles))
        _all_refused(self.trials.outcomes(needed), f"one model more than it holds, under {layout}")

    def all_processes_end_alike(self, layout: Layout) -> None:
        """Check that a loss that is not a number on one process stops all of them, before any weight has moved."""
        for rank, (error, moved) in enumerate(succeeded(self.trials.outcomes(self._poisoned(layout)))):
            where = f"one sample's loss is not a number, under {layout}: process {rank}"
            assert error.startswith("TrainingError"), f"{where} ended with {error}"
            assert moved == 0.0, f"{where} has weights that moved by {moved}"

    def _poisoned(self, layout: Layout) -> Needed:
        case = BY_NAME["clipped"]

        def job(_: Path) -> Job:
            sample = batches_of(case, self.trials.model(case))[POISONED_STEP - 1][POISONED_ROW]
            return partial(self.trials.trial(case, layout, "poisoned").poisoned, POISONED_STEP, sample)

        return Needed(layout, (layout, "poisoned"), job)

    def time_breakdown(self) -> None:
        """Check that what a step's time goes into is measured: a slow part of it is the one that grows."""
        layout, everyone = self._shared_layout, succeeded(self.trials.outcomes(self._measured()))
        for rank, records in enumerate(everyone):
            for record in records:
                at = f"time breakdown under {layout}, process {rank}, step {record.step}"
                assert record.time_breakdown is not None, f"{at}: not measured"
                first = everyone[0][record.step - 1].time_breakdown
                assert record.time_breakdown == first, f"{at}: differs from process 0"
                times, slow = record.time_breakdown, SLOW_AT.get(record.step)
                parts = times.communication + times.data + times.optimizer
                assert parts <= 1.001 * times.seconds, f"{at}: parts of {parts:.3f} s, of {times.seconds:.3f} s"
                near(f"{at}: sum of the parts", sum(times.fractions.values()), 1.0, 1e-6)
                if slow in ("data", "optimizer"):
                    _slept(f"{at}: {slow}", getattr(times, slow))
                elif slow == "late":
                    _slept(f"{at}: own time of process {LATE_RANK}", record.ranks[LATE_RANK].own_seconds)
                    waited = max(each.communication_seconds or 0.0 for each in record.ranks if each.rank != LATE_RANK)
                    _slept(f"{at}: communication of those that wait", waited)

    @property
    def _shared_layout(self) -> Layout:
        """Return the first layout of several processes."""
        return next((layout for layout in self.layouts if layout.world > 1), self.layouts[0])

    def _measured(self) -> Needed:
        layout = self._shared_layout
        trial = self.trials.trial(BY_NAME["clipped"], layout, "measured")
        return Needed(layout, (layout, "measured"), lambda _: trial.measured)

    def refuses_other_world(self, layout: Layout) -> None:
        """One process more than the plan divides is refused, on all of them, before weights are read."""
        fixed = {key: value for key, value in layout.parallel.items() if key in PARALLEL}
        sizes = {"dp_replicate": 1, "dp_shard": 1, **fixed}
        one_more = Layout(layout.world + 1, sizes, layout.config, label=f"{layout}-and-one-more")
        self.refuses(one_more)

    def refuses(self, layout: Layout) -> None:
        """Check that an impossible plan is refused with a reason, on all processes, before weights are read."""
        # Rows that can be dealt to any number of processes, so that nothing but the plan is refused.
        self._refused(replace(BY_NAME["clipped"], global_batch=2 * layout.world), layout)

    def refuses_cases_left_out(self, layout: Layout) -> None:
        """Check that a case a layout declares unsupported is refused, not computed wrongly."""
        for name in sorted(layout.without):
            self._refused(BY_NAME[name], layout)

    def refuses_media(self, layout: Layout) -> None:
        """Check that rows with images are refused where they are not claimed, or where their tokens are shared."""
        capabilities = self.trials.capabilities
        case = BY_NAME["images"]
        unclaimed = case.modality not in capabilities.modalities and layout is self.layouts[0]
        if unclaimed or case.kept_whole(capabilities, layout):
            self._refused(case, layout)

    def _refused(self, case: Case, layout: Layout) -> None:
        trial = self.trials.trial(case, layout, "refused")
        needed = Needed(layout, (layout, case.name, "refused"), lambda _: trial.refused)
        _all_refused(self.trials.outcomes(needed), f"{case.name} under {layout}")

    def refuses_what_it_does_not_claim(self) -> None:
        """Dimensions, precisions, tuners and switches beyond its capabilities are refused."""
        for changes in unclaimed(self.trials.capabilities):
            settings = ", ".join(f"{key} {value}" for key, value in changes.items())
            refusal = _refusal(self.trials, changes)
            assert refusal is not None, f"{settings} is not among the capabilities, and was not refused"
            assert refusal.message, f"{settings}: refused without a reason"

    def claims_are_tried(self, dimensions: frozenset[str] = frozenset(PARALLEL)) -> None:
        """Every one of these dimensions that the backend claims is part of a layout."""
        tried = {key for layout in self.layouts for key in layout.parallel}
        sharing = {"dp_replicate", "dp_shard"}
        claimed = self.trials.capabilities.parallel & dimensions
        if claimed & sharing and any(layout.world > 1 and not layout.parallel for layout in self.layouts):
            tried |= {min(claimed & sharing)} if len(claimed & sharing) == 1 else set()
        untried = sorted(claimed - tried)
        assert not untried, f"claimed, but in no layout of the test: {', '.join(untried)}"

    def light_import(self) -> None:
        """Check that importing the plugin does not import torch or transformers: `swift plugins` stays quick."""
        code = (
            "import sys; from swift.plugins import load_plugin; load_plugin('swift.backends', sys.argv[1]); "
            "print(*{'torch', 'transformers', 'deepspeed', 'megatron', 'vllm'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, self.trials.backend], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        heavy = done.stdout.split()
        assert not heavy, f"importing the plugin imports {', '.join(sorted(heavy))}"

    def contract(self) -> None:
        """Hooks, signatures, hook API, capabilities and configuration model are as they must be."""
        loaded = load_plugin("swift.backends", self.trials.backend)
        assert loaded.config_model is not None
        required = [name for name, field in loaded.config_model.model_fields.items() if field.is_required()]
        assert not required, f"options without a default: {', '.join(required)}: --backend alone would fail"
        for hook, target in lazy_hooks(loaded.object).items():
            try:
                resolve_hook(hook, target)
            except (ImportError, TypeError) as error:
                raise AssertionError(str(error)) from error


def _all_refused(results: Sequence[Any], what: str) -> None:
    """Check that every process raised `UnsupportedLayout`, with a reason and a hint, before anything was read."""
    for rank, result in enumerate(results):
        where = f"{what}, process {rank}"
        assert isinstance(result, BaseException), f"{where}: {result}"
        assert isinstance(result, UnsupportedLayout), f"{where}: {type(result).__name__}: {result}"
        assert result.message, f"{where}: refused without a reason"
        assert result.hint, f"{where}: refused without a hint at what to type: {result.message}"
        read = result.__dict__.get("read_before", [])
        assert not read, f"{where}: refused only after reading {_some(read)}"


def _slept(what: str, seconds: float | None) -> None:
    """Check that a part of a step has the time that was slept in it: a third, since who waits may be late as well."""
    assert seconds is not None, f"{what} was not measured"
    assert seconds >= ASLEEP / 3, f"{what}: {seconds:.3f} s, of a sleep of {ASLEEP} s"


def near(what: str, found: float, expected: float, tolerance: float) -> None:
    """Check that numbers agree within a relative tolerance; NaN is near nothing."""
    if found == expected:
        return  # two overflows, that is: infinite gradient norms have no difference
    off = abs(found - expected) / max(abs(expected), 1e-8)
    assert off <= tolerance, (
        f"{what} is {found:.8g}, not {expected:.8g}: off by {off:.1e}, allowed is {tolerance:.0e}"
        f"{_likely_cause(found, expected)}"
    )


def _likely_cause(found: float, expected: float) -> str:
    """Return a guess, where one number is about twice, three or four times the other."""
    for count in (2, 3, 4):
        if abs(found * count - expected) < 0.01 * abs(expected):
            return f". About 1/{count}: averaged over {count} processes or micro-batches instead of summed?"
        if abs(found - count * expected) < 0.01 * abs(found):
            return f". About {count} times as large: summed {count} times?"
    return ""


def _near_step(at: str, result: StepResult, loss: float, grad_norm: float, of_loss: float, of_norm: float) -> None:
    near(f"{at}: loss", result.loss, loss, of_loss)
    near(f"{at}: gradient norm", result.grad_norm, grad_norm, of_norm)


def _same_weights(where: str, weights: Mapping[str, Any], expected: Expected) -> None:
    """Check final weights against the reference's, relative to how far weights moved at most."""
    moved = max(float((expected.weights[name] - expected.start[name]).abs().max()) for name in expected.weights)
    for name, tensor in expected.weights.items():
        assert weights[name].shape == tuple(tensor.shape), f"{where}: {name} has shape {weights[name].shape}"
        off = float(abs(weights[name] - tensor.numpy()).max())
        assert off <= MOVED * moved, f"{where}: {name} is off by {off:.2g} where weights moved by up to {moved:.2g}"


def _near_all(where: str, found: Mapping[str, Any], expected: Mapping[str, Sequence[float]]) -> None:
    """Check that names are the same, each with a value per token, within the tolerance of fp32."""
    assert found.keys() == expected.keys(), f"{where}: values {_some(sorted(found))}, not {_some(sorted(expected))}"
    for name, values in expected.items():
        # The reference ends with the last token that is learned; a chat template may put more behind it.
        assert len(found[name]) >= len(values), f"{where}: {len(found[name])} values of {name} for {len(values)} tokens"
        for index, (one, other) in enumerate(zip(found[name], values, strict=False)):
            off = abs(float(one) - other)
            assert off <= FP32 * max(1.0, abs(other)), f"{where}, token {index}: {name} is {one:.6g}, not {other:.6g}"


def unclaimed(capabilities: Any) -> list[dict[str, Any]]:
    """Return configurations that each ask for one thing that is not among the capabilities."""
    requests: list[dict[str, Any]] = []
    requests += [{f"parallel.{name}": 2} for name in PARALLEL if name not in capabilities.parallel]
    if "sequence_parallel" not in capabilities.parallel:
        requests.append({"parallel.sequence_parallel": True})
    requests += [
        {"model.dtype": name} for name in ("float32", "bfloat16", "float16") if name not in capabilities.precisions
    ]
    if "lora" not in capabilities.tuners:
        requests.append({"tuner.kind": "lora"})
    elif "dora" not in capabilities.tuners:
        requests.append({"tuner.kind": "lora", "tuner.dora": True})
    if not capabilities.async_checkpoint:
        requests.append({"checkpoint.asynchronous": True})
    requests += [{switch: on} for switch, (on, _) in FEATURE_SWITCHES.items() if switch not in capabilities.features]
    return requests


def _refusal(trials: Trials, changes: Mapping[str, Any]) -> UnsupportedLayout | None:
    try:
        parsed = config_from_mapping({"backend.name": trials.backend, "tuner.kind": "full", **changes})
        run = RequestedRun(parsed.config, parsed.backend_options, Path(), World(0, 0, 2), say=say_nothing)
        open_hooks(load_plugin("swift.backends", trials.backend)).swift_check_layout(run)
    except UnsupportedLayout as refusal:
        return refusal
    return None


def _some(things: Iterable[Any]) -> str:
    return listed(list(things), 5)
