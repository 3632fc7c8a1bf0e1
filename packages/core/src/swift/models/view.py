"""Checks, before training, that a view has the numbers of the model itself, in the layout of the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from swift.data.batch import MicroBatch
from swift.data.samples import Encoded
from swift.errors import ModelError
from swift.models.attention import (
    CHOOSING_LAYERS,
    FLASHES,
    VARLEN,
    AttentionChoice,
    attends_causally,
    choose_attention,
    mixing_layers,
    use_attention,
    with_mask,
)
from swift.models.media import ProcessorReader
from swift.models.neftune import NeftuneNoise
from swift.models.sample_by_sample import Search, call_by_sample
from swift.models.shrunk import limits_of, shrunk_model
from swift.models.unchecked_view import OF_MACHINE, UncheckedView
from swift.models.view_check import (
    FAR_PROBED,
    PROBED,
    head_agrees,
    of_targets,
    on_cpu,
    own_numbers,
)

_NOT_FLAT = "Turn it off: --data.packing false --data.padding_free false"
_ONE_ROW = "Type --train.micro_batch 1"
_MOST_ROUNDS = 8
"""Of looking for modules that mix samples: each finds those that the ones before had hidden."""


class ViewModule(UncheckedView):
    """A model whose forward pass returns a `ModelView`, so that DDP or FSDP can wrap all of it.

    It is compared with the model's own logits when it is made (or by a call of `self_check` once weights are there,
    if they are on the meta device). A head that does something unknown is left to the model, all logits at once; a
    layout that changes the numbers is refused.
    """

    separates = True
    """Whether modules that mix packed samples may be called sample by sample: not where a process has a part of one."""

    def __init__(self, model: nn.Module, *, attention: AttentionChoice, say: Callable[[str], None] = print) -> None:
        super().__init__(model, attention=attention)
        self._say = say
        self.rows_together = True
        """False where no micro-batch of the run has more than one sample."""
        self._mixes_rows = False
        """Whether images of one row change what is computed of another."""
        self._small_agrees: bool | None = None
        """Whether a small copy computes packed samples as each of them alone; None where there is no copy."""
        if attention.flat and self.separates:
            self._separate_samples()
        if not any(parameter.is_meta for parameter in model.parameters()):
            self.self_check()

    def small_copy(self, *, ways: int = 1) -> Any:
        """Return a small model of the same architecture, whose heads can be divided; None where none can be built."""
        return shrunk_model(self._class, self.causal_lm.config, ways=ways)

    def add_neftune(self, alpha: float) -> None:
        """Add NEFTune's noise to embeddings from now on, while training."""
        embedding = self.causal_lm.get_input_embeddings()
        if any(embedding in [*module.modules()] for module in self.by_sample):
            raise ModelError(
                f"{type(self.causal_lm).__name__} embeds packed samples one by one, and NEFTune's noise is that of a "
                "whole row.",
                hint=_NOT_FLAT,
            )
        self._neftune = NeftuneNoise(embedding, alpha)

    @torch.no_grad()
    def self_check(self) -> None:
        """Compare head and layout with the model's own logits on a few tokens, in evaluation mode."""
        with self.evaluating():
            self.check()

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
            samples = self._image_samples(reader)
            alone = [reader.alone(sample).to(self._device()) for sample in samples]
            expected = [self._own_numbers(batch) for batch in alone]
            self._check_causal(alone[0], expected[0])
            flat = self.attention.flat
            batch = reader.collated(samples, flat=flat).to(self._device())
            if self._layout_agrees(batch, expected):
                return
            if not flat and not self.masks_padding:
                # Without a mask, transformers takes positions that do not count up for those of packed samples.
                self.masks_padding = True
                if self._layout_agrees(batch, expected):
                    return
            if not flat and not self.rows_together:
                rows = [reader.collated([sample], flat=False).to(self._device()) for sample in samples]
                if all(self._layout_agrees(row, [own]) for row, own in zip(rows, expected, strict=True)):
                    self._mixes_rows = True
                    return
            raise self._mixing(flat)

    def _mixing(self, flat: bool) -> ModelError:
        return ModelError(
            f"{type(self.causal_lm).__name__} computes different results when samples with images are "
            f"{'packed' if flat else 'padded'}.",
            hint=_NOT_FLAT if flat else _ONE_ROW,
        )

    def _of_media(self, batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Refuse rows whose images would change each other, such as the two sequences of a pair."""
        if self._mixes_rows and batch.media is not None and int((batch.media.kinds > 0).any(1).sum()) > 1:
            raise self._mixing(flat=False)
        return super()._of_media(batch)

    def _check_causal(self, batch: MicroBatch, expected: torch.Tensor) -> None:
        """Refuse a model whose tokens see those after them where there is an image, by its own computation."""
        if not self._unembeds or batch.media is None:
            return
        ids, is_text = batch.input_ids.clone(), batch.media.kinds == 0
        ids[0, -1] = ids[is_text & (ids != ids[0, -1])][0]
        if not self._agree(self._own_numbers(replace(batch, input_ids=ids)), expected):
            raise ModelError(
                f"The probability of a token in {type(self.causal_lm).__name__} depends on the tokens after it where "
                "there are images. swift trains only causal language models."
            )

    def _image_samples(self, reader: ProcessorReader) -> list[Encoded]:
        # The first is no multiple of a patch, and smaller than another one: it is padded only in a batch.
        return [reader.probe([(90, 61)]), reader.probe([(84, 56), (56, 112)])]

    def _own_numbers(self, batch: MicroBatch) -> torch.Tensor:
        """Return what the model by itself makes of one sample with images."""
        model = self.causal_lm
        whole = torch.ones_like(batch.input_ids)  # some find the positions of images by it
        given = {"input_ids": batch.input_ids, "attention_mask": whole, "use_cache": False, **self._of_media(batch)}
        if not self._unembeds:
            hidden: torch.Tensor = model.base_model(**given).last_hidden_state[0]
            return hidden
        return of_targets(model(**given).logits[0, :-1], batch.targets[0, :-1])

    def _check_head(self) -> None:
        causal_lm = self.causal_lm
        try:
            agrees = head_agrees(causal_lm, self._transform)
        except (AttributeError, TypeError):  # no separate decoder and head, or not with the usual answers
            agrees = False
        if not agrees:
            self.own_logits = True
            self._say(
                f"{type(causal_lm).__name__} transforms its logits in a way that swift does not know. They are "
                "computed all at once by the model itself, which takes more memory."
            )

    def _check_layout(self) -> None:
        causal_lm = self.causal_lm
        name = type(causal_lm).__name__
        batch = self.probe(PROBED)
        try:
            expected = own_numbers(causal_lm, PROBED, unembeds=self._unembeds)
        except (IndexError, RuntimeError, ValueError) as error:  # Funnel halves a text until nothing is left
            if isinstance(error, OF_MACHINE) or not _is_whole(causal_lm):
                raise
            raise ModelError(f"{name} fails on a text of {min(PROBED)} tokens: {error}") from error
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
            raise ModelError(f"{name} computes different results when samples are padded.", hint=self._unpadded())

    def _check_limits(self) -> None:
        """Check the layout on a small copy beyond every window, chunk and scale, which this model has at thousands."""
        config = self.causal_lm.config
        limits = limits_of(config)
        if not limits:
            return
        name = type(self.causal_lm).__name__
        layout = "packed" if self.attention.flat else "padded"
        named = ", ".join(f"{key} {value:,}" for key, value in limits.items())
        if self._small_agrees is None and (small := self._small_view()) is not None:
            self._small_agrees = small._far_agrees()
        if self._small_agrees is None and self.attention.flat:
            raise ModelError(
                f"{name} cannot be checked with samples {layout} in rows longer than {named}.", hint=_NOT_FLAT
            )
        if self._small_agrees is False:
            raise ModelError(
                f"{name} computes different results when samples are {layout} in rows longer than {named}.",
                hint=_NOT_FLAT if self.attention.flat else self._unpadded(),
            )

    def _unpadded(self) -> str:
        """Return what to type for rows without padding; an encoder may have no attention for them."""
        try:
            choose_attention("auto", self.causal_lm.config, flat=True, device="cpu")
        except ModelError:
            return "Use another model."
        return "Type --data.padding_free true"

    def _small_view(self) -> UncheckedView | None:
        """Return a view of a small copy of the decoder, on the CPU; None where no copy can be built."""
        config, small = self.causal_lm.config, self.small_copy()
        if small is None:
            return None
        view = UncheckedView(small, attention=on_cpu(self.attention, config))
        view._has_rows_of_positions, view.masks_padding = self._has_rows_of_positions, self.masks_padding
        view.own_logits = view._unembeds
        view._ratio = math.inf  # so that the shortest samples are padded beyond every limit
        return view

    def _separate_samples(self) -> None:
        """Let modules that mix packed samples see one sample at a time: those of which a small copy needs it."""
        search = self._searched()
        without_mask = self.attention.implementation in (VARLEN, *FLASHES) and self.attention.reason != "requested"
        if not self._small_agrees and search is not None and without_mask:
            self.attention = with_mask(self.attention, self.causal_lm.config)
            use_attention(self.causal_lm, self.attention)
            search = self._searched()
        if search is not None and self._small_agrees and search.found:
            search.forget_inner()
            self.by_sample = call_by_sample(self.causal_lm.get_decoder(), search.found)
            reason = f"{self.attention.reason}; {', '.join(search.named())} sample by sample"
            self.attention = replace(self.attention, reason=reason)
        self._refuse_unproven_layers(search)

    def _refuse_unproven_layers(self, search: Search | None) -> None:
        """Refuse types of layers that are known to mix samples, and in which nothing has been found that does."""
        config = self.causal_lm.config.get_text_config()
        unproven = {*mixing_layers(config)}
        if search is not None and self._small_agrees:
            unproven -= search.types_of_layers() | CHOOSING_LAYERS
        if unproven:
            raise ModelError(
                f"{config.model_type} has {', '.join(sorted(unproven))} layers, and swift cannot keep packed samples "
                "separate in them.",
                hint=_NOT_FLAT,
            )

    def _searched(self) -> Search | None:
        """Return what has been found on a small copy, and note whether it computes packed samples right with it."""
        view = self._small_view()
        if view is None:
            return None
        search = Search(view.causal_lm.get_decoder(), FAR_PROBED)
        for _ in range(_MOST_ROUNDS):
            try:
                self._small_agrees = view._far_agrees()
                if self._small_agrees or not view._search_on(search):
                    break
            except Exception:  # whatever a model's own code raises when it is called in parts
                self._small_agrees = False
                break
        return search


def _is_whole(model: nn.Module) -> bool:
    """Return whether a process has all weights: a backend that shards says by itself what cannot be computed so."""
    return not any(isinstance(each, DTensor) or not each.numel() for each in model.parameters())
