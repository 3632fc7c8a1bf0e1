"""Which weights are trained: all of them, some by pattern, or low-rank adapters through PEFT.

`apply_tuner` takes a transformers model and returns what is trained. Whatever the tuner, what comes out is the same
for every process and every backend: trainable weights are fp32 masters, and initial adapters are drawn per adapter
from the seed and the adapter's name, so that they depend on neither rank, order, device nor layout. A backend that
makes its own adapter modules calls `SelectedTuner.initial` and starts from the very same numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from swift.config.own_options import FACTORED, STARTED, FullOptions, LoraOptions
from swift.config.sections import TunerSection
from swift.contracts import TunerContext
from swift.errors import ConfigError, ModelError, did_you_mean
from swift.models.adapter_initialization import add_start
from swift.models.heads import VALUE_HEAD_MODULE, take_value_head
from swift.models.names import ADAPTER, START, base_model, canonical_parameters, generator_of, whole_shape
from swift.models.parts import freeze_parts, frozen_parts, modules_of
from swift.models.peft_modules import attach_peft
from swift.models.peft_targets import as_peft_reads
from swift.models.plain_lora import plain_config
from swift.models.quiet import without_bitsandbytes
from swift.models.routers import router_modules
from swift.plugins.tuner import tuner_of


def apply_tuner(
    model: torch.nn.Module, section: TunerSection, *, seed: int, say: Callable[[str], None]
) -> torch.nn.Module:
    """Freeze what is not trained, attach adapters, and make fp32 masters of what is trained."""
    tuner = tuner_of(section)
    routers = router_modules(base_model(model)) if section.freeze_router else []
    frozen = frozenset(modules_of(model, frozen_parts(section, tuner.options))) | frozenset(routers)
    head = take_value_head(model) if tuner.adapter else None
    tuned = tuner.attach(model, TunerContext(seed, say, section.adapter, section.quantize, frozen))
    freeze_parts(tuned, section, tuner.options)
    for name in routers:
        base_model(tuned).get_submodule(name).requires_grad_(False)
    if head is not None:  # trained whole, beside the adapters
        base_model(tuned).add_module(VALUE_HEAD_MODULE, head.requires_grad_(True))
    for parameter in tuned.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    return tuned


def adapter_config(model: torch.nn.Module) -> dict[str, Any] | None:
    """Return the content of PEFT's adapter_config.json for this model; None when it has no adapter."""
    if not hasattr(model, "peft_config"):
        return None
    configs: Any = model.peft_config
    config: dict[str, Any] = configs[ADAPTER].to_dict()
    config["inference_mode"] = True
    if config.get("modules_to_save"):  # PEFT names the head again whenever it puts an adapter on
        config["modules_to_save"] = list(dict.fromkeys(config["modules_to_save"]))
    if START in configs:
        config = plain_config(config)
    # Sets have another order in every process, and enumerations are not JSON.
    return {key: _plain(value) for key, value in as_peft_reads(config, model).items()}


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model computes what it did before training: the reference of preference objectives."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    if not hasattr(model, "peft_config"):
        raise ModelError(
            "The objective needs the model without its adapter as a reference, but all weights are trained.",
            hint="Use --tuner.kind lora, or an objective that needs no reference.",
        )
    # PEFT's own switch also turns requires_grad off and on, which DDP and FSDP do not expect after wrapping.
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)]
    before = [layer._disable_adapters for layer in layers]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, was_off in zip(layers, before, strict=True):
            layer._disable_adapters = was_off


def weight_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Return how many weights are trained, and how many there are."""
    counts = [(_count(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(count for count, grad in counts if grad), sum(count for count, _ in counts)


def initial_lora(name: str, shape: Sequence[int], options: LoraOptions, seed: int) -> torch.Tensor | None:
    """Return where A and B begin; None for magnitudes, biases and whole modules, which begin as the weights.

    As in PEFT: A is uniform (`default`: within ±1/√inputs) or normal (`gaussian`: deviation 1/rank), B is zero; with
    `orthogonal`, A and B are both drawn, with rows and columns at right angles, so that B·A is zero. An embedding's A
    is zero and its B standard normal.
    """
    if not any(part in name for part in (".lora_A", ".lora_B", ".lora_embedding_")):
        return None
    generator = generator_of(seed, name)
    matrix = torch.zeros(tuple(shape))
    if ".lora_embedding_B" in name:
        return matrix.normal_(generator=generator)
    if options.init == "orthogonal" and (".lora_A" in name or ".lora_B" in name):
        return _orthogonal(name, matrix.shape, seed, generator)
    if ".lora_A" in name and options.init == "gaussian":
        return matrix.normal_(std=1 / shape[0], generator=generator)
    if ".lora_A" in name:
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        return matrix.uniform_(-bound, bound, generator=generator)
    return matrix


def _orthogonal(name: str, shape: Sequence[int], seed: int, generator: torch.Generator) -> torch.Tensor:
    """Return A or B of a pair: random mixtures of rows of one orthogonal matrix, odd ones for A and even ones for B."""
    of_a = ".lora_A" in name
    rank, width = (shape[0], math.prod(shape[1:])) if of_a else (shape[1], shape[0])
    pair = name.replace(".lora_A", ".lora_AB").replace(".lora_B", ".lora_AB")
    rows, _ = torch.linalg.qr(torch.randn(rank, rank, generator=generator_of(seed, pair), dtype=torch.float64))
    mixture = torch.randn(width, rank // 2, generator=generator, dtype=torch.float64)
    matrix: torch.Tensor = mixture @ rows[0 if of_a else 1 :: 2] / 10
    return (matrix.T.reshape(tuple(shape)) if of_a else matrix.reshape(tuple(shape))).float().contiguous()


def freeze_by_pattern(model: torch.nn.Module, options: FullOptions) -> None:
    """Train the weights of a model that the options leave to train; none that match nothing, or split a tensor."""
    fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]  # by its own code
    model.requires_grad_(True)
    if options.selects:
        _select(model, options)
    for parameter in fixed:
        parameter.requires_grad_(False)


def _select(model: torch.nn.Module, options: FullOptions) -> None:
    weights = list(canonical_parameters(model))
    _check_matches(options, [piece.name for pieces, _ in weights for piece in pieces])
    below = _share_from_below(model, options.freeze_ratio)
    for pieces, parameter in weights:
        trained = {_is_trained(piece.name, id(parameter) in below, options) for piece in pieces}
        if len(trained) > 1:
            raise ConfigError(
                f"The patterns freeze only some of the experts fused with {pieces[0].name} into one tensor.",
                hint="Freeze all experts of a layer, or none.",
            )
        parameter.requires_grad_(trained.pop())
    if not any(parameter.requires_grad for _, parameter in weights):
        raise ConfigError(
            "Nothing is left to train: the tuner's freeze options match all weights.", hint="Freeze less."
        )


def _check_matches(options: FullOptions, known: Sequence[str]) -> None:
    """Refuse patterns that match no weight."""
    for option in ("freeze", "train_only", "unfreeze"):
        for pattern in getattr(options, option):
            if not any(fnmatchcase(name, pattern) for name in known):
                raise ConfigError(
                    f"tuner.{option}: no weight of this model matches {pattern!r}.{did_you_mean(pattern, known)}",
                    hint=f"Patterns are matched against whole names such as {known[-1]}; * matches anything.",
                )
    for option in ("freeze_regex", "unfreeze_regex"):
        expression = getattr(options, option)
        if expression is not None and not any(re.search(expression, name) for name in known):
            raise ConfigError(
                f"tuner.{option}: {expression!r} matches the name of no weight of this model.",
                hint=f"Names look like {known[-1]}.",
            )


def _share_from_below(model: torch.nn.Module, ratio: float) -> set[int]:
    """Return the ids of parameters, in the model's own order, that together are at most this part of its weights."""
    parameters = list(model.parameters())
    room = int(sum(map(_count, parameters)) * ratio)
    taken = accumulate(map(_count, parameters))
    return {id(parameter) for parameter, total in zip(parameters, taken, strict=True) if 0 < total <= room}


def _is_trained(name: str, below: bool, options: FullOptions) -> bool:
    if _matches(name, options.unfreeze, options.unfreeze_regex):
        return True
    if options.train_only and not _matches(name, options.train_only, None):
        return False
    return not below and not _matches(name, options.freeze, options.freeze_regex)


def _matches(name: str, patterns: Sequence[str], expression: str | None) -> bool:
    found = any(fnmatchcase(name, pattern) for pattern in patterns)
    return found or (expression is not None and re.search(expression, name) is not None)


def attach_lora(model: torch.nn.Module, options: LoraOptions, context: TunerContext) -> torch.nn.Module:
    """Return the model with new adapters, drawn from the seed and their names."""
    with without_bitsandbytes():
        from peft import LoraConfig

    make = partial(
        LoraConfig,
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        rank_pattern=dict(options.rank_pattern),
        alpha_pattern=dict(options.alpha_pattern),
        bias=options.bias,
        use_dora=options.dora,
        use_rslora=options.rslora,
        init_lora_weights="gaussian" if options.init == "gaussian" else True,
    )
    tuned = attach_peft(model, options, context, make, partial(initial_lora, options=options, seed=context.seed))
    if options.init in STARTED:
        add_start(tuned, subtracted=options.init in FACTORED)
    return tuned


def _count(parameter: torch.nn.Parameter) -> int:
    """Weights in a parameter, whole even where it is packed (4 bits) or lies elsewhere (ZeRO-3)."""
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return math.prod(state.shape)
    return math.prod(whole_shape(parameter))


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if hasattr(value, "value") else value
