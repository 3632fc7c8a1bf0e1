"""Runs a transformers model on a micro-batch and returns the views that objectives ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from swift.contracts import ModelView, Need
from swift.data.batch import MicroBatch, collate
from swift.errors import ModelError
from swift.models.attention import (
    BOTH_WAYS,
    FLASHES,
    VARLEN,
    AttentionChoice,
    edges_on,
    packing_of,
    use_attention,
)
from swift.models.classes import is_encoder
from swift.models.encoders import EncoderInputs, mixed_precision, own_scores
from swift.models.fp8 import without_fp8
from swift.models.heads import apply_head, head_of, value_head_of
from swift.models.logits import LogitTransform
from swift.models.logps import at_positions, token_logps, token_logps_of_module, tokens_per_chunk
from swift.models.logps_autograd import chunks
from swift.models.media import ProcessorReader
from swift.models.names import base_model
from swift.models.neftune import NeftuneNoise
from swift.models.pooling import pooled, pooling_weights
from swift.models.router_losses import AddUp
from swift.models.routers import Routers
from swift.models.sample_by_sample import PackedRow, Search
from swift.models.sample_rope import use_sample_rope
from swift.models.view_check import (
    FAR_PROBED,
    own_numbers,
    probe_samples,
    trunk_of,
)

HEAD_NEEDS = frozenset(
    {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS}
)
"""Views that every causal language model has."""
OF_MACHINE = (torch.OutOfMemoryError, torch.distributed.DistError)
"""Errors of a forward pass that say nothing of the model."""


class UncheckedView(nn.Module):
    """A model whose forward pass returns a `ModelView`, whatever its numbers are.

    The decoder runs to hidden states; the output head sees, in chunks, only the tokens that count.
    """

    def __init__(self, model: nn.Module, *, attention: AttentionChoice) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.own_logits = False
        """True when the model computes its logits itself, all at once."""
        self.masks_padding = False
        """True when the model is given a mask for padding; causal models need none, padding being on the right."""
        self.pooling = "last"
        """Which hidden states make the vector of a segment; see `swift.models.pooling`."""
        self.reader: ProcessorReader | None = None
        """Reads the images of the run, where it has any: then the check looks at samples with images too."""
        self.routers: Routers | None = None
        """The routers of a mixture of experts, whose losses and load belong to the views of passes in training."""
        self._neftune: NeftuneNoise | None = None
        causal_lm = self.causal_lm
        use_attention(causal_lm, attention)
        self._transform = transform_of(causal_lm.config)
        self._unembeds = causal_lm.get_output_embeddings() is not None
        self._encoder = EncoderInputs(causal_lm) if is_encoder(causal_lm.config) else None
        if self._encoder is not None:
            self.masks_padding = True
        self._has_head = head_of(causal_lm) is not None
        self._has_value_head = value_head_of(causal_lm) is not None
        self._has_rows_of_positions = hasattr(causal_lm.base_model, "get_rope_index")
        self._has_sample_rope = use_sample_rope(causal_lm)
        decoder = causal_lm.get_decoder()
        self._class = type(decoder if isinstance(decoder, PreTrainedModel) else causal_lm)
        """Of what is probed on a small copy; kept, as FSDP gives the modules classes of its own."""
        self.by_sample: list[nn.Module] = []
        """Modules that see each sample of a packed row alone, as they would mix samples otherwise."""
        self._ratio = 1.5
        """How much longer than a sample a batch may be that such modules compute."""

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules but batch normalization: its stored statistics do not mix samples."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.training = False
        return self

    @property
    def causal_lm(self) -> Any:
        """Return the transformers model, taken out of PEFT's wrapper."""
        return base_model(self.model)

    def forward(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """Return the views of `batch`. Tokens without weight are not looked at: their values are zero."""
        if self._encoder is not None and (mixed := mixed_precision(self.model)) is not None:
            with torch.autocast(batch.input_ids.device.type, mixed):
                return self._noisy(batch, needs)
        return self._noisy(batch, needs)

    def _noisy(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        if self._neftune is None:
            return self._routed(batch, needs)
        with self._neftune.around(self._embedded(batch), self._whole_segments(batch)):
            return self._routed(batch, needs)

    def _routed(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """Return the views, with what routers did where this is a pass in training."""
        if self.routers is None or not (self.training and torch.is_grad_enabled()):
            return self._views(batch, needs)
        with self.routers.watched():
            return self.routers.add_to(self._views(batch, needs), batch, self._add_up_parts())

    def _add_up_parts(self) -> AddUp | None:
        """Return what adds a tensor up over the processes that have other parts of the same samples."""
        return None

    def _embedded(self, batch: MicroBatch) -> MicroBatch:
        """Return the tokens that are embedded: those of the batch, or of whole rows, of which it is a part."""
        return batch

    def _whole_segments(self, batch: MicroBatch) -> torch.Tensor:
        """Return the segment ids of whole rows, of which a process may have a part."""
        return batch.segment_ids

    def _views(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        if missing := set(needs) - self.provides():
            raise ModelError(f"This model cannot be viewed as {', '.join(sorted(missing))}.")
        causal_lm = self.causal_lm
        if self._encoder is not None and Need.SCORES in needs:
            with self._samples_apart(batch):
                scored = ModelView(scores=self._encoder.scores(causal_lm, batch, self.inputs(batch)))
            if Need.POOLED in needs:
                scored.pooled = self._pooled(self._hidden(batch), batch)
            return scored
        if not self._unembeds:
            return self._without_logits(self._hidden(batch), batch, needs)
        positions = batch.learned()
        targets = batch.targets.flatten().index_select(0, positions)
        candidates = None if batch.candidates is None else at_positions(batch.candidates, positions)
        requested: dict[str, Any] = {"candidates": candidates, "want": needs}
        head, transform = causal_lm.get_output_embeddings(), self._transform.at(batch.temperature)
        vocabulary = causal_lm.config.get_text_config().vocab_size
        hidden = None
        if self.own_logits:
            rows = self._computed(causal_lm, batch).logits
            head, transform, vocabulary = nn.Identity(), LogitTransform(temperature=batch.temperature), rows.shape[-1]
        else:
            rows = hidden = self._hidden(batch)
        rows = rows.flatten(0, 1).index_select(0, positions)
        if _is_matrix(head):
            views = token_logps(rows, head.weight, targets, bias=head.bias, transform=transform, **requested)
        else:
            views = token_logps_of_module(head, rows, targets, vocabulary=vocabulary, transform=transform, **requested)

        def spread(values: torch.Tensor) -> torch.Tensor:
            blank = values.new_zeros((*batch.targets.shape, *values.shape[1:]))
            # Not a view of something flat: FSDP hooks onto what comes out.
            return blank.index_put((positions // blank.shape[1], positions % blank.shape[1]), values)

        view = views.laid_out(spread, needs)
        if hidden is not None and Need.POOLED in needs:
            view.pooled = self._pooled(hidden, batch)
        if hidden is not None and Need.VALUES in needs:
            view.values = _values(value_head_of(causal_lm), hidden, batch)
        return view

    def _hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Return the hidden states of all tokens, with images instead of their tokens."""
        causal_lm = self.causal_lm
        if batch.media is not None and self._unembeds and causal_lm.base_model is causal_lm:
            hidden: torch.Tensor = self._computed(partial(_hidden_without_head, causal_lm), batch)
        else:
            trunk = trunk_of(causal_lm) if batch.media is None else causal_lm.base_model
            hidden = self._computed(trunk, batch).last_hidden_state
        return hidden

    def _computed(self, model: Callable[..., Any], batch: MicroBatch) -> Any:
        """Return what a model makes of a batch."""
        with self._samples_apart(batch):
            return model(**self.inputs(batch), **self._of_media(batch))

    def _samples_apart(self, batch: MicroBatch) -> AbstractContextManager[Any]:
        """Inside, modules that would mix the samples of a batch see them one by one."""
        if not self.by_sample:
            return nullcontext()
        lengths = (
            () if batch.boundaries is None else packing_of(batch.boundaries.tolist(), batch.input_ids.shape[1]).lengths
        )
        return PackedRow(lengths, self._ratio)

    def _of_media(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return what the encoders of the model are given, and which tokens stand for what where it asks for that."""
        if batch.media is None:
            return {}
        requested = inspect.signature(self.causal_lm.base_model.forward).parameters
        kinds = {
            name: batch.media.kinds.long() for name in ("mm_token_type_ids", "token_type_ids") if name in requested
        }
        return {**batch.media.inputs, **kinds}

    def logits(self, batch: MicroBatch) -> Iterator[torch.Tensor]:
        """Yield the logits of the tokens that count, in order, in fp32 and a chunk of tokens at a time."""
        causal_lm = self.causal_lm
        positions = batch.learned()
        head, transform = causal_lm.get_output_embeddings(), self._transform
        if self.own_logits:
            hidden = self._computed(causal_lm, batch).logits
            head, transform = nn.Identity(), LogitTransform()
        else:
            hidden = self._hidden(batch)
        hidden = hidden.flatten(0, 1).index_select(0, positions)
        size = tokens_per_chunk(causal_lm.config.get_text_config().vocab_size, hidden.device.type)
        for rows in chunks(len(positions), size):
            yield transform.at(batch.temperature)(head(hidden[rows]))

    def provides(self) -> frozenset[Need]:
        of_hidden = frozenset() if self.own_logits else frozenset({Need.POOLED})
        if self._unembeds:
            of_value_head = {Need.VALUES} if self._has_value_head and not self.own_logits else set()
            return HEAD_NEEDS | of_hidden | {Need.REFERENCE_LOGPS} | of_value_head
        if self._encoder is not None and self._encoder.has_head:
            return of_hidden | {Need.SCORES}
        return of_hidden | {Need.SCORES, Need.VALUES} if self._has_head else of_hidden

    def pooling_weights(self, batch: MicroBatch, how: str) -> torch.Tensor:
        """Return how much each position of this batch, or of this part of one, counts in the vector of its segment."""
        return pooling_weights(batch.segment_ids, batch.segments, how)

    def _without_logits(self, hidden: torch.Tensor, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        view = ModelView()
        head = partial(apply_head, head_of(self.causal_lm))
        if Need.POOLED in needs:
            view.pooled = self._pooled(hidden, batch)
        if Need.SCORES in needs:
            ends = self.pooling_weights(batch, "last")
            view.scores = pooled(hidden, batch.segment_ids, ends, batch.segments, head)
        if Need.VALUES in needs:
            view.values = _values(head_of(self.causal_lm), hidden, batch)
        return view

    def _pooled(self, hidden: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return pooled(hidden, batch.segment_ids, self.pooling_weights(batch, self.pooling), batch.segments)

    def inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return the arguments of the decoder; backends that shard sequences override it."""
        inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
        if batch.boundaries is None:
            if self.masks_padding and batch.attention_mask is not None:
                inputs["attention_mask"] = batch.attention_mask.long()  # as tokenizers give it
            if self._encoder is not None:
                return inputs | self._encoder.of(batch)
            if self._has_sample_rope or (batch.media is not None and batch.media.positions is not None):
                inputs["position_ids"] = self._positions(batch)
            return inputs
        inputs |= {"position_ids": self._positions(batch)} if self._encoder is None else self._encoder.of(batch)
        if self.attention.implementation in (VARLEN, BOTH_WAYS):
            device = batch.input_ids.device
            inputs["packing"] = packing_of(batch.boundaries.tolist(), batch.input_ids.shape[1], device)
            # A mask of four dimensions counts as ready-made: transformers builds none of its own, and ours isn't read.
            inputs["attention_mask"] = batch.weights.new_zeros((1, 1, 1, 1))
        elif self.attention.implementation in FLASHES:
            packing = packing_of(batch.boundaries.tolist(), batch.input_ids.shape[1])
            edges = edges_on(batch.input_ids.device, [0, *np.cumsum(packing.lengths).tolist()])
            inputs |= {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges}
            inputs |= {"max_length_q": packing.longest, "max_length_k": packing.longest}
        return inputs

    def _positions(self, batch: MicroBatch) -> torch.Tensor:
        """Return the positions of tokens; of a model with three for each, those in rows under the plain one."""
        if not self._has_rows_of_positions:
            return batch.position_ids
        # Given three rows alone, transformers would not see where one sample ends and the next one begins.
        rows = None if batch.media is None else batch.media.positions
        if rows is None:
            return batch.position_ids.expand(4, *batch.position_ids.shape)
        if batch.boundaries is None:  # no row holds more than one sample, whatever stands in its padding
            return rows
        return torch.cat([batch.position_ids[None], rows])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute as in evaluation, and nothing in FP8 or compiled: for a few tokens of shapes that come once."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        mixed = None if self._encoder is None else mixed_precision(self.model)
        half = mixed is not None or self.attention.implementation in FLASHES  # which has no fp32 arithmetic
        compiled = any(module._compiled_call_impl is not None for module in self.modules())
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        try:
            with eager, without_fp8(self), torch.autocast(self._device().type, mixed or torch.bfloat16, enabled=half):
                yield
        finally:
            for module, training in modes:
                module.training = training

    @property
    def comparable(self) -> Need:
        """Return the view by which one way of computing this model is compared with another."""
        return Need.TOKEN_LOGPS if self._unembeds else Need.POOLED

    def probe(self, lengths: Sequence[int]) -> MicroBatch:
        """Return samples of these lengths to check the model with, in the layout of the run."""
        samples = probe_samples(self.causal_lm, lengths)
        return collate(samples, flat=self.attention.flat, pad_to_multiple=8).to(self._device())

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def _far_agrees(self) -> bool:
        with torch.autocast("cpu", enabled=False):
            expected = own_numbers(self.causal_lm, FAR_PROBED, unembeds=self._unembeds)
            return self._layout_agrees(self.probe(FAR_PROBED), expected)

    @torch.no_grad()
    def _search_on(self, search: Search) -> bool:
        def alone(length: int) -> None:
            own_numbers(self.causal_lm, [length], unembeds=self._unembeds)

        def row(lengths: Sequence[int]) -> int:
            batch = self.probe(lengths)
            self._numbers(batch)
            return batch.input_ids.shape[1]

        with torch.autocast("cpu", enabled=False):
            found = search.next_round(alone, row)
        self.by_sample = search.modules
        return found

    def _layout_agrees(self, batch: MicroBatch, expected: list[torch.Tensor]) -> bool:
        try:
            numbers = self._numbers(batch)
        except (RuntimeError, TypeError, ValueError) as error:
            if not self.attention.flat or isinstance(error, OF_MACHINE):
                raise
            return False  # code that takes three rows of positions, say, and not that by which samples are told apart
        agree = self._agree(numbers, torch.cat(expected))
        return agree and (self._encoder is None or not self._encoder.has_head or self._scores_agree(batch))

    def _numbers(self, batch: MicroBatch) -> torch.Tensor:
        """Return what `own_numbers` does, of samples in one batch."""
        if self._unembeds:
            logps: torch.Tensor = self(batch, {Need.TOKEN_LOGPS}).token_logps
            return torch.cat([logps[batch.segment_ids == n][:-1] for n in range(batch.segments)])
        hidden = self._hidden(batch)
        return torch.cat([hidden[batch.segment_ids == n] for n in range(batch.segments)])

    def _scores_agree(self, batch: MicroBatch) -> bool:
        """Return whether the scores of an encoder are those of its own head, sample by sample."""
        scores = self(batch, {Need.SCORES}).scores
        samples = (batch.input_ids[batch.segment_ids == n][None] for n in range(batch.segments))
        return self._agree(scores, torch.cat([own_scores(self.causal_lm, input_ids=ids) for ids in samples]))

    def _agree(self, found: torch.Tensor, reference: torch.Tensor) -> bool:
        exact = reference.dtype == torch.float32 and not torch.is_autocast_enabled(self._device().type)
        tolerance = 1e-4 if exact else 0.15
        return bool(((found.float() - reference.float()).abs() <= tolerance * (1 + reference.float().abs())).all())


def _hidden_without_head(causal_lm: Any, **given: Any) -> torch.Tensor:
    """Return the decoder's output in a model with encoders and unembedding in one class, without a body between."""
    lines: list[torch.Tensor] = []

    def hear(_decoder: nn.Module, _given: Any, output: Any) -> None:
        lines.append(output.last_hidden_state)

    def give_nothing(_head: nn.Module, hidden: Any) -> Any:
        return (hidden[0][:, :0], *hidden[1:])

    hooks = [
        causal_lm.get_decoder().register_forward_hook(hear),
        causal_lm.get_output_embeddings().register_forward_pre_hook(give_nothing),
    ]
    try:
        causal_lm(**given)
    finally:
        for hook in hooks:
            hook.remove()
    return lines[-1]


def _values(head: Any, hidden: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """Return what a head says of every position with weight."""
    rows, columns = batch.weights.nonzero(as_tuple=True)
    values = apply_head(head, hidden[rows, columns])[:, 0]
    return values.new_zeros(batch.weights.shape).index_put((rows, columns), values)


def transform_of(config: Any) -> LogitTransform:
    """Return the architecture's transform of its head's output, as far as its configuration tells."""
    config = config.get_text_config()
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere; Falcon-H1
        scale *= getattr(config, name, None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))  # Gemma


def _is_matrix(head: nn.Module) -> bool:
    """Return whether calling the head is a product with its weight and nothing else."""
    hooks = head._forward_hooks or head._forward_pre_hooks
    return type(head) is nn.Linear and type(head.weight) in (nn.Parameter, torch.Tensor) and not hooks
