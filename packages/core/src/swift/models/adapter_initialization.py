"""Adapters that begin as a part of the weights: PiSSA (arXiv:2404.02948), OLoRA (arXiv:2406.01775), LoftQ.

The first two put factors B₀·A₀ of a weight into the adapter and take their product out of the weight. Here the weight
stays as it is on disk: a second adapter holds the factors, frozen, and is subtracted. The sum is the same,
(W - s·B₀·A₀) + s·B·A = W + s·(B·A - B₀·A₀), and the right side is a plain LoRA of twice the rank on the published
model. That is what leaves the run (`swift.models.plain_lora`), so that nobody who merges, serves or scores the adapter
has to know how it began, and switching it off gives the model before training.

LoRA-GA's factors are taken out in the same way; what decides them is in `swift.train.data_driven_initialization`.

LoftQ (arXiv:2310.08659) begins with factors of what a weight loses in 4 bits. The weights on disk have not lost it, so
that the factors are subtracted in what leaves the run, and there alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from swift.config.own_options import FROM_DATA, LoraOptions
from swift.contracts import ModelSource, Run
from swift.contracts.role import POLICY
from swift.errors import ConfigError
from swift.models.names import ADAPTER, START, adapter_names, base_model, generator_of, name_map
from swift.models.precision import compute_dtype
from swift.models.quantize import in_low_bit
from swift.models.quiet import without_bitsandbytes
from swift.processes.comms import Comms

_OVERSAMPLED = 10
"""Columns beyond the rank in which a randomised decomposition looks for it."""


def add_start(tuned: Any, *, subtracted: bool = True) -> None:
    """Put the frozen adapter that is subtracted next to the trained one of a PEFT model.

    Without `subtracted` it is only kept, to be subtracted in what leaves the run: LoftQ's, which stands for what the
    weights in training lack and those on disk have.
    """
    layers = lora_layers(tuned)
    for path, layer in layers:
        check_matrix(tuned, path, layer)
    trained = {name for name, parameter in tuned.named_parameters() if parameter.requires_grad}
    config = copy.deepcopy(tuned.peft_config[ADAPTER])
    config.lora_dropout, config.bias, config.modules_to_save = 0.0, "none", None
    with torch.random.fork_rng(devices=[]), without_bitsandbytes():
        tuned.add_adapter(START, config)
    for _, layer in layers:
        layer.set_adapter([ADAPTER, START] if subtracted else [ADAPTER])
        layer.scaling[START] = -layer.scaling[ADAPTER]
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_(name in trained)


@torch.no_grad()
def read_initialization(run: Run, source: ModelSource, tuned: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what adapters begin with that weights or data decide, by names on disk; nothing for other adapters.

    What data decides was found before. Collective: each process decomposes some of the matrices, one at a time, and all
    get the factors of all.
    """
    options = run.config.tuner.options(LoraOptions)
    if options.init in FROM_DATA and run.role != POLICY:
        raise ConfigError(
            f"tuner.init {options.init} reads the training data, so it works for the policy only, not for the "
            f"{run.role}.",
            hint=f"Choose another initialization for the {run.role}, such as pissa.",
        )
    if options.init in FROM_DATA:
        return dict(run.adapter_start)
    if START not in getattr(tuned, "peft_config", {}):
        return {}
    names, on_disk = name_map(tuned), adapter_names(tuned)
    found: dict[str, torch.Tensor] = {}
    comms = Comms(run.timeout)
    try:
        for path, layer in lora_layers(tuned)[comms.rank :: comms.size]:
            (piece,) = names.pieces(f"{inner_name(path)}.weight")
            weight = source.read(piece.name).to(run.topology.device, torch.float32)
            if options.init == "loftq":
                weight = weight - in_low_bit(weight, run.config.tuner, compute_dtype(run))
            weight = weight.T if getattr(layer, "fan_in_fan_out", False) else weight
            generator = generator_of(run.config.train.seed, piece.name)
            pair = _factors(weight, layer.r[ADAPTER], layer.scaling[ADAPTER], options, generator)
            for part, value in zip("AB", pair, strict=True):
                for adapter in (ADAPTER, START):
                    found[on_disk[f"{path}.lora_{part}.{adapter}.weight"]] = value.contiguous().cpu()
        return {name: value for part in comms.gather(found) for name, value in part.items()}
    finally:
        comms.close()


@torch.no_grad()
def keep_starts(
    model: torch.nn.Module, starts: Mapping[str, torch.Tensor], keep: Callable[[torch.Tensor, torch.Tensor], Any]
) -> None:
    """Copy what adapters begin with into a model that has memory."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for memory, disk in adapter_names(model).items() if starts else ():
        if disk in starts:
            keep(parameters[memory], starts[disk])


def lora_layers(tuned: Any) -> list[tuple[str, Any]]:
    """Return the layers of a PEFT model that have an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    return [(path, module) for path, module in tuned.named_modules() if isinstance(module, LoraLayer)]


def inner_name(path: str) -> str:
    """Return the name of a module in the model that PEFT has wrapped."""
    return path.removeprefix("base_model.model.")


def check_matrix(tuned: Any, path: str, layer: Any) -> None:
    """Refuse adapters on what is no single matrix on disk."""
    names, weight = name_map(tuned), f"{inner_name(path)}.weight"
    pieces = names.pieces(weight) if ADAPTER in layer.lora_A and weight in names.parameters() else ()
    if len(pieces) != 1 or len(pieces[0].shape) != 2:
        raise ConfigError(
            f"tuner.init needs linear layers with one weight tensor on disk. {inner_name(path)} of "
            f"{type(base_model(tuned)).__name__} is not such a layer.",
            hint="Name linear layers: --target_modules q_proj k_proj v_proj o_proj, or type --tuner.init default",
        )


def _factors(
    weight: torch.Tensor, rank: int, scale: float, options: LoraOptions, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A₀ and B₀ as PEFT has them: largest singular directions, or the first rows of R and columns of Q."""
    if options.init == "olora":
        q, r = torch.linalg.qr(weight)
        return of_rank(r[:rank], rank, 0), of_rank(q[:, :rank], rank, 1)
    if options.init_iterations is None:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
    else:
        columns = rank + _OVERSAMPLED
        left, values, right = randomised_svd(weight, columns, options.init_iterations, generator)
    roots = (values[:rank] / scale).sqrt()
    a, b = roots[:, None] * right[:rank], left[:, :rank] * roots
    # A direction has two signs, and libraries differ: the largest entry of each row of A is positive here.
    signs = signs_of(a)
    return of_rank(a * signs, rank, 0), of_rank(b * signs.T, rank, 1)


def signs_of(rows: torch.Tensor) -> torch.Tensor:
    """Return the sign of the largest entry of each row, as a column."""
    return rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()


def randomised_svd(
    weight: torch.Tensor, columns: int, iterations: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Halko, Martinsson and Tropp's subspace iteration, from a draw that depends on the seed and the name alone."""
    columns = min(columns, *weight.shape)
    basis = weight @ torch.randn(weight.shape[1], columns, generator=generator).to(weight.device)
    for _ in range(iterations):
        basis = torch.linalg.qr(basis)[0]
        basis = weight @ torch.linalg.qr(weight.T @ basis)[0]
    basis = torch.linalg.qr(basis)[0]
    left, values, right = torch.linalg.svd(basis.T @ weight, full_matrices=False)
    return basis @ left, values, right


def of_rank(matrix: torch.Tensor, rank: int, dimension: int) -> torch.Tensor:
    """Return the matrix with zeros where the weight has fewer directions than the adapter's rank."""
    missing = rank - matrix.shape[dimension]
    return torch.nn.functional.pad(matrix, (0, 0, 0, missing) if dimension == 0 else (0, missing))
