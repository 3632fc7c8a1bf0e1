"""Compare `--like` with the functions of the libraries that it names, on the same rewards and probabilities.

The packages import Ray and much else, so a wheel is downloaded without its dependencies, and only the named functions
and classes of a module are executed, without decorators, in a namespace with torch, numpy and their arguments.

A figure is the largest difference from the library's numbers, over all completions and tokens, relative to the largest
of them. The libraries compute in float32, so 1e-5 is equality. A test compares TRL's loss. NeMo-RL's package on the
index is empty: its functions come from the checkout in the environment variable NEMO_RL, and are skipped without it.
"""

from __future__ import annotations
import __future__

import ast
import itertools
import os
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.facts import Figure
from benchmarks.inputs import WORK
from swift_rl import advantages, correction, kl, losses
from swift_rl.algorithm_options import AlgorithmOptions

HOME = WORK / "peers"


def unpacked(name: str, version: str) -> Path:
    """The folder of a package's modules, as its wheel has them."""
    folder = HOME / f"{name}-{version}"
    if not folder.is_dir():
        wheels = HOME / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", str(wheels), f"{name}=={version}"], check=True)
        (wheel,) = wheels.glob(f"{name}-{version}-*.whl")
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
        unfinished.rename(folder)
    (module,) = (each for each in folder.glob(f"**/{name}/__init__.py") if "tests" not in each.parts)
    return module.parent


def functions(file: Path, *names: str, **given: Any) -> SimpleNamespace:
    """Functions and classes of a module; a dotted name is a method, called with its object first."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "np": np, "defaultdict": defaultdict, **given}
    for name in names:
        body: list[ast.stmt] = tree.body
        for part in name.split("."):
            node = next(each for each in body if getattr(each, "name", None) == part)
            body = getattr(node, "body", [])
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        node.decorator_list = []
        module = ast.Module([node], [])
        # Annotations stay text: they name types that are not here.
        code = compile(module, str(file), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
        exec(code, space)
    return SimpleNamespace(**{name.split(".")[-1]: space[name.split(".")[-1]] for name in names}, space=space)


VERL, OPENRLHF = "0.9.1", "0.11.2"
EQUAL = 1e-5
GROUPS, SIZE, WIDTH = 5, 6, 9


class Made:
    """Rewards and log-probabilities from a seed; one reward per completion, completions padded on the right."""

    def __init__(self, *, apart: float) -> None:
        generator = np.random.default_rng(7)
        self.groups = np.repeat(np.arange(GROUPS), SIZE)
        self.lengths = generator.integers(1, WIDTH + 1, size=len(self.groups))
        self.rewards = generator.normal(size=len(self.groups)) * np.repeat([1.0, 1e-3, 1e-5, 10.0, 0.0], SIZE)
        shape = (len(self.groups), WIDTH)
        self.mask = torch.from_numpy(np.arange(WIDTH) < self.lengths[:, None]).float()
        self.old = torch.from_numpy(-generator.exponential(size=shape)).float() * self.mask
        self.new = (self.old + apart * torch.from_numpy(generator.normal(size=shape)).float()) * self.mask
        self.other = (self.old + apart * torch.from_numpy(generator.normal(size=shape)).float()) * self.mask
        self.signs = torch.from_numpy(generator.normal(size=(len(self.groups), 1))).float().expand(shape)

    @property
    def at_the_end(self) -> torch.Tensor:
        """The reward of each completion at its last token."""
        placed = torch.zeros_like(self.mask)
        placed[torch.arange(len(self.groups)), torch.from_numpy(self.lengths) - 1] = torch.tensor(self.rewards).float()
        return placed

    def rows(self, padded: torch.Tensor) -> list[np.ndarray]:
        """The values of each completion without the padding."""
        return [row[:length].numpy() for row, length in zip(padded, self.lengths, strict=True)]

    def estimated(self, **given: Any) -> torch.Tensor:
        options = AlgorithmOptions.model_validate(given)
        made = advantages.estimate(self.rewards[:, None], self.groups, self.lengths, options).tokens
        padded = torch.zeros_like(self.mask)
        for row, values in zip(padded, made, strict=True):
            row[: len(values)] = torch.from_numpy(values)
        return padded


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    checkout = os.environ.get("NEMO_RL")
    nemo = [] if checkout is None else _nemo(Path(checkout) / "nemo_rl" / "algorithms")
    found = itertools.chain(_verl(), _openrlhf(), nemo)
    figures = [Figure(what, value, unit="", at_most=EQUAL) for what, value in found]
    return figures, {"verl": VERL, "openrlhf": OPENRLHF, "nemo": _commit_of(checkout)}


def _commit_of(checkout: str | None) -> str:
    if checkout is None:
        return "left out: NEMO_RL names no checkout"
    return subprocess.check_output(["git", "-C", checkout, "rev-parse", "HEAD"], text=True).strip()


def _apart(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor) -> float:
    largest = float((theirs.double() * mask).abs().max())
    return float(((ours.double() - theirs.double()) * mask).abs().max()) / max(largest, 1e-30)


def _verl() -> list[tuple[str, float]]:
    home = unpacked("verl", VERL)
    tools = functions(
        home / "utils" / "torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten"
    )
    estimators = {
        "grpo": "compute_grpo_outcome_advantage",
        "rloo": "compute_rloo_outcome_advantage",
        "opo": "compute_opo_outcome_advantage",
        "reinforce_plus_plus": "compute_reinforce_plus_plus_outcome_advantage",
        "reinforce_plus_plus_baseline": "compute_reinforce_plus_plus_baseline_outcome_advantage",
    }
    policies = {"dapo": "compute_policy_loss_vanilla", "cispo": "compute_policy_loss_cispo"}
    given = {"verl_F": tools, "AlgoConfig": type("AlgoConfig", (), {}), "ActorConfig": _Config}
    theirs = functions(
        home / "trainer" / "ppo" / "core_algos.py",
        *estimators.values(), *policies.values(), "kl_penalty_forward", "agg_loss", **given,
    )  # fmt: skip
    made, found = Made(apart=0.6), []
    for name, function in estimators.items():
        more = {} if name == "reinforce_plus_plus" else {"index": made.groups}
        config = SimpleNamespace(gamma=1.0)
        expected, _ = getattr(theirs, function)(
            token_level_rewards=made.at_the_end, response_mask=made.mask, config=config, **more
        )
        ours = made.estimated(like="verl", advantage_estimator=name)
        found.append((f"verl: advantages of {name}", _apart(ours, expected, made.mask)))
    for name, function in policies.items():
        config = _Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, global_batch_info={})
        leaf = made.new.clone().requires_grad_()
        loss, _ = getattr(theirs, function)(
            old_log_prob=made.old, log_prob=leaf, advantages=made.signs, response_mask=made.mask, config=config
        )
        found += _loss_apart(made, "verl", name, loss, leaf)
    return [*found, *_kl_apart("verl", theirs.kl_penalty_forward), *_verl_correction(tools)]


def _verl_correction(tools: Any) -> list[tuple[str, float]]:
    file = unpacked("verl", VERL) / "trainer" / "ppo" / "rollout_corr_helper.py"
    theirs = functions(
        file, "compute_rollout_correction_weights", "_parse_rollout_is_threshold",
        verl_F=tools, SAFETY_BOUND=20.0, compute_is_metrics=lambda **_: {},
    )  # fmt: skip
    made, found = Made(apart=0.6), []
    for level in ("token", "sequence"):
        expected, _ = theirs.compute_rollout_correction_weights(made.old - made.other, made.mask, level, 2.0)
        options = AlgorithmOptions.model_validate(
            {"like": "verl", "rollout_importance_sampling_mode": f"{level}_truncate"}
        )
        masks = [np.ones(length, dtype=bool) for length in made.lengths]
        ours = correction.weights(made.rows(made.old), made.rows(made.other), masks, options).weights
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in ours], batch_first=True)
        found.append((f"verl: {level} weights of the correction", _apart(padded, expected, made.mask)))
    return found


def _openrlhf() -> list[tuple[str, float]]:
    home = unpacked("openrlhf", OPENRLHF)
    tools = functions(home / "models" / "utils.py", "compute_approx_kl", "compute_reward", "masked_mean")
    maker = functions(
        home / "trainer" / "ppo_utils" / "experience_maker.py",
        *(f"{MAKER}.{name}" for name in ("compute_advantages_and_returns", "get_cumulative_returns")),
        itertools=itertools, apply_length_penalties=lambda *_: None, compute_reward=tools.compute_reward,
    )  # fmt: skip
    found = []
    made = Made(apart=0.6)
    for name, theirs in OPENRLHF_NAMES.items():
        expected = _openrlhf_advantages(maker, made, theirs)
        ours = made.estimated(like="openrlhf", advantage_estimator=name)
        found.append((f"openrlhf: advantages of {name}", _apart(ours, expected, made.mask)))
    policy = functions(home / "models" / "loss.py", "aggregate_loss", "PolicyLoss", masked_mean=tools.masked_mean)
    for what, level in (("dapo", "ppo"), ("gspo", "gspo")):
        leaf = made.new.clone().requires_grad_()
        loss = policy.PolicyLoss(0.2, 0.28, policy_loss_type=level)(leaf, made.old, made.signs, made.mask)[0]
        found += _loss_apart(made, "openrlhf", what, loss, leaf)
    return [*found, *_kl_apart("openrlhf", lambda new, old, kind: tools.compute_approx_kl(new, old, kl_estimator=kind))]


MAKER = "RemoteExperienceMaker"
OPENRLHF_NAMES = {
    "grpo": "group_norm",
    "rloo": "rloo",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
}


def _openrlhf_advantages(maker: Any, made: Made, name: str) -> torch.Tensor:
    advantage = SimpleNamespace(estimator=name, gamma=1.0, lambd=1.0, no_std_norm=False)
    arguments = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage), rollout=SimpleNamespace(n_samples_per_prompt=SIZE),
        reward=SimpleNamespace(clip_range=None),
    )  # fmt: skip
    this = SimpleNamespace(
        strategy=SimpleNamespace(args=arguments), kl_ctl=SimpleNamespace(value=0.0), advantage_estimator=name
    )
    this.get_cumulative_returns = lambda *given: maker.get_cumulative_returns(this, *given)
    experience = SimpleNamespace(
        rewards=torch.tensor(made.rewards).float(), index=list(range(len(made.groups))), info={},
        kl=torch.zeros_like(made.mask), action_mask=made.mask,
    )  # fmt: skip
    (result,) = maker.compute_advantages_and_returns(this, [experience])
    return result.advantages


class _Plain:
    """Stands in for the base classes of a module's own, which may be given arguments."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__()


class _Names:
    """Stands in for an enumeration: each name is its own value."""

    def __getattr__(self, name: str) -> str:
        return name


NEMO_LOSSES: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {"token_level_loss": False},
    "gspo": {"token_level_loss": False, "sequence_level_importance_ratios": True},
    "cispo": {"use_cispo": True},
}


def _nemo(home: Path) -> list[tuple[str, float]]:
    tools = vars(functions(home / "utils.py", "masked_mean", "calculate_kl", "calculate_baseline_and_std_per_prompt"))
    kinds = functions(
        home / "advantage_estimator.py", "GRPOAdvantageEstimator", "ReinforcePlusPlusAdvantageEstimator", **tools
    )
    made, found = Made(apart=0.6), []
    for name, kind, settings in (
        ("grpo", kinds.GRPOAdvantageEstimator, {}),
        ("reinforce_plus_plus", kinds.ReinforcePlusPlusAdvantageEstimator, {"minus_baseline": False}),
        ("reinforce_plus_plus_baseline", kinds.ReinforcePlusPlusAdvantageEstimator, {"minus_baseline": True}),
    ):
        config = SimpleNamespace(use_leave_one_out_baseline=True, normalize_rewards=True, **settings)
        loss = SimpleNamespace(use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k3")
        expected = _in_double(kind(config, loss), made)
        ours = made.estimated(like="nemo", advantage_estimator=name)
        found.append((f"nemo: advantages of {name}", _apart(ours, expected, made.mask)))
    enumerations = dict.fromkeys(("LossType", "LossInputType", "MetricNormalizer"), _Names())
    theirs = functions(
        home / "loss" / "loss_functions.py", "ClippedPGLossConfig", "ClippedPGLossFn",
        BaseModel=_Plain, LossFunction=_Plain, **enumerations, **tools,
    )  # fmt: skip
    for what, settings in NEMO_LOSSES.items():
        config = theirs.ClippedPGLossConfig()
        vars(config).update(ratio_clip_max=0.28, reference_policy_kl_penalty=0.0, **settings)
        leaf = made.new.clone().requires_grad_()
        loss, _ = theirs.ClippedPGLossFn(config)(
            leaf, _of_nemo(made), torch.tensor(float(len(made.groups))), made.mask.sum()
        )
        found += _loss_apart(made, "nemo", what, loss, leaf)
    return [*found, *_kl_apart("nemo", tools["calculate_kl"])]


def _in_double(estimator: Any, made: Made) -> torch.Tensor:
    """Its advantages in float64: what is left of a variance in float32 is more than the constant added to it."""
    torch.set_default_dtype(torch.float64)
    try:
        prompts = torch.from_numpy(made.groups)[:, None]
        found: torch.Tensor = estimator.compute_advantage(prompts, torch.tensor(made.rewards), made.mask.double())
        return found
    finally:
        torch.set_default_dtype(torch.float32)


def _of_nemo(made: Made) -> dict[str, torch.Tensor]:
    """What its loss reads, with a first token that nothing predicts."""

    def behind(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values, (1, 0))

    data = {"token_mask": behind(made.mask), "advantages": behind(made.signs), "prev_logprobs": behind(made.old)}
    return {**data, "generation_logprobs": behind(made.old), "sample_mask": torch.ones(len(made.groups))}


class _Config(SimpleNamespace):
    """What verl reads by name and by `get`."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def _loss_apart(made: Made, like: str, kind: str, loss: torch.Tensor, leaf: torch.Tensor) -> list[tuple[str, float]]:
    """How far loss and gradient are from ours, of all completions in one step."""
    options = AlgorithmOptions.model_validate({"like": like, "loss_type": kind, "epsilon_high": 0.28})
    ours = made.new.clone().requires_grad_()
    counts = made.mask.sum(1, keepdim=True)
    rows = torch.arange(len(counts))[:, None].expand(made.mask.shape)
    batch = SimpleNamespace(weights=made.mask, segment_ids=rows, segment_sum=lambda values: (values * made.mask).sum(1))
    log_ratio = losses.log_ratios(ours, made.old, batch, options)  # type: ignore[arg-type]  # as much as it reads
    each = losses.policy_losses(ours, log_ratio, made.signs, options).loss
    parts = made.mask / (made.mask.sum() if options.mean_over == "tokens" else counts * len(counts))
    total = (each * parts).sum()
    total.backward()
    loss.backward()
    assert ours.grad is not None
    assert leaf.grad is not None
    apart = abs(float(total.detach() - loss.detach())) / abs(float(loss.detach()))
    gradient = _apart(ours.grad, leaf.grad, made.mask)
    return [(f"{like}: loss of {kind}", apart), (f"{like}: gradient of {kind}", gradient)]


def _kl_apart(like: str, theirs: Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]) -> list[tuple[str, float]]:
    """How far each estimate of the divergence is from ours, also where the policies differ a lot."""
    far, found = Made(apart=12.0), []
    for kind in ("k1", "k2", "k3"):
        options = AlgorithmOptions.model_validate({"like": like, "kl_estimator": kind})
        ours = kl.divergence(far.new, far.other, options)
        found.append((f"{like}: {kind}", _apart(ours, theirs(far.new, far.other, kind), far.mask)))
    return found
