"""Parameter groups and optimizers, shared by all backends that use torch's.

A backend calls `parameter_groups` on whatever holds its weights, `build_optimizer` on the groups, and
`set_learning_rate` with `run.schedule(step)` before every update.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from swift.config.sections import OptimSection, TunerSection
from swift.contracts import Reads, ScalesGradients
from swift.models.names import whole_shape
from swift.optim.selected import check_packages
from swift.plugins.blame import blaming, failing
from swift.plugins.entry import PluginEntry
from swift.plugins.load import load_optimizer
from swift.plugins.return_values import wrong
from swift.plugins.tuner import tuner_of

_CALLED = (
    "step", "slot_values", "take_slots", "matrix_slots", "empty_matrix_slots", "take_matrix_slots", "to_gradient_view",
    "to_weights",
)  # fmt: skip
"""Methods of optimizers that backends call."""
_LEAST = 1e-6
"""What is added to a norm before it divides, as torch does it."""


def parameter_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
    optim: OptimSection,
    tuner: TunerSection,
    *,
    rates: Mapping[int, float] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Trainable parameters, grouped by weight decay and by learning rate.

    Weight decay falls on matrices (embeddings included), not on biases and norms: what has fewer than two dimensions.
    Every group has `lr_scale`, the tuner's factor on the scheduled learning rate, and `names` in the order of
    `params`. Shapes are those of whole parameters, wherever a backend has put their shards. `rates` are further factors
    by the identity of a parameter: `swift.toolkit.rates_of_parts`.
    """
    selected = tuner_of(tuner)
    members: dict[tuple[bool, float], tuple[list[str], list[torch.nn.Parameter]]] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        scale = selected.lr_scale(name) * rates.get(id(parameter), 1.0)
        names, parameters = members.setdefault((len(whole_shape(parameter)) >= 2, scale), ([], []))
        names.append(name)
        parameters.append(parameter)
    return [
        {
            "params": parameters,
            "names": names,
            "weight_decay": optim.weight_decay if decays else 0.0,
            "lr_scale": scale,
        }
        for (decays, scale), (names, parameters) in members.items()
    ]


def build_optimizer(
    groups: Sequence[dict[str, Any]], optim: OptimSection, lr: float, device: torch.device | str
) -> torch.optim.Optimizer:
    """Return the optimizer that the `optim` section names, over `parameter_groups`, at learning rate `lr`."""
    check_packages(optim)
    loaded = load_optimizer(optim.name)
    assert loaded.config_model is not None
    # Torch reads 'names' as a request of its own (param_names), which other optimizers refuse.
    left_out = {"names"} if loaded.object.reads == Reads.PARTS else {"names", "placements"}
    plain = [{key: value for key, value in group.items() if key not in left_out} | {"lr": lr} for group in groups]
    with failing(loaded.entry, "make"):
        optimizer = loaded.object.make(plain, optim.options(loaded.config_model), torch.device(device))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise wrong(loaded.entry, "make", "a torch.optim.Optimizer", optimizer)
        _blame(loaded.entry, optimizer)
        set_learning_rate(optimizer, lr)
        return optimizer


def _blame(entry: PluginEntry, optimizer: torch.optim.Optimizer) -> None:
    """Let what an optimizer raises be blamed on its plugin, rather than on the backend that calls it."""
    itself = weakref.ref(optimizer)  # one that held itself would keep its memory until garbage is looked for

    def surrounded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with blaming(entry, f"{name} of its optimizer"):
                return function(itself(), *arguments, **named)

        return call

    for name in _CALLED:
        function = getattr(type(optimizer), name, None)
        if inspect.isfunction(function) and name not in vars(optimizer):
            setattr(optimizer, name, surrounded(function, name))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the scheduled learning rate, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def clip(parameters: Sequence[torch.nn.Parameter], limit: float, optimizer: torch.optim.Optimizer) -> float:
    """Cut the gradients to a norm of at most `limit`, and return what it was.

    An optimizer that scales gradients itself is told by how much, and gradients that are short enough are left alone.
    """
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    known = float(norm)
    factor = min(1.0, limit / (known + _LEAST))
    if isinstance(optimizer, ScalesGradients):
        optimizer.gradient_factor = factor
    elif factor != 1.0:
        clip_grads_with_norm_(parameters, limit, norm)
    return known
