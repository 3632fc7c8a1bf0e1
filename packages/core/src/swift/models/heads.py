"""Models with a head of their own instead of the unembedding: which class they are, and where the head starts.

The head is a matrix without bias at `score`, as transformers' decoders for sequence classification have it. Where
transformers has no such class for an architecture, or one with another head, one is assembled from the same parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import xxhash

from swift.contracts import WeightStream
from swift.errors import ModelError
from swift.models.classes import causal_class, has_encoder, is_encoder
from swift.models.encoders import class_of_encoder, encoder_head_modules
from swift.parsing.tasks import EMBEDDING

HEAD_MODULE = "score"
HEAD = f"{HEAD_MODULE}.weight"
"""The name on disk of the weight of a head."""
VALUE_HEAD_MODULE = "value_head"
"""The module of a head for values next to an unembedding."""
VALUE_HEAD = f"{VALUE_HEAD_MODULE}.weight"
"""The name in checkpoints of its weight. Exports have no such head."""


def class_of_task(config: Any, task: str) -> Any:
    """Return the class of models for a task other than 'causal_lm'.

    Raises `ModelError` for an architecture that transformers itself does not have.
    """
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.auto import modeling_auto as auto

    if is_encoder(config):
        return class_of_encoder(config, task)
    kind = type(config)
    writer = causal_class(config)
    if kind not in auto.MODEL_MAPPING or writer is None:
        raise ModelError(
            f"model.task {task} cannot add a head: the installed transformers has no architecture {config.model_type}.",
            hint="Type --model.task causal_lm, or use a model that is part of transformers.",
        )
    if task == EMBEDDING:
        if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING and kind not in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise ModelError(
                f"{config.model_type} is an audio model, and model.task embedding supports only text and images.",
                hint="Use a text or vision model. To train a score of audio, use: swift rlhf --rlhf_type rm",
            )
        return auto.MODEL_MAPPING[kind]
    own = _own_class(config)
    if own is not None and issubclass(own, GenericForSequenceClassification):
        return own
    decoder = next(each for each in writer.__mro__ if _is_family(each))
    name = own.__name__ if own is not None else f"{decoder.__name__.removesuffix('PreTrainedModel')}{_SUFFIX}"
    if has_encoder(config):
        _name_weights_as(writer, config.model_type, name)
    return type(name, (GenericForSequenceClassification, decoder), {"base_model_prefix": decoder.base_model_prefix})


def _name_weights_as(writer: Any, model_type: str, name: str) -> None:
    """Let transformers find the weights of a class of ours under the names that those of `writer` have on disk."""
    from transformers import conversion_mapping as known

    names = known.get_checkpoint_conversion_mapping(writer.__name__)
    if names is None:
        names = known.get_checkpoint_conversion_mapping(model_type)
    if names is not None:
        known.register_checkpoint_conversion_mapping(name, names, overwrite=True)


def loads_in_transformers(config: Any) -> bool:
    """Return whether transformers' AutoModelForSequenceClassification finds the head `score` for this architecture."""
    if is_encoder(config):
        return True
    own = _own_class(config)
    if own is None:
        return False
    with torch.device("meta"):
        model = own._from_config(config)
    head = getattr(model, HEAD_MODULE, None)
    return isinstance(head, torch.nn.Linear) and head.bias is None


def initial_head(shape: tuple[int, ...], *, seed: int, name: str = HEAD) -> torch.Tensor:
    """Return where a weight of a fresh head starts, in fp32 on the CPU.

    Matrices are normal, of variance 1 / (hidden size + 1); norms begin at one and biases at zero.
    """
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1)
    return torch.zeros(shape).normal_(std=1 / math.sqrt(shape[-1] + 1), generator=generator)


def head_modules(model: Any) -> list[str]:
    """Return the names of the modules that make scores of hidden states, of decoders and encoders; [] without any."""
    return encoder_head_modules(model) or ([HEAD_MODULE] if head_of(model) is not None else [])


def head_of(model: Any) -> Any:
    """Return the head of a transformers model, or the wrapper that PEFT has put around it; None where it has none."""
    return getattr(model, HEAD_MODULE, None) if model.get_output_embeddings() is None else None


def value_head_of(model: Any) -> Any:
    """Return the head for values that a causal language model has next to its unembedding; None where it has none."""
    return getattr(model, VALUE_HEAD_MODULE, None) if model.get_output_embeddings() is not None else None


def add_value_head(model: torch.nn.Module, config: Any, dtype: torch.dtype) -> torch.nn.Linear:
    """Put a head for values next to the unembedding, whose weight is not set, and return it."""
    head = torch.nn.Linear(config.get_text_config().hidden_size, 1, bias=False, dtype=dtype)
    model.add_module(VALUE_HEAD_MODULE, head)
    return head


def take_value_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """Take the head for values next to an unembedding out of a model, and return it; None where it has none.

    Tuners are given the model without it: no adapter goes on it, and no adapter's configuration names it.
    """
    head: torch.nn.Linear | None = getattr(model, VALUE_HEAD_MODULE, None)
    if head is not None:
        delattr(model, VALUE_HEAD_MODULE)
    return head


def exported(weights: WeightStream) -> WeightStream:
    """Yield the weights of a model as others know it: without a head for values next to the unembedding."""
    return ((name, tensor) for name, tensor in weights if name != VALUE_HEAD)


def apply_head(head: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the head's outputs in fp32, computed in the precision of its weights, regardless of autocast."""
    active = head
    if hasattr(head, "modules_to_save"):  # PEFT keeps the head as it was next to the one that is trained
        active = head.original_module if head.disable_adapters else head.modules_to_save[head.active_adapters[0]]
    with torch.autocast(hidden.device.type, enabled=False):
        outputs: torch.Tensor = head(hidden.to(active.weight.dtype))
    return outputs.float()


_SUFFIX = "ForSequenceClassification"


def _own_class(config: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSES

    return CLASSES.get(type(config), None)


def _is_family(kind: type) -> bool:
    """Return whether a class is what all models of one architecture inherit from."""
    from transformers import PreTrainedModel

    return PreTrainedModel in kind.__bases__
