"""Runs a transformers model on a micro-batch and returns the views that objectives ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from swift.contracts import ModelView, Need
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift.errors import ModelError
from swift.models.attention import FLASH, VARLEN, AttentionChoice, attends_causally, edges_on, packing_of, use_attention
from swift.models.fp8 import without_fp8
from swift.models.heads import apply_head, head_of, value_head_of
from swift.models.logits import LogitTransform
from swift.models.logps import TokenViews, at_positions, token_logps, token_logps_of_module, tokens_per_chunk
from swift.models.logps_autograd import chunks
from swift.models.media import ProcessorReader
from swift.models.neftune import NeftuneNoise
from swift.models.pooling import pooled, pooled_scores, pooling_weights
from swift.models.sample_rope import use_sample_rope
from swift.models.shrunk import limits_of, shrunk_model

HEAD_NEEDS = frozenset(
    {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS}
)
"""Views that every causal language model has."""
PROBED = (7, 4)
"""Lengths of the samples that layout and head are checked with: few, as DTensor plans each operation anew for each."""
FAR_PROBED = (5, 6, 7, 3, 37, 9, 11)
"""Lengths with which a small copy is probed. Short samples begin beyond its limits, a long one ends there, and none
begins at a multiple of a limit.
"""
PROBE_LOGIT = 40.0
"""Size of the logits at which the head is compared, where a cap or a scale that was missed shows."""


class ViewModule(nn.Module):
    """A model whose forward pass returns a `ModelView`, so that DDP or FSDP can wrap all of it.

    The decoder runs to hidden states; the output head sees, in chunks, only the tokens that count. Both ways are
    compared with the model's own logits when this module is made (or by a call of `self_check` once weights are
    there, if they are on the meta device). A head that does something unknown is left to the model, all logits at
    once; a layout that changes the numbers is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        attention: AttentionChoice,
        say: Callable[[str], None] = print,
        checked: bool = True,
    ) -> None:
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
        self._neftune: NeftuneNoise | None = None
        self._say = say
        causal_lm = causal_lm_of(model)
        use_attention(causal_lm, attention)
        self._transform = transform_of(causal_lm.config)
        self._unembeds = causal_lm.get_output_embeddings() is not None
        self._has_head = head_of(causal_lm) is not None
        self._has_value_head = value_head_of(causal_lm) is not None
        self._has_rows_of_positions = hasattr(causal_lm.base_model, "get_rope_index")
        self._has_sample_rope = use_sample_rope(causal_lm)
        decoder = causal_lm.get_decoder()
        self._class = type(decoder if isinstance(decoder, PreTrainedModel) else causal_lm)
        """Of what is probed on a small copy; kept, as FSDP gives the modules classes of its own."""
        if checked and not any(parameter.is_meta for parameter in model.parameters()):
            self.self_check()

    def add_neftune(self, alpha: float) -> None:
        """Add NEFTune's noise to embeddings from now on, while training."""
        self._neftune = NeftuneNoise(causal_lm_of(self.model).get_input_embeddings(), alpha)

    def forward(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """Return the views of `batch`. Tokens without weight are not looked at: their values are zero."""
        if self._neftune is None:
            return self._views(batch, needs)
        with self._neftune.around(self._embedded(batch), self._whole_segments(batch)):
            return self._views(batch, needs)

    def _embedded(self, batch: MicroBatch) -> MicroBatch:
        """Return the tokens that are embedded: those of the batch, or of whole rows, of which it is a part."""
        return batch

    def _whole_segments(self, batch: MicroBatch) -> torch.Tensor:
        """Return the segment ids of whole rows, of which a process may have a part."""
        return batch.segment_ids

    def _views(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        if missing := set(needs) - self.provides():
            raise ModelError(f"This model cannot be viewed as {', '.join(sorted(missing))}.")
        causal_lm = causal_lm_of(self.model)
        if not self._unembeds:
            return self._without_logits(self._hidden(batch), batch, needs)
        positions = batch.learned()
        requested = _Requested.of(batch, positions, needs)
        hidden = None
        if self.own_logits:
            logits = (
                causal_lm(**self.inputs(batch), **self._of_media(batch)).logits.flatten(0, 1).index_select(0, positions)
            )
            views = requested.of_module(lambda piece: piece, logits, logits.shape[-1], LogitTransform())
        else:
            hidden = self._hidden(batch)
            views = self._through_head(hidden.flatten(0, 1).index_select(0, positions), requested)

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
        causal_lm = causal_lm_of(self.model)
        if batch.media is not None and self._unembeds and causal_lm.base_model is causal_lm:
            return _hidden_without_head(causal_lm, **self.inputs(batch), **self._of_media(batch))
        trunk = causal_lm.get_decoder() if batch.media is None else causal_lm.base_model
        hidden: torch.Tensor = trunk(**self.inputs(batch), **self._of_media(batch)).last_hidden_state
        return hidden

    def _of_media(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return what the encoders of the model are given, and which tokens stand for what where it asks for that."""
        if batch.media is None:
            return {}
        requested = inspect.signature(causal_lm_of(self.model).base_model.forward).parameters
        kinds = {
            name: batch.media.kinds.long() for name in ("mm_token_type_ids", "token_type_ids") if name in requested
        }
        return {**batch.media.inputs, **kinds}

    def logits(self, batch: MicroBatch) -> Iterator[torch.Tensor]:
        """Yield the logits of the tokens that count, in order, in fp32 and a chunk of tokens at a time."""
        causal_lm = causal_lm_of(self.model)
        positions = batch.learned()
        head, transform = causal_lm.get_output_embeddings(), self._transform
        if self.own_logits:
            hidden = causal_lm(**self.inputs(batch)).logits
            head, transform = nn.Identity(), LogitTransform()
        else:
            hidden = self._hidden(batch)
        hidden = hidden.flatten(0, 1).index_select(0, positions)
        size = tokens_per_chunk(causal_lm.config.get_text_config().vocab_size, hidden.device.type)
        for rows in chunks(len(positions), size):
            yield transform.at(batch.temperature)(head(hidden[rows]))

    def provides(self) -> frozenset[Need]:
        """Return which views this model has."""
        of_hidden = frozenset() if self.own_logits else frozenset({Need.POOLED})
        if self._unembeds:
            of_value_head = {Need.VALUES} if self._has_value_head and not self.own_logits else set()
            return HEAD_NEEDS | of_hidden | {Need.REFERENCE_LOGPS} | of_value_head
        return of_hidden | {Need.SCORES, Need.VALUES} if self._has_head else of_hidden

    def pooling_weights(self, batch: MicroBatch, how: str) -> torch.Tensor:
        """Return how much each position of this batch, or of this part of one, counts in the vector of its segment."""
        return pooling_weights(batch.segment_ids, batch.segments, how)

    def _without_logits(self, hidden: torch.Tensor, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        view = ModelView()
        head = partial(apply_head, head_of(causal_lm_of(self.model)))
        if Need.POOLED in needs:
            view.pooled = self._pooled(hidden, batch)
        if Need.SCORES in needs:
            ends = self.pooling_weights(batch, "last")
            view.scores = pooled_scores(hidden, batch.segment_ids, ends, batch.segments, head)
        if Need.VALUES in needs:
            view.values = _values(head_of(causal_lm_of(self.model)), hidden, batch)
        return view

    def _pooled(self, hidden: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        return pooled(hidden, batch.segment_ids, self.pooling_weights(batch, self.pooling), batch.segments)

    @torch.no_grad()
    def self_check(self) -> None:
        """Compare head and layout with the model's own logits on a few tokens, in evaluation mode."""
        with self.evaluating():
            self.check()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute as in evaluation, and nothing in FP8 or compiled: for a few tokens of shapes that come once."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        flash = self.attention.implementation == FLASH  # has no fp32 arithmetic
        compiled = any(module._compiled_call_impl is not None for module in self.modules())
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        try:
            with eager, without_fp8(self), torch.autocast(self._device().type, torch.bfloat16, enabled=flash):
                yield
        finally:
            for module, training in modes:
                module.training = training

    def check(self) -> None:
        """Do the checks of `self_check`, in evaluation mode; a view with its own computation checks that too."""
        if self._unembeds:
            self._check_head()
        self._check_layout()
        self._check_limits()
        if self.reader is not None:
            self.check_images(self.reader)

    @torch.no_grad()
    def check_images(self, reader: ProcessorReader) -> None:
        """Refuse a model that gives other numbers to samples with images in a batch than to each of them alone."""
        causal_lm = causal_lm_of(self.model)
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            samples = [reader.probe([(56, 56)]), reader.probe([(84, 56), (56, 84)])]
            alone = [reader.alone(sample).to(self._device()) for sample in samples]
            expected = []
            for batch in alone:
                whole = torch.ones_like(batch.input_ids)  # some find the positions of images by it
                given = {"input_ids": batch.input_ids, "attention_mask": whole, "use_cache": False}
                given |= self._of_media(batch)
                if not self._unembeds:
                    expected.append(causal_lm.base_model(**given).last_hidden_state[0])
                    continue
                logits = causal_lm(**given).logits[0, :-1]
                expected.append(
                    logits.float().log_softmax(-1).gather(-1, batch.targets[0, :-1, None])[:, 0].to(logits.dtype)
                )
            together = reader.collated(samples, flat=self.attention.flat).to(self._device())
            if not self._layout_agrees(together, expected):
                how = "packed" if self.attention.flat else "padded"
                raise ModelError(
                    f"{type(causal_lm).__name__} computes different results when samples with images are {how}.",
                    hint="Type --data.packing false --data.padding_free false"
                    if self.attention.flat
                    else "Type --train.micro_batch 1",
                )
        finally:
            for module, training in modes:
                module.training = training

    @property
    def comparable(self) -> Need:
        """Return the view by which one way of computing this model is compared with another."""
        return Need.TOKEN_LOGPS if self._unembeds else Need.POOLED

    def probe(self, lengths: Sequence[int]) -> MicroBatch:
        """Return samples of these lengths to check the model with, in the layout of the run."""
        ids = [_probe_ids(causal_lm_of(self.model), length) for length in lengths]
        samples = [Encoded(n, (_all_learned(row[0].numpy()),)) for n, row in enumerate(ids)]
        return collate(samples, flat=self.attention.flat, pad_to_multiple=8).to(self._device())

    def inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return the arguments of the decoder; backends that shard sequences override it."""
        inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
        if batch.boundaries is None:
            if self.masks_padding and batch.attention_mask is not None:
                inputs["attention_mask"] = batch.attention_mask.long()  # as tokenizers give it
            if self._has_sample_rope or (batch.media is not None and batch.media.positions is not None):
                inputs["position_ids"] = self._positions(batch)
            return inputs
        inputs["position_ids"] = self._positions(batch)
        if self.attention.implementation == VARLEN:
            device = batch.input_ids.device
            inputs["packing"] = packing_of(batch.boundaries.tolist(), batch.input_ids.shape[1], device)
            # A mask of four dimensions counts as ready-made: transformers builds none of its own, and ours isn't read.
            inputs["attention_mask"] = batch.weights.new_zeros((1, 1, 1, 1))
        elif self.attention.implementation == FLASH:
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
        own = batch.position_ids
        if batch.boundaries is None:  # no row holds more than one sample, whatever stands in its padding
            own = torch.arange(own.shape[1], device=own.device).expand_as(own)
        return torch.cat([own[None], rows])

    def _through_head(self, hidden: torch.Tensor, requested: _Requested) -> TokenViews:
        causal_lm = causal_lm_of(self.model)
        head = causal_lm.get_output_embeddings()
        if _is_matrix(head):
            return requested.of_matrix(head, hidden, self._transform)
        return requested.of_module(head, hidden, causal_lm.config.get_text_config().vocab_size, self._transform)

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _check_head(self) -> None:
        causal_lm = causal_lm_of(self.model)
        try:
            agrees = _head_agrees(causal_lm, self._transform, _probe_ids(causal_lm, max(PROBED)).to(self._device()))
        except (AttributeError, TypeError):  # no separate decoder and head, or not with the usual answers
            agrees = False
        if not agrees:
            self.own_logits = True
            self._say(
                f"{type(causal_lm).__name__} transforms its logits in a way that swift does not know. They are "
                "computed all at once by the model itself, which takes more memory."
            )

    def _check_layout(self) -> None:
        causal_lm = causal_lm_of(self.model)
        batch = self.probe(PROBED)
        reference = _own_logps if self._unembeds else _own_hidden
        expected = [reference(causal_lm, _probe_ids(causal_lm, length).to(self._device())) for length in PROBED]
        name = type(causal_lm).__name__
        causal = self._unembeds and attends_causally(causal_lm.config.get_text_config())
        if causal and not self._agree(expected[0][: len(expected[1])], expected[1]):
            raise ModelError(
                f"The probability of a token in {name} depends on the tokens after it. "
                "swift trains only causal language models."
            )
        if self._layout_agrees(batch, expected):
            return
        if self.attention.flat:
            raise ModelError(
                f"{name} mixes samples that are packed into one row.",
                hint="Turn it off: --data.packing false --data.padding_free false",
            )
        self.masks_padding = True
        if not self._layout_agrees(batch, expected):
            raise ModelError(
                f"{name} computes different results when samples are padded.", hint="Type --train.micro_batch 1"
            )

    def _check_limits(self) -> None:
        """Check the layout on a small copy beyond every window, chunk and scale, which this model has at thousands."""
        config = causal_lm_of(self.model).config
        limits = limits_of(config)
        if not limits:
            return
        name = type(causal_lm_of(self.model)).__name__
        layout = "packed" if self.attention.flat else "padded"
        named = ", ".join(f"{key} {value:,}" for key, value in limits.items())
        hint = "Turn it off: --data.packing false --data.padding_free false" if self.attention.flat else None
        small = shrunk_model(self._class, config)
        if small is None:
            if self.attention.flat:
                raise ModelError(
                    f"{name} cannot be checked with samples {layout} in rows longer than {named}.", hint=hint
                )
            return
        view = ViewModule(small, attention=_on_cpu(self.attention, config), checked=False)
        view._has_rows_of_positions, view.masks_padding = self._has_rows_of_positions, self.masks_padding
        view.own_logits = view._unembeds
        reference = _own_logps if view._unembeds else _own_hidden
        with torch.autocast("cpu", enabled=False):
            expected = [reference(small, _probe_ids(small, length)) for length in FAR_PROBED]
            agrees = view._layout_agrees(view.probe(FAR_PROBED), expected)
        if not agrees:
            raise ModelError(
                f"{name} computes different results when samples are {layout} in rows longer than {named}.",
                hint=hint or "Type --train.micro_batch 1",
            )

    def _layout_agrees(self, batch: MicroBatch, expected: list[torch.Tensor]) -> bool:
        if self._unembeds:
            logps = self(batch, {Need.TOKEN_LOGPS}).token_logps
            found = torch.cat([logps[batch.segment_ids == n][:-1] for n in range(batch.segments)])
        else:
            hidden = self._hidden(batch)
            found = torch.cat([hidden[batch.segment_ids == n] for n in range(batch.segments)])
        return self._agree(found, torch.cat(expected))

    def _agree(self, found: torch.Tensor, reference: torch.Tensor) -> bool:
        exact = reference.dtype == torch.float32 and not torch.is_autocast_enabled(self._device().type)
        tolerance = 1e-4 if exact else 0.15
        return bool(((found.float() - reference.float()).abs() <= tolerance * (1 + reference.float().abs())).all())


@dataclass(frozen=True)
class _Requested:
    """Requested values for the learned tokens of a micro-batch."""

    targets: torch.Tensor
    candidates: torch.Tensor | None
    temperature: float
    needs: Collection[Need]

    @classmethod
    def of(cls, batch: MicroBatch, positions: torch.Tensor, needs: Collection[Need]) -> _Requested:
        candidates = batch.candidates
        if candidates is not None:
            candidates = at_positions(candidates, positions)
        return cls(batch.targets.flatten().index_select(0, positions), candidates, batch.temperature, needs)

    def of_matrix(self, head: Any, hidden: torch.Tensor, transform: LogitTransform) -> TokenViews:
        return token_logps(
            hidden,
            head.weight,
            self.targets,
            bias=head.bias,
            transform=transform.at(self.temperature),
            candidates=self.candidates,
            want=self.needs,
        )

    def of_module(
        self, head: Callable[..., torch.Tensor], hidden: torch.Tensor, vocabulary: int, transform: LogitTransform
    ) -> TokenViews:
        return token_logps_of_module(
            head,
            hidden,
            self.targets,
            vocabulary=vocabulary,
            transform=transform.at(self.temperature),
            candidates=self.candidates,
            want=self.needs,
        )


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


def causal_lm_of(model: nn.Module) -> Any:
    """Return the transformers model, taken out of PEFT's wrapper."""
    get_base_model = getattr(model, "get_base_model", None)
    return model if get_base_model is None else get_base_model()


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


def _probe_ids(causal_lm: Any, length: int) -> torch.Tensor:
    """Return a few token ids, spread over the vocabulary."""
    vocabulary: int = causal_lm.get_input_embeddings().weight.shape[0]
    vocabulary = min(vocabulary, getattr(causal_lm.config.get_text_config(), "vocab_size", None) or vocabulary)
    return torch.arange(1, length + 1)[None] * 7919 % vocabulary


def _on_cpu(attention: AttentionChoice, config: Any) -> AttentionChoice:
    """Return the kernel that does in fp32 on the CPU what another one does elsewhere."""
    if attention.implementation in (VARLEN, "sdpa", "eager"):
        return attention
    caps = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return replace(attention, implementation="eager" if caps else VARLEN)


def _all_learned(ids: np.ndarray) -> Segment:
    weights = np.ones(len(ids), dtype=np.float32)
    weights[0] = 0
    return Segment(ids.astype(np.int32), weights)


def _own_logps(causal_lm: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = causal_lm(input_ids=ids, use_cache=False).logits[0, :-1]
    logps = logits.float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return logps.to(logits.dtype)  # the precision tells how closely others can agree


def _own_hidden(model: Any, ids: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
    return hidden


def _head_agrees(causal_lm: Any, transform: LogitTransform, ids: torch.Tensor) -> bool:
    decoder, head = causal_lm.get_decoder(), causal_lm.get_output_embeddings()
    if decoder is causal_lm or head is None:
        return False
    loud = None

    def make_loud(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        nonlocal loud
        hidden = output.last_hidden_state
        loud = output["last_hidden_state"] = hidden * (PROBE_LOGIT / head(hidden).abs().max().clamp(min=1e-3))
        return output

    hook = decoder.register_forward_hook(make_loud)
    try:
        own = causal_lm(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    tolerance = PROBE_LOGIT * (1e-5 if own.dtype == torch.float32 else 2e-2)
    return bool(((transform(head(loud)) - own.float()).abs() <= tolerance).all())
