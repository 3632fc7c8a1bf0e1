"""Memory of a training step that is computed without values: what a layer keeps, and what it takes for a moment.

The model, its tuner, its recomputing and the loss by chunks are those that a run on transformers' modules builds. Its
tensors have shapes and no memory (torch's `FakeTensorMode`); whenever one is made or given up, bytes are counted. One
block and two blocks are passed through: what the second adds is a layer's. Imports torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swift.contracts import Topology
from swift.errors import ModelError
from swift.planning import CAUSAL_LM, PlannedBackend
from swift.toolkit import (
    ViewModule,
    build_view,
    choose_attention,
    class_of_task,
    decoder_blocks,
    token_logps,
    tokens_per_chunk,
    transform_of,
)
from swift_plan.compiled import kept_bytes
from swift_plan.memory import LayerMemory
from swift_plan.workload import adapted_experts

_CHUNKS = 8
"""Chunks of the loss that are traced at most."""
_aten = torch.ops.aten


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own class has no types
    """Counts the bytes of all tensors that operations make, for as long as something holds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.now, self.peak = 0, 0
        self._sizes: dict[int, int] = {}
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._weights: set[int] = set()

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Count a tensor no more: a weight, or the gradient of one."""
        key = tensor.untyped_storage()._cdata
        self.now -= self._sizes.get(key, 0)
        self._sizes[key] = 0
        if key not in self._held:
            self._hold(tensor.untyped_storage(), 0)

    def weight(self, tensor: torch.Tensor) -> None:
        """Count neither a weight nor copies of it in another precision, which belong to the backend's own count."""
        self.leave_out(tensor)
        self._weights.add(tensor.untyped_storage()._cdata)

    def restart(self) -> int:
        """Begin a new peak from what there is now, and return that."""
        self.peak = self.now
        return self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and count what it makes."""
        kind = func.overloadpacket
        if kind is _aten._local_scalar_dense:
            return 1  # of what values decide, what is usual
        made = func(*args, **(kwargs or {}))
        cast = kind is _aten._to_copy and args[0].untyped_storage()._cdata in self._weights
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage(), of_weight=cast)
        return made

    def _note(self, storage: torch.UntypedStorage, *, of_weight: bool) -> None:
        if storage._cdata in self._held:
            return
        size = 0 if of_weight else storage.nbytes()
        self._hold(storage, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _hold(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata

        def gone(_: Any) -> None:
            self._held.pop(key, None)
            self._weights.discard(key)
            self.now -= self._sizes.pop(key, 0)

        self._sizes[key] = size
        self._held[key] = weakref.ref(storage, gone)


class _Source:
    """A model of sizes alone, as `swift.contracts.ModelSource` gives it to who builds it."""

    def __init__(self, config: Any, task: str) -> None:
        self.config, self.task = config, task

    def build(self, *, dtype: torch.dtype, device: str = "cpu", weights: bool = True) -> Any:
        """Return the module without weights."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            if self.task == CAUSAL_LM:
                return AutoModelForCausalLM.from_config(self.config, dtype=dtype)
            return class_of_task(self.config, self.task)._from_config(self.config, dtype=dtype)

    def names(self) -> list[str]:
        """Return nothing: there are no files."""
        return []


class Trace:
    """One run's blocks and loss, traced for rows of one length; every answer is computed once."""

    def __init__(
        self, backend: PlannedBackend, config: Mapping[str, Any], *, length: int, compute_bytes: float, on_cpu: bool
    ) -> None:
        self._backend, self._length, self._on_cpu = backend, length, on_cpu
        self._text = text_config(config)
        self._compute = torch.float32 if compute_bytes == 4 else torch.bfloat16
        self._adapted = backend.trained_values(1, 1) is not None
        self._adapts_experts = bool(adapted_experts(backend.tuner_options))
        self._known: dict[Any, Any] = {}

    @classmethod
    def begun(
        cls, backend: PlannedBackend, config: Mapping[str, Any], *, length: int, compute_bytes: float, on_cpu: bool
    ) -> Trace:
        """Return a trace whose layers have been passed through; `ModelError` where that cannot be done."""
        try:
            trace = cls(backend, config, length=length, compute_bytes=compute_bytes, on_cpu=on_cpu)
            trace.layer(recompute=True)
        except Exception as error:  # a model's own code, which may ask for values that are not there
            first = str(error).partition("\n")[0]
            raise ModelError(
                f"Cannot trace a step of this model: {type(error).__name__}: {first}", hint="Use --level 0."
            ) from error
        return trace

    def layer(self, *, recompute: bool) -> LayerMemory:
        """Return what a layer keeps and takes, in bytes a token."""
        found = self._known.get(recompute)
        if found is None:
            (one, _), (two, most) = (self.passed(blocks, self._length, recompute=recompute) for blocks in (1, 2))
            half, most_of_half = self.passed(2, max(1, self._length // 2), recompute=recompute)
            held = 0.0
            if self._adapts_experts and not recompute:
                # Of two blocks: what does not grow with the tokens.
                grown = (two - half) / (self._length - max(1, self._length // 2) or 1)
                held = max(0.0, two - grown * self._length) / 2
            kept = (two - one - held) / self._length
            ends = max(0.0, (one - held) / self._length - kept)
            if self._backend.config.train.compile and not recompute:
                kept = self._kept_compiled()
            # What does not grow with the tokens is gradients of single weights.
            grows = ((most - two) - (most_of_half - half)) / (self._length - max(1, self._length // 2) or 1)
            found = self._known[recompute] = LayerMemory(
                kept=kept,
                transient=max(0.0, grows),
                fixed=max(0.0, most - two - grows * self._length),
                ends=ends,
                whole=self.layer(recompute=False).kept if recompute else kept,
                held=held,
            )
        return found

    def _kept_compiled(self) -> float:
        """Return what a compiled layer keeps, in bytes a token: two lengths leave copies of weights out."""
        lengths = (self._length, max(1, self._length // 2))
        longer, shorter = (self._kept_bytes(length) for length in lengths)
        return (longer - shorter) / (lengths[0] - lengths[1] or 1)

    def _kept_bytes(self, length: int) -> int:
        view = self._build(2, recompute=False)
        block = decoder_blocks(view.model)[-1]  # of the first one nobody asks for the gradient of its input
        given: list[Any] = []
        block.register_forward_pre_hook(lambda _, inputs, named: given.append((inputs, named)), with_kwargs=True)
        with _as_computed(), FakeTensorMode(allow_non_fake_inputs=True), self._arithmetic():
            _without_values(view)
            with LiveBytes():  # for values that decide
                self._states(view, torch.zeros(1, length, dtype=torch.long))
            return kept_bytes(block, *given[0])

    def _states(self, view: ViewModule, ids: torch.Tensor) -> torch.Tensor:
        with self._arithmetic():
            states: torch.Tensor = view.causal_lm.get_decoder()(input_ids=ids, use_cache=False)[0]
        return states

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast("cpu", self._compute, enabled=self._compute is not torch.float32)

    def passed(self, blocks: int, length: int, *, recompute: bool) -> tuple[int, int]:
        """Pass one row through so many blocks, forward and backward, and return bytes beside weights' and gradients'.

        The first are there when the backward pass reaches the last block, the second at most until it leaves it.
        """
        live = LiveBytes()  # alone: torch's FlopCounterMode beside it keeps a block's tensors until all are done
        marks: list[int] = []
        view = self._build(blocks, recompute=recompute)
        with _as_computed(), FakeTensorMode(allow_non_fake_inputs=True):
            _without_values(view)
            ids = torch.zeros(1, length, dtype=torch.long)
            trained: list[Any] = [each for each in view.parameters() if each.requires_grad]
            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(lambda each: live.leave_out(each.grad))
            last = decoder_blocks(view.model)[-1]
            last.register_forward_pre_hook(_left(live, marks), with_kwargs=True)
            last.register_forward_hook(_arrived(live, marks))
            with live:
                for tensor in (*view.parameters(), *view.buffers(), ids):
                    live.weight(tensor)
                torch.autograd.backward(self._states(view, ids).sum())
        kept, most = (*marks, live.peak)[:2]
        return kept, most

    def loss(self, tokens: int, *, cut: int = 1) -> float:
        """Return what the loss takes beside hidden states and weights, where `cut` processes share the head."""
        vocabulary = -(-int(self._text.vocab_size) // cut)
        chunk = None if self._on_cpu else tokens_per_chunk(vocabulary, "cuda")
        few = _CHUNKS * (chunk or tokens)
        if tokens <= few:
            return self._loss_of(tokens, vocabulary, chunk)
        # From there on each token adds the same: its chunk takes the place of another's.
        most, half = (self._loss_of(each, vocabulary, chunk) for each in (few, few // 2))
        return most + (tokens - few) * (most - half) / (few - few // 2)

    def _loss_of(self, tokens: int, vocabulary: int, chunk: int | None) -> float:
        found = self._known.get((tokens, vocabulary))
        if found is None:
            found = self._known[tokens, vocabulary] = self._loss(tokens, vocabulary, chunk)
        return float(found)

    def _loss(self, tokens: int, vocabulary: int, chunk: int | None) -> int:
        live = LiveBytes()
        stored = self._compute if self._adapted else torch.float32
        with FakeTensorMode():
            states = torch.empty(tokens, int(self._text.hidden_size), requires_grad=True)
            weight = torch.empty(vocabulary, int(self._text.hidden_size), dtype=stored, requires_grad=not self._adapted)
            targets = torch.zeros(tokens, dtype=torch.long)
            with live:
                for each in (states, weight, targets):
                    live.weight(each)
                with self._arithmetic():
                    views = token_logps(states, weight, targets, transform=transform_of(self._text), chunk_tokens=chunk)
                torch.autograd.backward(views.logps.sum())
        return live.peak

    def _build(self, blocks: int, *, recompute: bool) -> ViewModule:
        run = self._backend.run({}, 1, gradient_checkpointing=recompute, compile=False)
        tuner = run.config.tuner.model_copy(update={"quantize": "none"})  # keeps the same for the backward pass
        model = run.config.model.model_copy(update={"dtype": str(self._compute).rpartition(".")[2]})
        update: dict[str, Any] = {"tuner": tuner, "model": model}
        if (
            getattr(run.config.backend, "fp8", "none") != "none"
        ):  # what is rounded for products is kept as it is, at most
            update["backend"] = run.config.backend.model_copy(update={"fp8": "none"})
        planned = replace(run, config=run.config.model_copy(update=update)).opened(Topology(run.world, 0, 1))
        source: Any = _Source(cut_config(self._text, blocks), run.config.model.task)
        attention = choose_attention("auto", source.config, flat=False, device="cpu", dtype=self._compute)
        return build_view(planned.prepared(0, lambda _: 0.0), source, weights=False, attention=attention).train()


@contextmanager
def _as_computed() -> Iterator[None]:
    """Have transformers choose masks as it does for tensors with values: without any for rows that are not padded."""
    from transformers import masking_utils

    before = masking_utils.is_tracing
    masking_utils.is_tracing = lambda _=None: False
    try:
        yield
    finally:
        masking_utils.is_tracing = before


def _without_values(model: torch.nn.Module) -> None:
    """Give a model weights and buffers of the mode that is on, those that were shared still shared."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
                own[name] = made[id(tensor)]


def _arrived(live: LiveBytes, marks: list[int]) -> Any:
    """Return a hook that notes what is there when the gradient of a block's output arrives."""

    def after(module: Any, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        if not marks:  # a layer that is computed again would note it again
            states.register_hook(lambda _: None if marks else marks.append(live.restart()))

    return after


def _left(live: LiveBytes, marks: list[int]) -> Any:
    """Return a hook that notes the most there was when the gradient of a block's input has been computed."""

    def before(module: Any, inputs: Any, named: Any) -> None:
        states = inputs[0] if inputs else named["hidden_states"]
        if states.requires_grad and not marks:
            states.register_hook(lambda _: marks.append(live.peak) if len(marks) == 1 else None)

    return before


def text_config(config: Mapping[str, Any]) -> Any:
    """Return transformers' configuration of the text part of a model."""
    from transformers import AutoConfig

    whole = AutoConfig.for_model(**config)
    return whole.get_text_config()


def cut_config(text: Any, blocks: int) -> Any:
    """Return the configuration of a model with so many of the blocks that this one has most of."""
    cut = deepcopy(text)
    for name in ("num_hidden_layers", "n_layer", "n_layers"):
        if hasattr(cut, name):
            setattr(cut, name, blocks)
    if getattr(cut, "layer_types", None):
        cut.layer_types = list(cut.layer_types[-blocks:])
    if getattr(cut, "first_k_dense_replace", None):
        cut.first_k_dense_replace = 0
    return cut
