"""Tensor parallel as a model's own plan wants it: which matrices are cut, and along what. For use by backends.

What no plan names stays whole. So do embedding and head: objectives look at tokens one by one, and backends may shard
them in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from swift.errors import UnsupportedLayout
from swift.models.names import base_model
from swift.models.sizes import check_width

COLUMNS = "colwise"
"""The rows of a linear weight are sharded: each process has some outputs."""
ROWS = "rowwise"
"""The columns of a linear weight are sharded: each process has some inputs, and outputs are added up."""
GATHERED, SPLIT = "colwise_gather_output", "rowwise_split_input"
PARTIAL = "replicated_with_grad_allreduce"
EXPERTS, PACKED, DIVIDED = "moe_tp_experts", "packed_colwise", "divided"
_IDENTITY, _LATENT = "moe_identity_expert", "mla_kv_a_proj"

TensorParallelPlan = Mapping[str, str]
"""Pattern of names in the decoder, with `*` for numbers → how it is cut, in transformers' words."""


@dataclass(frozen=True)
class ParameterCut:
    """How a parameter that is not a linear module's is cut."""

    dim: int | None
    """Along which dimension. None: it stays whole, and is added once by all processes together."""
    packed: int = 1
    """How many matrices lie one after the other along `dim`: each of them is cut."""


@dataclass(frozen=True)
class TensorParallelSpec:
    """Names are those in the transformers model, adapters included."""

    cut: Mapping[str, str]
    """Linear module → `COLUMNS` or `ROWS`."""
    partial: frozenset[str]
    """Parameters that every process has whole and uses on its own heads: their gradients are parts of a sum."""
    whole_outside: Mapping[str, str] = field(default_factory=dict)
    """Linear module → `COLUMNS` or `ROWS`; its inputs and outputs are whole. Backends may leave it whole."""
    experts: Mapping[str, Mapping[str, ParameterCut]] = field(default_factory=dict)
    """Module → its parameters. The parts of its output add up to the whole. Backends may leave it whole."""
    identities: frozenset[str] = frozenset()
    """Modules in `experts` that return what they are given."""
    parameters: Mapping[str, Mapping[str, ParameterCut]] = field(default_factory=dict)
    """Module → parameters that it uses on its own heads."""
    tails: Mapping[str, int] = field(default_factory=dict)
    """Module that is whole → how many of its last outputs each process uses on its own heads."""


def tensor_parallel_spec(
    model: nn.Module, *, ways: int = 1, plan: TensorParallelPlan | None = None
) -> TensorParallelSpec:
    """Return what a plan, by default its own, cuts of a transformers or PEFT model.

    An adapter is sharded on the same side as its linear module. Raises `UnsupportedLayout` for a matrix that cannot be
    cut into so many equal parts.
    """
    base = base_model(model)
    spec = _Reader(base, own_plan(model) if plan is None else plan, ways).read()
    if not (spec.cut or spec.whole_outside or spec.experts):
        raise UnsupportedLayout(
            f"{type(base).__name__} does not support tensor parallelism.", hint="Type --parallel.tp 1"
        )
    return spec


def own_plan(model: nn.Module) -> TensorParallelPlan:
    """Return the plan that the configuration of a model brings; {} where it has none."""
    own: TensorParallelPlan = getattr(base_model(model).config.get_text_config(), "base_model_tp_plan", None) or {}
    return own


def pattern_of(name: str) -> str:
    """Return a name with `*` for the numbers of modules in lists."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def linear_inside(module: nn.Module) -> nn.Linear | Conv1D | None:
    """Return a linear module, or the one inside an adapter; those with transposed weights only without an adapter."""
    inner = getattr(module, "base_layer", module)
    return inner if isinstance(inner, nn.Linear) or (isinstance(inner, Conv1D) and inner is module) else None


def shape_of(module: nn.Module) -> tuple[int, int]:
    """Return how many outputs and inputs a linear module has."""
    linear = linear_inside(module)
    assert linear is not None
    return (linear.nf, linear.nx) if isinstance(linear, Conv1D) else (linear.out_features, linear.in_features)


class _Reader:
    """Goes through the modules of a model, and finds each in a plan."""

    def __init__(self, base: Any, plan: TensorParallelPlan, ways: int) -> None:
        self.base, self.ways = base, ways
        decoder = base.get_decoder()
        path = next(name for name, module in base.named_modules() if module is decoder)
        prefix = f"{path}." if path else ""  # a model without any head
        self.plan = {f"{prefix}{pattern}": how for pattern, how in plan.items()}
        self.cut: dict[str, str] = {}
        self.whole_outside: dict[str, str] = {}
        self.experts: dict[str, Mapping[str, ParameterCut]] = {}
        self.parameters: dict[str, Mapping[str, ParameterCut]] = {}
        self.tails: dict[str, int] = {}
        self.partial: set[str] = set()
        self.identities: set[str] = set()
        self.kept: list[str] = []
        """Modules that are cut in a way that swift does not know: all in them stays whole."""

    def read(self) -> TensorParallelSpec:
        for name, module in self.base.named_modules():
            how = self.plan.get(pattern_of(name))
            if any(name.startswith(f"{kept}.") for kept in self.kept):
                continue
            if how is None:
                self._vectors(name, module)
            elif linear_inside(module) is not None:
                self._linear(name, module, how)
            else:
                self._other(name, module, how)
        for name, module in self.base.named_modules():
            self._scalars(name, module)
        return TensorParallelSpec(
            self.cut, frozenset(self.partial), self.whole_outside, self.experts, frozenset(self.identities),
            self.parameters, self.tails,
        )  # fmt: skip

    def _scalars(self, name: str, module: nn.Module) -> None:
        """Numbers of an activation between columns and rows are used by every process, on its own part."""
        paths = {f"{name}.{child}": child for child, _ in module.named_children()}
        hows = {self.cut.get(path) or self.cut.get(f"{path}.base_layer") for path in paths}
        for path, child in paths.items() if hows >= {COLUMNS, ROWS} else ():
            own = dict(module.get_submodule(child).named_parameters())
            if all(each.numel() == 1 for each in own.values()):
                self.partial |= {f"{path}.{each}" for each in own}

    def _linear(self, name: str, module: nn.Module, how: str) -> None:
        rows, columns = shape_of(module)
        if how in (COLUMNS, ROWS):
            check_width(name, rows if how == COLUMNS else columns, self.ways)
            self.cut |= dict.fromkeys(_linear_modules(name, module, how), how)
        elif how in (GATHERED, SPLIT):
            if (rows if how == GATHERED else columns) % self.ways == 0:
                inner = f"{name}.base_layer" if hasattr(module, "base_layer") else name
                self.whole_outside[inner] = COLUMNS if how == GATHERED else ROWS
        elif how == _LATENT:
            self.tails[name] = self.base.config.get_text_config().qk_rope_head_dim
        elif how == PARTIAL:
            self._other(name, module, how)

    def _other(self, name: str, module: nn.Module, how: str) -> None:
        if how == PARTIAL:
            self.partial |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        elif how == EXPERTS:
            self._experts(name, module)
        elif how == _IDENTITY:
            self.identities.add(name)
        else:
            self.kept.append(name)

    def _experts(self, name: str, module: nn.Module) -> None:
        if hasattr(module, "base_layer"):
            raise UnsupportedLayout(
                f"Tensor parallel does not shard {name} with adapters on its stacked experts.",
                hint="Type --parallel.tp 1, or leave the experts out of the adapters' targets.",
            )
        cuts = self._cuts(name, module)
        if cuts:
            self.experts[name] = cuts
            self.partial |= {f"{name}.{each}" for each, cut in cuts.items() if cut.dim is None}

    def _vectors(self, name: str, module: nn.Module) -> None:
        cuts = self._cuts(name, module)
        if cuts and not isinstance(module, nn.Linear):
            self.parameters[name] = cuts

    def _cuts(self, name: str, module: nn.Module) -> dict[str, ParameterCut]:
        """Return how the module's own parameters are cut."""
        transposed = getattr(module, "is_transposed", False)
        cuts: dict[str, ParameterCut] = {}
        for each, parameter in module.named_parameters(recurse=False):
            how = self.plan.get(pattern_of(f"{name}.{each}" if name else each))
            if how == DIVIDED:
                cuts[each] = ParameterCut(None)
            elif how in (COLUMNS, PACKED, ROWS):
                last = (how == ROWS) is not transposed or parameter.ndim < 3
                cuts[each] = cut = ParameterCut(parameter.ndim - (1 if last else 2), 2 if how == PACKED else 1)
                check_width(f"{name}.{each}", parameter.shape[cut.dim or 0] // cut.packed, self.ways)
        return cuts


def _linear_modules(name: str, module: nn.Module, how: str) -> Iterator[str]:
    if not hasattr(module, "base_layer"):
        yield name
        return
    yield f"{name}.base_layer"
    side = "lora_B" if how == COLUMNS else "lora_A"
    yield from (f"{name}.{side}.{adapter}" for adapter in getattr(module, side, ()))
