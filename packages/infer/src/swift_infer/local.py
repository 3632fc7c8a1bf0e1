"""The engine `transformers`: a model in this process, with batches of similar length."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from swift.config.sections import DataSection, ModelSection
from swift.contracts import Completion, EngineRequest, ImagePrompt, Need, Sampling, Score, WeightStream
from swift.data.batch import MicroBatch, collate
from swift.data.media import MediaRef
from swift.data.samples import Encoded, Segment
from swift.errors import DataError, ModelError, UsageError, did_you_mean
from swift.models import (
    DTYPES,
    FLASH,
    FLASHES,
    AttentionChoice,
    MediaProcessor,
    ProcessorReader,
    ViewModule,
    attach_adapter,
    base_model,
    choose_attention,
    name_map,
    open_source,
    resolve_dtype,
    settings_of_folder,
    use_attention,
)
from swift.models.positions import check_text
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING
from swift_infer import by_generate, decoding
from swift_infer.decoding import Ending, Room
from swift_infer.growing_cache import GROUPED
from swift_infer.options import check_transformers_options
from swift_infer.sampling import Sampler

BATCH = 8
"""Sequences per batch by default."""
_SCORED = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT})


class LocalEngine:
    """Implements `swift.contracts.InferenceEngine`."""

    def __init__(self, request: EngineRequest) -> None:
        check_transformers_options(request.options)
        self._device = torch.device(device_of(request.device))
        source = open_source(_section(request), say=request.say)
        model: Any = source.build(dtype=dtype_of(request.dtype, self._device), device=str(self._device))
        if "attention" in request.options:
            use_attention(model, _attention(str(request.options["attention"]), model, self._device))
        if model.config._attn_implementation == "sdpa" and decoding.decodes(model):
            model.set_attn_implementation(GROUPED)
        self._ends = _end_tokens(model, request.end_tokens)
        self._model: Any = model if request.adapter is None else attach_adapter(model, request.adapter, trainable=False)
        self._model.eval()
        self._task, self._pooling = source.task, source.pooling
        self._source = source
        self._pixels = DataSection(max_pixels=request.max_pixels, min_pixels=request.min_pixels)
        self._longest = request.max_length
        self._batch = request.batch_size
        self._say = request.say

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield each completion when it is over, in batches of prompts of similar length."""
        for prompt in prompts:
            self._check_length(prompt, sampling)
        for indices in self.batches(prompts, sampling):
            batch = [prompts[index] for index in indices]
            sampler = Sampler(sampling, indices, batch, self._device)
            for row, completion in self._completions(batch, sampler, self._ending(sampling)):
                yield indices[row], completion

    def batches(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        """Return batches of indices of prompts: those of text only first, then those with images."""
        plain = [index for index, prompt in enumerate(prompts) if not media_of(prompt)]
        with_images = [index for index, prompt in enumerate(prompts) if media_of(prompt)]
        batches = [
            [plain[row] for row in batch] for batch in self._batches([prompts[index] for index in plain], sampling)
        ]
        seen = by_length([prompts[index] for index in with_images], self._batch or BATCH)
        return [*batches, *([with_images[row] for row in batch] for batch in seen)]

    def _completions(
        self, prompts: Sequence[Sequence[int]], sampler: Sampler, ending: Ending
    ) -> Iterator[tuple[int, Completion]]:
        """Yield the completions of a batch."""
        if self._decodes and not media_of(prompts[0]):
            return decoding.completions(self._decoder, prompts, sampler, ending)
        return by_generate.completions(self._decoder, prompts, sampler, ending, self._inputs(prompts))

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one completion as they are computed."""
        self._check_length(prompt, sampling)
        sampler = Sampler(sampling, [0], [prompt], self._device)
        ending = self._ending(sampling)
        if self._decodes and not media_of(prompt):
            yield from decoding.stream_tokens(self._decoder, prompt, sampler, ending)
        else:
            yield from by_generate.stream_tokens(self._decoder, prompt, sampler, ending, self._inputs([prompt]))

    @torch.no_grad()
    def score(self, prompts: Sequence[Sequence[int]], *, top: int = 0) -> Iterator[tuple[int, Score]]:
        """Score as in training: the output head sees tokens in chunks, so that logits are never all in memory."""
        for indices in by_length(prompts, self._batch or BATCH):
            samples = [Encoded(index, (_whole(prompts[index]),)) for index in indices]
            batch = self._collated(samples).to(self._device)
            if top:
                yield from zip(indices, _scores_with_top(self._view, batch, top), strict=True)
                continue
            view = self._view(batch, _SCORED)
            assert view.token_logps is not None
            assert view.token_correct is not None
            for row, index in enumerate(indices):
                count = len(prompts[index]) - 1
                likeliest = [value > 0.5 for value in view.token_correct[row, :count].tolist()]
                yield index, Score(view.token_logps[row, :count].tolist(), likeliest)

    @torch.no_grad()
    def outputs(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
        """Yield the scores of each prompt, or its vector, as training computes them."""
        need = Need.POOLED if self._task == EMBEDDING else Need.SCORES
        for indices in by_length(prompts, self._batch or BATCH):
            samples = [Encoded(index, (_whole(prompts[index]),)) for index in indices]
            view = self._view(self._collated(samples).to(self._device), {need})
            found = view.pooled if need is Need.POOLED else view.scores
            assert found is not None
            yield from zip(indices, found.float().tolist(), strict=True)

    @torch.no_grad()
    def update_weights(self, weights: WeightStream) -> None:
        """Copy each weight into the model as it arrives."""
        self._model = base_model_without_adapter(self._model)
        names = name_map(self._model)
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        tensors = {**parameters, **dict(self._model.named_buffers(remove_duplicate=False))}
        missing = dict.fromkeys(names.names())
        for name, tensor in names.held(weights):
            if name not in missing:
                state = "twice" if name in names.names() else "but the model has no such weight"
                raise ModelError(f"{name} was passed to the engine {state}.")
            owner, piece = names.owner(name)
            piece.view_of(tensors[owner].data).copy_(tensor)
            del missing[name]
        if missing:
            raise ModelError(
                f"{len(missing)} weights were not passed to the engine, {next(iter(missing))} first. The engine would "
                "mix old and new weights.",
                hint="Stream every weight of the model; swift.contracts.Run.send_weights does, and merges adapters.",
            )

    def weights(self) -> WeightStream:
        """Yield every weight as it is held, by the names and in the pieces that `update_weights` takes."""
        names = name_map(self._decoder)
        tensors = dict(self._decoder.named_parameters(remove_duplicate=False))
        tensors |= dict(self._decoder.named_buffers(remove_duplicate=False))
        held = {name: names.owner(name) for name in names.names()}
        return names.stored((name, piece.view_of(tensors[owner].data)) for name, (owner, piece) in held.items())

    def close(self) -> None:
        """Release the model."""
        self._model = None
        with suppress(AttributeError):
            del self._view
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def _decoder(self) -> Any:
        """Return transformers' own model, which is faster than PEFT's wrapper."""
        return self._model.get_base_model() if hasattr(self._model, "peft_config") else self._model

    @cached_property
    def _decodes(self) -> bool:
        return decoding.decodes(self._decoder)

    @property
    def media(self) -> frozenset[str]:
        """Kinds of media that prompts may hold besides text."""
        return frozenset() if self._source.processor is None else frozenset(self._reads.placeholders)

    def _collated(self, samples: Sequence[Encoded]) -> MicroBatch:
        with_media = any(segment.media for each in samples for segment in each.segments)
        return self._reader.collated(samples, flat=False) if with_media else collate(samples, flat=False)

    @cached_property
    def _reader(self) -> ProcessorReader:
        return ProcessorReader.of(self._source, self._reads)

    @cached_property
    def _reads(self) -> MediaProcessor:
        return MediaProcessor(self._source.processor, self._pixels)

    def _inputs(self, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return the images of prompts as the model takes them, if there are any."""
        if not media_of(prompts[0]):
            return {}
        taken = inspect.signature(self._decoder.forward).parameters
        made = self._reader.of_prompts(prompts)
        return {name: tensor for name, tensor in made.items() if name != "mm_token_type_ids" or name in taken}

    @cached_property
    def _room(self) -> Room:
        return Room(self._decoder)

    def _batches(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[list[int]]:
        if self._decodes and self._batch is None:
            return self._room.batches(prompts, sampling.max_new_tokens)
        return by_length(prompts, self._batch or BATCH)

    def _ending(self, sampling: Sampling) -> Ending:
        return Ending(sampling, frozenset(self._ends))

    def _check_length(self, prompt: Sequence[int], sampling: Sampling) -> None:
        if not prompt:
            raise DataError("A prompt has no tokens.", hint="Remove the empty prompt, or give it some text.")
        if self._longest is not None and len(prompt) + sampling.max_new_tokens > self._longest:
            raise DataError(
                f"A prompt of {len(prompt)} tokens and a completion of up to {sampling.max_new_tokens} exceed the "
                f"maximum length of {self._longest}.",
                hint="Raise --max_length, or lower --max_new_tokens.",
            )
        check_text(len(prompt), self._model.config, str(self._source.folder), "A prompt")

    @cached_property
    def _view(self) -> ViewModule:
        attention = choose_attention("auto", self._model.config, flat=False, device=self._device.type)
        if attention.implementation == "sdpa" and self._decodes:
            attention = replace(attention, implementation=GROUPED)  # scoring must not change sampling
        view = ViewModule(self._model, attention=attention, say=self._say)
        view.pooling = self._pooling
        return view


def base_model_without_adapter(model: Any) -> Any:
    """Return the transformers model without PEFT's adapters."""
    return model.unload() if hasattr(model, "peft_config") else base_model(model)


def by_length(prompts: Sequence[Sized], batch: int) -> Iterator[list[int]]:
    """Yield indices of prompts, in batches of similar length."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), batch):
        yield order[start : start + batch]


def _section(request: EngineRequest) -> ModelSection:
    """Return the model section of a folder, with the pooling of an embedding model."""
    settings = {} if request.task == CAUSAL_LM else {**settings_of_folder(request.model), "task": request.task}
    return ModelSection(path=str(request.model), trust_remote_code=request.trust_remote_code, **settings)


def media_of(prompt: Sized) -> tuple[MediaRef, ...]:
    """Return the images of a prompt."""
    return prompt.media if isinstance(prompt, ImagePrompt) else ()


def _whole(prompt: Sequence[int]) -> Segment:
    weights = np.ones(len(prompt), dtype=np.float32)
    weights[0] = 0
    return Segment(np.array(prompt, dtype=np.int32), weights, media=media_of(prompt))


def _scores_with_top(view: ViewModule, batch: MicroBatch, top: int) -> Iterator[Score]:
    """Yield the score of each segment of a padded batch, with the `top` most likely tokens at each position.

    If `top` is at least the size of the vocabulary, they are all tokens in order of their ids.
    """
    targets = batch.targets.flatten()[batch.weights.flatten().nonzero()[:, 0]]
    counts = (batch.weights > 0).sum(-1).tolist()
    own, likeliest, ids, logps = [], [], [], []
    start, vocabulary = 0, 0
    for logits in view.logits(batch):
        every = logits.log_softmax(-1)
        here = targets[start : start + len(every)]
        start, vocabulary = start + len(every), every.shape[-1]
        own.append(every.gather(-1, here[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == here)
        if top < vocabulary:
            best = every.topk(top, dim=-1)
            ids.append(best.indices.to(torch.int32))
        logps.append(best.values if top < vocabulary else every)
    of_each = [torch.split(_joined(each), counts) for each in (own, likeliest, logps)]
    if ids:
        choices = [each.numpy() for each in torch.split(_joined(ids), counts)]
    else:  # unsorted, as a view of one row
        choices = [np.broadcast_to(np.arange(vocabulary, dtype=np.int32), (count, vocabulary)) for count in counts]
    for values, hits, chosen, logprobs in zip(*of_each[:2], choices, of_each[2], strict=True):
        yield Score(values.tolist(), hits.tolist(), chosen, logprobs.numpy())


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts))).cpu()


def device_of(requested: str | None) -> str:
    """Return the device to load the model on: the requested one, else a GPU if there is one."""
    if requested is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(requested).type
    except RuntimeError:
        raise UsageError(f"Invalid device {requested!r}.", hint="Valid devices: cpu, cuda, cuda:1, ...") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {requested} needs a GPU, but none is available.", hint="Remove it to use the CPU.")
    return requested


def _attention(requested: str, model: Any, device: torch.device) -> AttentionChoice:
    name = FLASH if requested in ("flash_attn", "flash_attn_2", "flash") else requested
    known = ("auto", *FLASHES, "sdpa", "eager")
    if name not in known:
        raise UsageError(
            f"Invalid attention {requested!r}.{did_you_mean(requested, known)}",
            hint=f"Valid values: {', '.join(known)}.",
        )
    return choose_attention(name, model.config, flat=False, device=device.type, dtype=model.dtype)


def dtype_of(requested: str, device: torch.device) -> torch.dtype:
    """Return the dtype to load a model in; raise `UsageError` if it is invalid."""
    if requested not in ("auto", *DTYPES):
        raise UsageError(
            f"Invalid dtype {requested!r}.{did_you_mean(requested, DTYPES)}",
            hint=f"Valid values: auto, {', '.join(DTYPES)}.",
        )
    return DTYPES[resolve_dtype(requested, device)[0]]


def _end_tokens(model: Any, given: Sequence[int]) -> list[int]:
    """Return the end tokens of caller and generation config, whose other defaults are then reset."""
    from transformers import GenerationConfig

    if getattr(model, "generation_config", None) is None:  # not a text model
        return sorted(given)
    configured = getattr(model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    model.generation_config = GenerationConfig()
    return sorted({*given, *(token for token in listed if token is not None)})
