"""Which modules `all-linear` stands for, and names of modules that PEFT reads as they are meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from swift.models.heads import head_modules
from swift.models.names import base_model, whole_shape


@dataclass
class AllLinear:
    """The linear layers of a model that get adapters, and why others get none."""

    targets: list[str]
    """Endings of module names, as short as they can be: `q_proj`, `shared_experts.gate_proj`."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Reason → names of linear layers without an adapter."""

    def __str__(self) -> str:
        without = "".join(f"; none on {', '.join(names)} ({reason})" for reason, names in self.left_out.items())
        return f"adapters are attached to {', '.join(self.targets)}{without}"


def all_linear(model: torch.nn.Module, reserved: Collection[str]) -> AllLinear:
    """Return the linear layers of a transformers model that an adapter can stand next to, its head left out.

    `reserved` are names without a dot that PEFT takes for the stacked experts of a mixture, never for modules.
    """
    modules = dict(model.named_modules())
    base = base_model(model)
    head = {module for name in head_modules(base) for module in base.get_submodule(name).modules()}
    head.add(base.get_output_embeddings())
    wanted: list[str] = []
    unfit: dict[str, list[str]] = {}
    mixture = any(name.endswith(".experts") for name in modules)
    for name, module in modules.items():
        if not isinstance(module, _linear_classes()) or module in head:
            continue
        reason = _unfit(name, module, modules[name.rpartition(".")[0]], mixture)
        (wanted if reason is None else unfit.setdefault(reason, [])).append(name)
    targets = short_names(wanted, modules.keys() - set(wanted), reserved)
    return AllLinear(
        targets, {reason: short_names(names, modules.keys() - set(names)) for reason, names in unfit.items()}
    )


def stacked_experts(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that hold a matrix of each expert: [experts, rows, columns].

    Where a parameter is stored in another form (a shard, fewer bits), `whole_shape` must tell its shape.
    """
    return [
        f"{path}.{name}"
        for path, module in base_model(model).named_modules()
        if "expert" in f"{path}.{type(module).__name__}".lower()
        for name, parameter in module.named_parameters(recurse=False)
        if len(whole_shape(parameter)) == 3
    ]


def short_names(wanted: Iterable[str], others: Iterable[str], reserved: Collection[str] = ()) -> list[str]:
    """Return the shortest endings of names, cut at dots, that match all `wanted` and none of the `others`."""
    taken = {ending for name in others for ending in _endings(name)} | set(reserved)
    found: set[str] = set()
    for name in wanted:
        endings = _endings(name)
        if found.isdisjoint(endings):
            found.add(next((ending for ending in endings if ending not in taken), name))
    return sorted(found)


def names_module(target: str, names: Iterable[str]) -> bool:
    """Return whether PEFT finds a module by this target: by its whole name, or by the end of it."""
    return any(name == target or name.endswith(f".{target}") for name in names)


def adapts_experts(model: torch.nn.Module) -> bool:
    """Return whether PEFT's LoRA has adapters for the stacked experts of a model: it knows them for some types."""
    from peft.utils import transformers_weight_conversion as conversion

    kind = conversion._MODEL_TO_CONVERSION_PATTERN.get(base_model(model).config.model_type)
    return bool(conversion._MOE_FUSED_TARGETS.get(kind))


def as_peft_reads(config: Mapping[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Return PEFT's settings of an adapter on experts so that PEFT alone reads them as they are meant.

    It would take `shared_experts.gate_proj` for the routed experts (see `named_modules_kept`). Named by its weight it
    is the same adapter under the same name, which PEFT computes without dropout: there is none beside experts.
    """
    from peft.utils import transformers_weight_conversion as conversion

    kind = conversion._MODEL_TO_CONVERSION_PATTERN.get(base_model(model).config.model_type)
    taken = conversion._MOE_TARGET_MODULE_MAPPING.get(kind, {})
    targets, parameters = config.get("target_modules"), config.get("target_parameters")
    if not parameters or not targets or isinstance(targets, str):
        return dict(config)
    if config.get("rank_pattern") or config.get("alpha_pattern"):  # which name modules
        return dict(config)
    moved = {each for each in targets if each.rpartition(".")[2] in taken}
    named = [*parameters, *(f"{each}.weight" for each in moved)]
    return {**config, "target_modules": sorted(set(targets) - moved), "target_parameters": sorted(named)}


def with_modules_named(config: Mapping[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Return PEFT's settings of an adapter with modules whose weights `as_peft_reads` names."""
    linear = [f"{name}.weight" for name, module in model.named_modules() if isinstance(module, _linear_classes())]
    parameters, targets = config.get("target_parameters") or (), config.get("target_modules") or []
    weights = {each for each in parameters if names_module(each, linear)}
    if not weights or isinstance(targets, str):
        return dict(config)
    modules = sorted({*targets, *(each.removesuffix(".weight") for each in weights)})
    return {**config, "target_modules": modules, "target_parameters": sorted(set(parameters) - weights)}


@contextmanager
def named_modules_kept() -> Iterator[None]:
    """Keep PEFT from taking `shared_experts.gate_proj`, which is a module, for the routed experts.

    Up to 0.21 at least it converts every target that ends in the name of a stacked parameter
    (huggingface/peft, issue 3711). Names without a dot still stand for the experts.
    """
    from peft.utils import transformers_weight_conversion as conversion

    convert = conversion._convert_peft_config_moe

    def convert_others(config: Any, model: torch.nn.Module) -> None:
        targets = config.target_modules or ()
        names = [name for name, _ in model.named_modules()]
        dotted = () if isinstance(targets, str) else [each for each in targets if "." in each]
        kept = {each for each in dotted if names_module(each, names)}
        if kept:
            config.target_modules = set(targets) - kept
        convert(config, model)
        if kept:
            config.target_modules = set(config.target_modules) | kept

    conversion._convert_peft_config_moe = convert_others
    try:
        yield
    finally:
        conversion._convert_peft_config_moe = convert


def _endings(name: str) -> list[str]:
    """'a.b.0.c' → ['c', 'b.0.c', 'a.b.0.c']; none begins with an index."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in reversed(range(len(parts))) if not parts[start].isdecimal()]


@cache
def _linear_classes() -> tuple[type, ...]:
    from transformers.pytorch_utils import Conv1D

    return (torch.nn.Linear, Conv1D)


def _unfit(name: str, module: Any, owner: Any, mixture: bool) -> str | None:
    """Return why a linear layer gets no adapter; None where it gets one."""
    parts = set(name.split("."))
    if "router" in parts or ("gate" in parts and mixture):
        return "a router"
    if not _multiplies(module):
        return f"{type(module).__name__} is not a plain linear layer"
    # Mamba-type mixers; transformers names this parameter alike in all of them.
    if hasattr(owner, "A_log") and name.rpartition(".")[2] in weights_read(owner.__class__):
        return f"{type(owner).__name__} reads the weight directly and would bypass an adapter"
    return None


def _multiplies(module: Any) -> bool:
    """Return whether a layer returns a product of its input and its weight alone.

    Subclasses that models define may return several tensors (routers) or multiply group by group: they are tried out
    without memory. Others, of libraries that quantize, are linear layers.
    """
    kind = type(module)
    if kind in _linear_classes() or not re.search(r"^transformers(_modules|\.models)\.", kind.__module__):
        return True
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in module.state_dict().items()}
    rows = torch.empty(1, 3, module.in_features, device="meta", dtype=module.weight.dtype)
    try:
        with torch.no_grad():
            output = torch.func.functional_call(module, state, (rows,))
    except Exception:  # whatever a model's own code raises for an input that it does not expect
        return False
    return isinstance(output, torch.Tensor) and output.shape == (1, 3, module.out_features)


@cache
def weights_read(kind: type) -> frozenset[str]:
    """Return the layers whose weights the code of a module reads, to pass them to a kernel, not only their types."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # no source file
        return frozenset()
    return frozenset(re.findall(r"\bself\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|size)\b)", source))
