"""The checks of a view: its head, its layout and its images give the numbers of the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from swift.contracts import Need
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift.errors import ModelError
from swift.models.attention import FLASH, VARLEN, AttentionChoice, attends_causally
from swift.models.fp8 import without_fp8
from swift.models.logits import LogitTransform
from swift.models.media import ProcessorReader
from swift.models.names import base_model
from swift.models.shrunk import limits_of, shrunk_model

PROBED = (7, 4)
"""Lengths of the samples that layout and head are checked with: few, as DTensor plans each operation anew for each."""
FAR_PROBED = (5, 6, 7, 3, 37, 9, 11)
"""Lengths with which a small copy is probed. Short samples begin beyond its limits, a long one ends there, and none
begins at a multiple of a limit.
"""
PROBE_LOGIT = 40.0
"""Size of the logits at which the head is compared, where a cap or a scale that was missed shows."""
_NOT_FLAT = "Turn it off: --data.packing false --data.padding_free false"
_ONE_ROW = "Type --train.micro_batch 1"


class CheckedView(nn.Module):
    """Base of `ViewModule`: what is compared before training. Subclasses that compute otherwise check more."""

    model: nn.Module
    attention: AttentionChoice
    own_logits: bool
    masks_padding: bool
    reader: ProcessorReader | None
    _say: Callable[[str], None]
    _transform: LogitTransform
    _unembeds: bool
    _has_rows_of_positions: bool
    _class: type[nn.Module]

    def _hidden(self, batch: MicroBatch) -> torch.Tensor:
        raise NotImplementedError

    def _of_media(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def _plain_view(self, model: nn.Module, attention: AttentionChoice) -> CheckedView:
        raise NotImplementedError

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
        with self.evaluating():
            model = base_model(self.model)
            samples = self._image_samples(reader)
            expected = [self._own_numbers(reader.alone(sample).to(self._device())) for sample in samples]
            flat = self.attention.flat
            if not self._layout_agrees(reader.collated(samples, flat=flat).to(self._device()), expected):
                raise ModelError(
                    f"{type(model).__name__} computes different results when samples with images are "
                    f"{'packed' if flat else 'padded'}.",
                    hint=_NOT_FLAT if flat else _ONE_ROW,
                )

    def _image_samples(self, reader: ProcessorReader) -> list[Encoded]:
        return [reader.probe([(56, 56)]), reader.probe([(84, 56), (56, 84)])]

    def _own_numbers(self, batch: MicroBatch) -> torch.Tensor:
        """Return what the model by itself makes of one sample with images."""
        model: Any = base_model(self.model)
        whole = torch.ones_like(batch.input_ids)  # some find the positions of images by it
        given = {"input_ids": batch.input_ids, "attention_mask": whole, "use_cache": False, **self._of_media(batch)}
        if not self._unembeds:
            hidden: torch.Tensor = model.base_model(**given).last_hidden_state[0]
            return hidden
        return _of_targets(model(**given).logits[0, :-1], batch.targets[0, :-1])

    @property
    def comparable(self) -> Need:
        """Return the view by which one way of computing this model is compared with another."""
        return Need.TOKEN_LOGPS if self._unembeds else Need.POOLED

    def probe(self, lengths: Sequence[int]) -> MicroBatch:
        """Return samples of these lengths to check the model with, in the layout of the run."""
        ids = [_probe_ids(base_model(self.model), length) for length in lengths]
        samples = [Encoded(n, (_all_learned(row[0].numpy()),)) for n, row in enumerate(ids)]
        return collate(samples, flat=self.attention.flat, pad_to_multiple=8).to(self._device())

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _check_head(self) -> None:
        causal_lm = base_model(self.model)
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
        causal_lm = base_model(self.model)
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
            raise ModelError(f"{name} mixes samples that are packed into one row.", hint=_NOT_FLAT)
        self.masks_padding = True
        if not self._layout_agrees(batch, expected):
            raise ModelError(f"{name} computes different results when samples are padded.", hint=_ONE_ROW)

    def _check_limits(self) -> None:
        """Check the layout on a small copy beyond every window, chunk and scale, which this model has at thousands."""
        config = base_model(self.model).config
        limits = limits_of(config)
        if not limits:
            return
        name = type(base_model(self.model)).__name__
        layout = "packed" if self.attention.flat else "padded"
        named = ", ".join(f"{key} {value:,}" for key, value in limits.items())
        small = shrunk_model(self._class, config)
        if small is None:
            if self.attention.flat:
                raise ModelError(
                    f"{name} cannot be checked with samples {layout} in rows longer than {named}.", hint=_NOT_FLAT
                )
            return
        view = self._plain_view(small, _on_cpu(self.attention, config))
        view._has_rows_of_positions, view.masks_padding = self._has_rows_of_positions, self.masks_padding
        view.own_logits = view._unembeds
        reference = _own_logps if view._unembeds else _own_hidden
        with torch.autocast("cpu", enabled=False):
            expected = [reference(small, _probe_ids(small, length)) for length in FAR_PROBED]
            agrees = view._layout_agrees(view.probe(FAR_PROBED), expected)
        if not agrees:
            raise ModelError(
                f"{name} computes different results when samples are {layout} in rows longer than {named}.",
                hint=_NOT_FLAT if self.attention.flat else _ONE_ROW,
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
    return _of_targets(logits, ids[0, 1:])


def _of_targets(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the targets' log-probabilities in the precision of the logits: it tells how closely others can agree."""
    return logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0].to(logits.dtype)


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
