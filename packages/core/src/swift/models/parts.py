"""The parts of a model that reads images: the encoder that sees them, the aligner, and the language model.

No list of architectures: transformers' own accessors find encoder and decoder, and the aligner is what is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch

from swift.config.sections import Config, TunerSection
from swift.contracts import Run
from swift.errors import ConfigError
from swift.models.heads import head_modules, value_head_of
from swift.models.media import ProcessorReader
from swift.models.names import base_model
from swift.models.view import ViewModule

VIT, ALIGNER, LLM = "vit", "aligner", "llm"
PARTS = (VIT, ALIGNER, LLM)
FROZEN = frozenset({VIT, ALIGNER})
"""Parts that are not trained where nothing else is said: what ms-swift and LLaMA-Factory do."""
_MERGERS = re.compile(r"(^|\.)(patch_)?merger|(^|\.)deepstack_merger")
"""What encoders of Qwen's and GLM's kind call the layers inside them that lead to the language model."""


def reads_images(model: torch.nn.Module) -> bool:
    """Return whether a transformers or PEFT model has an encoder for images or sounds."""
    return bool(_encoders(base_model(model)))


def part_of_modules(model: torch.nn.Module) -> dict[str, str]:
    """Return the part of every module of the transformers model that has weights of its own; {} without an encoder.

    Names are those in the transformers model, without PEFT's wrapper.
    """
    base = base_model(model)
    encoders = _encoders(base)
    if not encoders:
        return {}
    names = {id(module): name for name, module in base.named_modules()}
    inside = [names[id(encoder)] for encoder in encoders]
    language = [
        base.get_decoder(),
        base.get_input_embeddings(),
        base.get_output_embeddings(),
        getattr(base, "score", None),
    ]
    spoken = [names[id(module)] for module in language if module is not None and id(module) in names]
    return {
        name: _part(name, inside, spoken)
        for name, module in base.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }


def frozen_parts(section: TunerSection, options: Any) -> frozenset[str]:
    """Return which parts stay as they are; `options` are the tuner's own.

    Where its patterns choose weights or modules by name, they alone decide, but for what a flag says.
    """
    chosen = getattr(options, "selects", False) or getattr(options, "target_regex", None) is not None
    flags = {VIT: section.freeze_vit, ALIGNER: section.freeze_aligner, LLM: section.freeze_llm}
    return frozenset(
        part for part in PARTS if (flags[part] if flags[part] is not None else part in FROZEN and not chosen)
    )


def modules_of(model: torch.nn.Module, parts: Collection[str]) -> list[str]:
    """Return the names of the modules of some parts that have weights of their own."""
    return [name for name, part in part_of_modules(model).items() if part in parts]


def freeze_parts(model: torch.nn.Module, section: TunerSection, options: Any) -> None:
    """Stop the parts from being trained that the `tuner` section freezes, adapters in them included."""
    frozen = frozen_parts(section, options)
    if not reads_images(model):
        _check_text_model(section)
        return
    for name in modules_of(model, frozen):
        for parameter in base_model(model).get_submodule(name).parameters(recurse=False):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"Nothing is left to train: all parts of this model are frozen ({', '.join(sorted(frozen))}).",
            hint="Unfreeze one of them: --tuner.freeze_llm false, --tuner.freeze_vit false or "
            "--tuner.freeze_aligner false",
        )


def _check_text_model(section: TunerSection) -> None:
    """Refuse to freeze all of a model that has no other parts; that an encoder is frozen changes nothing about it."""
    if section.freeze_llm:
        raise ConfigError(
            "Nothing is left to train: tuner.freeze_llm freezes all of a text-only model.",
            hint="Remove it. To train some weights, type --train_type full --freeze_parameters PATTERN",
        )


def trained_parts(model: torch.nn.Module) -> frozenset[str]:
    """Return the parts of which any weight or adapter is trained; none for a model that reads text alone."""
    parts = part_of_modules(model)
    inner = dict(base_model(model).named_modules())
    own = {name: inner[name].parameters(recurse=False) for name in parts}
    return frozenset(part for name, part in parts.items() if any(each.requires_grad for each in own[name]))


def rates_of_parts(config: Config, model: torch.nn.Module) -> dict[int, float]:
    """Return factors on the learning rate by the identity of parameters; those that are not in it have 1."""
    rates = {VIT: config.optim.vit_lr, ALIGNER: config.optim.aligner_lr}
    inner = dict(base_model(model).named_modules())
    return {
        id(parameter): rate / config.learning_rate
        for name, part in part_of_modules(model).items()
        if (rate := rates.get(part)) is not None
        for parameter in inner[name].parameters(recurse=False)
    }


def trains_on_images(run: Run, model: torch.nn.Module) -> bool:
    """Return whether a run trains weights that only images reach: a process without one needs a stand-in."""
    return run.media_reader is not None and not trained_parts(model) <= {LLM}


def reaches_trained(view: ViewModule, reader: ProcessorReader | None = None) -> bool:
    """Return whether every trained weight has a part in what the model computes of a probe; of images with a reader.

    LLaVA has no use for its vision encoder's last layer, decoders from encoder-decoder models for their
    cross-attention, and a mixture for experts that no token of the batch is routed to. A head always has a part.
    """
    if reader is None:
        batch = view.probe((7, 4))
    else:
        batch = reader.collated([reader.probe([(56, 56)])], flat=view.attention.flat)
    model = view.causal_lm
    scores = map(model.get_submodule, head_modules(model))
    heads = [model.get_output_embeddings(), value_head_of(model), *scores]
    found = {id(weight) for head in heads if head is not None for weight in head.parameters()}
    with view.evaluating(), torch.enable_grad():
        output = getattr(view(batch.to(next(view.parameters()).device), {view.comparable}), view.comparable.value)
    found |= _leaves(output)
    return all(id(weight) in found for weight in view.parameters() if weight.requires_grad)


def _leaves(output: torch.Tensor) -> set[int]:
    """Return the identities of the tensors that a backward pass from `output` would add gradients to."""
    found, seen, waiting = set(), set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(id(leaf))
        waiting += [before for before, _ in node.next_functions]
    return found


def _encoders(base: Any) -> list[torch.nn.Module]:
    """Return the encoders of images and of sounds."""
    if not hasattr(base, "get_encoder"):
        return []
    found = [base.get_encoder(modality=modality) for modality in ("image", "audio")]
    own = {id(base), id(base.base_model), id(base.get_decoder())}
    return [encoder for encoder in found if encoder is not None and id(encoder) not in own]


def _part(name: str, encoders: Collection[str], language: Collection[str]) -> str:
    if any(_within(name, outer) for outer in language):
        return LLM
    for encoder in encoders:
        if _within(name, encoder):
            return ALIGNER if _MERGERS.search(name.removeprefix(encoder)) else VIT
    return ALIGNER


def _within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")
