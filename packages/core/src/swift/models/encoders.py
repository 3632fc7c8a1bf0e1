"""Encoders: BERT and its relatives, in which a token sees those before and after it.

They are found by what transformers maps to masked language models, and make vectors (`embedding`) or scores
(`seq_cls`), never text. Vectors are pooled hidden states. Scores are those of the model's own head, whatever it is:
the head gets the hidden states as padded rows, also where the layers below it ran on samples that lie end to end.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from swift.data.batch import MicroBatch
from swift.data.samples import TOKEN_TYPES
from swift.errors import ModelError
from swift.models import attention_both_ways as _registered  # noqa: F401 - a kernel that views of encoders name
from swift.models.classes import encoder_body, encoder_half, is_encoder
from swift.parsing.tasks import EMBEDDING

_POOLER = "pooler"


def class_of_encoder(config: Any, task: str) -> Any:
    """Return transformers' class for a task of an encoder; for vectors without its pooler, which nothing would train.

    Raises `ModelError` where transformers has no such class.
    """
    from transformers.models.auto import modeling_auto as auto

    if task == EMBEDDING:
        return _without_pooler(encoder_body(config))
    found = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if found is None or encoder_half(config) is not None:
        raise ModelError(
            f"transformers has no class for the scores of {config.model_type} encoders.",
            hint="Use another encoder, or train vectors: --task_type embedding",
        )
    return found


@cache
def _without_pooler(base: Any) -> Any:
    options = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(base.__init__).parameters else {}

    def init(self: Any, config: Any, **_: Any) -> None:
        base.__init__(self, config, **options)
        if getattr(self, _POOLER, None) is not None:  # SqueezeBERT calls it in any case
            self.pooler = nn.Identity()

    return type(base.__name__, (base,), {"__init__": init, "__module__": base.__module__})


def encoder_head_modules(model: Any) -> list[str]:
    """Return the names of the modules that make scores of an encoder's hidden states; none of one without a head."""
    base = model.base_model
    if base is model or not is_encoder(model.config):
        return []
    names = [
        name
        for name, module in model.named_children()
        if module is not base and next(module.parameters(), None) is not None
    ]
    if getattr(base, _POOLER, None) is not None:
        names.append(f"{model.base_model_prefix}.{_POOLER}")
    return names


def first_position(config: Any) -> int:
    """Return the row of the position embedding at which samples begin: RoBERTa's begin after that of padding."""
    if not is_encoder(config):
        return 0
    key = (type(config), *(getattr(config, name, None) for name in ("pad_token_id", "max_position_embeddings")))
    if key not in _first_positions:
        with torch.device("meta"):
            found = padding_position(encoder_body(config)(config))
        _first_positions[key] = 0 if found is None else found + 1
    return _first_positions[key]


_first_positions: dict[tuple[Any, ...], int] = {}


def padding_position(base: nn.Module) -> int | None:
    """Return the padding token where positions are counted from it, as RoBERTa does; None where they begin at 0."""
    for name, module in base.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


class EncoderInputs:
    """What the view of an encoder gives its layers, and how it reads the scores of its head."""

    def __init__(self, model: Any) -> None:
        base = model.base_model
        self._requested = frozenset(inspect.signature(base.forward).parameters)
        self._padding = padding_position(base)
        self._types = getattr(base.config, "type_vocab_size", 0)
        self.has_head = bool(encoder_head_modules(model))

    def of(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return positions and token types of a micro-batch, as far as the model asks for them."""
        inputs = {"position_ids": self._positions(batch), "token_type_ids": self._token_types(batch)}
        return {name: tensor for name, tensor in inputs.items() if name in self._requested}

    def _positions(self, batch: MicroBatch) -> torch.Tensor:
        """Return the positions within samples; after RoBERTa's padding token, which has no position in a text."""
        if self._padding is None:
            return batch.position_ids
        counts = batch.input_ids != self._padding
        total = counts.cumsum(1)
        begins = torch.arange(counts.shape[1], device=counts.device) - batch.position_ids
        before = (total - counts.long()).gather(1, begins)
        return (total - before) * counts + self._padding

    def _token_types(self, batch: MicroBatch) -> torch.Tensor:
        """Return which tokens are of the second text of a pair: as values of tokens they lie one to the left."""
        types = batch.token_values.get(TOKEN_TYPES)
        if types is None or self._types < 2:  # RoBERTa has one type, whatever its tokenizer says
            return torch.zeros_like(batch.input_ids)
        return nn.functional.pad(types[:, :-1], (1, 0)).long()

    def scores(self, model: Any, batch: MicroBatch, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the scores of each segment, [segments, labels], in fp32."""
        if batch.boundaries is None:
            return own_scores(model, **inputs)
        lengths = batch.boundaries.diff().to(batch.input_ids.device)
        within = torch.arange(batch.longest, device=lengths.device)
        index = (batch.boundaries[:-1].to(lengths.device)[:, None] + within).clamp(max=batch.input_ids.shape[1] - 1)
        mask = within < lengths[:, None]
        with _end_to_end(model.base_model, inputs, index):
            return own_scores(model, input_ids=batch.input_ids[0][index], attention_mask=mask.long())


def own_scores(model: Any, **inputs: Any) -> torch.Tensor:
    """Return the logits of a model in fp32."""
    scores: torch.Tensor = model(**inputs).logits
    return scores.float()


def mixed_precision(model: nn.Module) -> torch.dtype | None:
    """Return the precision of frozen layers where a head is trained beside them in fp32; None where all is alike."""
    found = {each.dtype for each in model.parameters()}
    halves = found & {torch.bfloat16, torch.float16}
    return halves.pop() if halves and torch.float32 in found else None


@contextmanager
def _end_to_end(base: Any, inputs: dict[str, Any], index: torch.Tensor) -> Iterator[None]:
    """Inside, a body that is given padded rows runs on `inputs`, samples end to end, and its output becomes rows."""

    def give(_module: nn.Module, _positional: Any, _named: Any) -> tuple[tuple[()], dict[str, Any]]:
        return (), inputs

    def lay_out(_module: nn.Module, _given: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return output[0][index]
        if isinstance(output, tuple):
            return (output[0][0][index], *output[1:])
        output["last_hidden_state"] = output.last_hidden_state[0][index]
        return output

    def lay_out_given(_module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0][0][index], *given[1:])

    layers, pooler = _layers(base), getattr(base, _POOLER, None)
    hooks = [base.register_forward_pre_hook(give, with_kwargs=True), layers.register_forward_hook(lay_out)]
    if layers is base and pooler is not None:
        hooks.append(pooler.register_forward_pre_hook(lay_out_given))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(base: Any) -> nn.Module:
    """Return the module after which nothing mixes tokens but the head: the body's stack of layers, or the body."""
    embeds = base.get_input_embeddings()
    sizes = {
        module: sum(each.numel() for each in module.parameters())
        for name, module in base.named_children()
        if name != _POOLER and embeds not in module.modules()
    }
    largest: nn.Module = max(sizes, key=lambda module: sizes[module])
    return base if isinstance(largest, nn.ModuleList) else largest
