"""Putting modules of PEFT into a model: which modules get one, where its parameters begin, and adapters of a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from swift.config.incompatibilities import no_such_module
from swift.config.own_options import ALL_LINEAR, EXPERTS, LoraOptions, TargetOptions
from swift.contracts import TunerContext
from swift.errors import ConfigError, ModelError, did_you_mean
from swift.models.adapter_file import check_patterns, kind_of, read_adapter_config
from swift.models.heads import HEAD_MODULE, head_modules
from swift.models.load_adapter import attach_adapter
from swift.models.names import ADAPTER, adapter_names, base_model, name_map
from swift.models.peft_targets import adapts_experts, all_linear, names_module, short_names, stacked_experts
from swift.models.quiet import without_bitsandbytes

Initial = Callable[[str, Sequence[int]], "torch.Tensor | None"]


def attach_peft(
    model: torch.nn.Module,
    options: TargetOptions,
    context: TunerContext,
    make: Callable[..., Any],
    initial: Initial,
) -> torch.nn.Module:
    """Return the model with new modules of PEFT on what the options name, except what `context` leaves frozen.

    `make` is called with `task_type`, `target_modules`, `exclude_modules`, `modules_to_save` and, for experts,
    `target_parameters`, and returns PEFT's configuration. `initial` is called with the name on disk and the shape of
    each parameter, and returns what it begins with, or None to leave it as PEFT made it.
    """
    with without_bitsandbytes():
        from peft import get_peft_model

    parameters = _parameters(model, options, context.frozen)
    config = make(
        task_type=_peft_task(model),
        target_modules=_targets(model, options, parameters, context.say),
        **({"target_parameters": parameters} if parameters else {}),
        exclude_modules=sorted(context.frozen) or None,
        modules_to_save=[*options.modules_to_save, *_whole_heads(model)] or None,
    )
    try:
        # PEFT draws from the global generator; what it draws is replaced, and the generator put back.
        with torch.random.fork_rng(devices=[]), without_bitsandbytes():
            tuned: torch.nn.Module = get_peft_model(model, config, adapter_name=ADAPTER)
    except ValueError as error:
        raise ConfigError(f"The adapter does not fit this model: {error}", hint="Check tuner.targets.") from error
    tensors = dict(tuned.named_parameters())
    with torch.no_grad():
        for memory, disk in adapter_names(tuned).items():
            parameter = tensors.get(memory)
            if parameter is None or parameter.is_meta:
                continue
            first = initial(disk, parameter.shape)
            if first is not None:
                parameter.copy_(first)
    return tuned


def _targets(
    model: torch.nn.Module, options: TargetOptions, parameters: Sequence[str], say: Callable[[str], None]
) -> str | list[str]:
    """Return the modules that PEFT adapts next to `parameters`: an expression, or names of modules that all exist."""
    experts = _fused_expert_modules(model)
    names = [name for name, _ in model.named_modules()]
    if options.target_regex is not None:
        return _matched(_regex(model, options.target_regex), names, experts)
    if not options.all_linear:
        modules = {name.rpartition(".")[2] for name in names} | experts
        targets = [target for target in options.targets if target != EXPERTS]
        for target in targets:
            if target.rpartition(".")[2] not in modules:
                raise no_such_module(target, modules)
        _check_on_experts(model, options, [each for each in targets if _on_experts(each, experts, names)], names)
        return targets
    found = all_linear(model, experts)
    note = ""
    if parameters:
        note = f"; and to the experts ({', '.join(parameters)})"
    elif stacked_experts(model):
        note = "; none on the routed experts"
        note += f" (for these as well: --target_modules {ALL_LINEAR} {EXPERTS})" * isinstance(options, LoraOptions)
    if note or found.left_out:
        say(f"{found}{note}")
    return found.targets


def _parameters(model: torch.nn.Module, options: TargetOptions, frozen: Collection[str]) -> list[str]:
    """Return the stacked experts that PEFT adapts, outside of `frozen` modules, by the ends of their names."""
    named = options.target_parameters if isinstance(options, LoraOptions) else ()
    if EXPERTS not in options.targets and not named:
        return []
    known = stacked_experts(model)
    if not known:
        raise ConfigError(
            f"This {base_model(model).config.model_type} model has no experts that are stacked in one tensor per "
            "layer, [experts, rows, columns], so there is nothing to attach adapters to.",
            hint=f"Remove {EXPERTS} from --target_modules, and --target_parameters.",
        )
    for name in named:
        if not names_module(name, known):
            raise ConfigError(
                f"tuner.target_parameters: the model has no stacked experts {name!r}.{did_you_mean(name, known)}",
                hint=f"Type --target_parameters {' '.join(_ends(known, model))}, or name modules in --target_modules.",
            )
    _check_lora_of_experts(options)
    wanted = {each for name in named for each in known if names_module(name, [each])}
    chosen = known if EXPERTS in options.targets else [each for each in known if each in wanted]
    return _ends([each for each in chosen if each.rpartition(".")[0] not in frozen], model)


def _ends(wanted: Sequence[str], model: torch.nn.Module) -> list[str]:
    return short_names(wanted, {name for name, _ in base_model(model).named_parameters()} - set(wanted))


def _on_experts(target: str, experts: set[str], names: list[str]) -> bool:
    """Return whether a target means stacked experts: it is their name alone, or one that no module has."""
    return target.rpartition(".")[2] in experts and ("." not in target or not names_module(target, names))


def _check_on_experts(model: torch.nn.Module, options: TargetOptions, targets: list[str], names: list[str]) -> None:
    """Refuse targets that mean the stacked experts where adapters cannot be attached to these."""
    if not targets:
        return
    if not adapts_experts(model):
        if all(names_module(target, names) for target in targets):
            return  # dense layers or shared experts of this name are meant
        raise ConfigError(
            f"PEFT does not know the experts of {base_model(model).config.model_type} models by {' '.join(targets)}.",
            hint=f"Type {EXPERTS} instead: --target_modules {ALL_LINEAR} {EXPERTS}",
        )
    _check_lora_of_experts(options)


def _check_lora_of_experts(options: TargetOptions) -> None:
    """Refuse what PEFT, or the numbers of one process, do not allow for adapters on stacked experts."""
    if not isinstance(options, LoraOptions):
        raise ConfigError(
            "The experts of this model are one tensor per layer, for which PEFT supports only LoRA.",
            hint="Type --tuner.kind lora, or remove the experts from tuner.targets.",
        )
    if options.dropout > 0:
        raise ConfigError("Adapters on experts do not support dropout.", hint="Add --tuner.dropout 0")
    if options.dora:
        raise ConfigError("Adapters on experts do not support DoRA.", hint="Leave --use_dora out.")
    if options.init != "default":
        raise ConfigError(
            f"Adapters on experts do not support tuner.init {options.init}.", hint="Leave --init_lora_weights out."
        )


def _regex(model: torch.nn.Module, expression: str) -> str:
    """Return an expression that matches the whole name of a module at least."""
    names = [name for name, _ in model.named_modules() if name]
    check_patterns({"target_modules": expression}, names, "tuner.target_regex", ConfigError)
    if not any(re.fullmatch(expression, name) for name in names):
        linear = (name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))
        raise ConfigError(
            f"tuner.target_regex: {expression!r} matches no module of this model.",
            hint=f"It must match the full name of a module, such as {next(linear, names[-1])}.",
        )
    return expression


def _matched(expression: str, names: list[str], experts: set[str]) -> str | list[str]:
    """Return the expression, or the modules that it matches where PEFT would take these for the stacked experts."""
    found = [name for name in names if re.fullmatch(expression, name)]
    if not any(name.rpartition(".")[2] in experts for name in found):
        return expression
    return short_names(found, set(names) - set(found), experts)


def _fused_expert_modules(model: torch.nn.Module) -> set[str]:
    """Names on disk ('gate_proj') of modules that are stacked into one parameter per layer in memory."""
    names = name_map(model)
    stacked = [names.pieces(name) for name in names.parameters() if len(names.pieces(name)) > 1]
    return {piece.name.removesuffix(".weight").rpartition(".")[2] for pieces in stacked for piece in pieces}


def _peft_task(model: torch.nn.Module) -> str:
    """Return PEFT's word for what a model is for: with SEQ_CLS the head is trained whole and saved with the adapter."""
    base = base_model(model)
    if head_modules(base):
        return "SEQ_CLS"
    return "FEATURE_EXTRACTION" if base.get_output_embeddings() is None else "CAUSAL_LM"


def _whole_heads(model: torch.nn.Module) -> list[str]:
    """Return the modules of an encoder's head, which are trained whole; that of a decoder is known to PEFT."""
    base = base_model(model)
    names = [name.rpartition(".")[2] for name in head_modules(base) if name != HEAD_MODULE]
    found = [name for name, _ in base.named_modules() if any(f".{name}".endswith(f".{each}") for each in names)]
    if len(found) > len(names):
        raise ModelError(
            f"PEFT cannot tell the head of {type(base).__name__} from its layers: {', '.join(sorted(found)[:4])}.",
            hint="Type --train_type full",
        )
    return names


def resume_adapter(
    model: torch.nn.Module,
    folder: Path,
    say: Callable[[str], None],
    *,
    dropout: float | None = None,
    kind: str = "LORA",
) -> torch.nn.Module:
    """Return the model with the adapter of a folder, to be trained further; without `dropout`, with its own.

    `kind` is PEFT's name of the kind of adapter that it must be.
    """
    config = read_adapter_config(folder)
    if kind_of(config) != kind:
        raise ModelError(
            f"The adapter in {folder} is {kind_of(config)}, and this tuner can only continue {kind}.",
            hint=f"Type --tuner.kind {kind_of(config).lower()}",
        )
    if head_modules(base_model(model)) and config.get("task_type") != "SEQ_CLS":
        raise ModelError(
            f"The adapter in {folder} was trained for {config.get('task_type')} and has no score head, which this "
            "model needs.",
            hint="Merge it into its model first: swift export ADAPTER --to hf, and start from the exported model.",
        )
    tuned = attach_adapter(model, folder, trainable=True, dropout=dropout)
    say(f"continuing from the adapter in {folder}; its rank, alpha and targets apply")
    return tuned
