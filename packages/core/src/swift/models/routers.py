"""Routers of mixtures of experts: found, watched in training, and balanced by losses or by biases.

Transformers notes for each architecture which modules make the logits of routers (`_can_record_outputs`). Hooks on
these see what a micro-batch is routed to. How an architecture computes scores, and whether it has a bias that corrects
the choice of experts, shows on a small copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder

from swift.contracts import POLICY, ModelView, Run
from swift.data.batch import MicroBatch
from swift.errors import ConfigError
from swift.models.router_losses import SCORES, AddUp, balance_loss, follow_load, load_of, z_loss
from swift.models.shrunk import shrunk_model
from swift.plugins.tuner import tuner_of

_CLOSE = 1e-4
"""Largest relative difference between the weights of a router and those that a scoring function gives."""
_FORCED = 1e4
"""Added to the bias of one expert, so that every token is routed to it."""


@dataclass(frozen=True)
class RouterOptions:
    """What a run does with routers."""

    aux_loss: float
    z_loss: float
    bias_rate: float
    log_load: bool

    @classmethod
    def of(cls, run: Run, model_config: Any) -> RouterOptions:
        """Return the options of a run, which are those of its policy; refuse what its tuner cannot keep."""
        config, train = run.config, run.config.train
        if run.role != POLICY:
            return cls(0.0, 0.0, 0.0, log_load=False)
        if getattr(model_config.get_text_config(), "output_router_logits", False) and not train.router_aux_loss:
            run.say(
                "output_router_logits in config.json has no effect: no balance loss is added. To add one type "
                "--train.router_aux_loss 0.001"
            )
        if train.router_bias_rate and tuner_of(config.tuner).adapter:
            raise ConfigError(
                "train.router_bias_rate changes a part of the model that adapters do not hold.",
                hint="Type --train.router_bias_rate 0, or --train_type full.",
            )
        return cls(train.router_aux_loss, train.router_z_loss, train.router_bias_rate, config.logging.expert_load)

    @property
    def requested(self) -> list[str]:
        """Return the options that need routers, as users type them."""
        values = {"aux_loss": self.aux_loss, "z_loss": self.z_loss, "bias_rate": self.bias_rate}
        return [f"train.router_{name} {value:g}" for name, value in values.items() if value]

    def refusal(self, reason: str) -> ConfigError:
        """Return the error for options that a model does not support."""
        flags = " ".join(f"--{each.split()[0]} 0" for each in self.requested)
        return ConfigError(f"{', '.join(self.requested)}: {reason}", hint=f"Type {flags}")


@dataclass(frozen=True)
class _Recorded:
    """A module whose output has the logits of a router."""

    name: str
    """In the transformers model."""
    module: nn.Module
    index: int
    """Of the logits in what the module returns."""

    def routed(self, output: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the logits [tokens, experts] and the chosen experts [tokens, k]; None where the output has others."""
        if not isinstance(output, tuple) or len(output) <= self.index:
            return None
        logits = output[self.index]
        tensors = [each for each in output if torch.is_tensor(each)]
        chosen = next((each for each in tensors if not each.is_floating_point() and each.ndim == 2), None)
        if not torch.is_tensor(logits) or logits.ndim != 2 or chosen is None or len(chosen) != len(logits):
            return None
        return logits, chosen


def recorded_routers(model: PreTrainedModel) -> list[_Recorded]:
    """Return the modules that transformers notes as making the logits of routers, in the order of the layers."""
    specs = [
        spec
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
        for spec in _specs((getattr(part, "_can_record_outputs", None) or {}).get("router_logits"))
    ]
    found: dict[str, _Recorded] = {}
    for name, module in model.named_modules():
        for spec in specs:
            inside = spec.layer_name is None or f".{spec.layer_name.strip('.')}." in f".{name}."
            if spec.target_class is not None and isinstance(module, spec.target_class) and inside:
                found.setdefault(name, _Recorded(name, module, spec.index))
    return list(found.values())


def _specs(noted: Any) -> list[OutputRecorder]:
    each = noted if isinstance(noted, list) else [] if noted is None else [noted]
    return [spec if isinstance(spec, OutputRecorder) else OutputRecorder(spec, index=1) for spec in each]


def router_modules(model: PreTrainedModel) -> list[str]:
    """Return the names of routers, for `tuner.freeze_router`; refuse models whose routers cannot be told."""
    routers = recorded_routers(model)
    # Some types note the whole layer, experts included.
    whole = any(isinstance(inner, nn.ModuleList) for each in routers for inner in each.module.modules())
    whole = whole or any(weight.ndim > 2 for each in routers for weight in each.module.parameters())
    if routers and not whole:
        return [each.name for each in routers]
    reason = "notes no module for its routers alone" if routers else "has no router that transformers notes"
    raise ConfigError(
        f"tuner.freeze_router: {type(model).__name__} {reason}.",
        hint="Remove it. To freeze weights by name type --train_type full --freeze_parameters PATTERN",
    )


@dataclass(frozen=True)
class RouterKind:
    """How the routers of an architecture work, as a small copy of it shows."""

    scoring: str | None
    """The scoring function whose values are the weights of the chosen experts; None for any other."""
    bias: str | None
    """The path from a router to the bias that is added to the scores for the choice alone; None where it has none."""


def kind_of(model: PreTrainedModel) -> RouterKind | None:
    """Look at the routers of a small copy of an architecture; None where they do not show logits and choices."""
    decoder = model.get_decoder()
    model_class = type(decoder if isinstance(decoder, PreTrainedModel) else model)
    small = shrunk_model(model_class, model.config)
    if small is None or not (routers := recorded_routers(small)):
        return None
    outputs = _outputs(small, routers)
    routed = [each.routed(output) for each, output in zip(routers, outputs, strict=True)]
    if not all(routed):
        return None
    shown = [(each, output) for each, output in zip(routed, outputs, strict=True) if each is not None]
    scoring = next((name for name in SCORES if all(_scores_by(name, *each) for each in shown)), None)
    return RouterKind(scoring, _bias_path(small, routers))


@torch.no_grad()
def _outputs(small: Any, routers: Sequence[_Recorded]) -> list[Any]:
    found: list[Any] = [None] * len(routers)

    def note(at: int) -> Callable[..., None]:
        return lambda _module, _inputs, output: found.__setitem__(at, output)

    hooks = [each.module.register_forward_hook(note(at)) for at, each in enumerate(routers)]
    try:
        small(input_ids=torch.arange(24)[None] * 7 % small.config.get_text_config().vocab_size, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _scores_by(name: str, routed: tuple[torch.Tensor, torch.Tensor], output: tuple[Any, ...]) -> bool:
    """Return whether the weights of chosen experts are scores by this function, or that but for a factor per token."""
    logits, chosen = routed
    scores = SCORES[name](logits.float()).gather(-1, chosen)
    for weights in output:
        if not torch.is_tensor(weights) or weights is logits or weights.shape != chosen.shape:
            continue
        if not weights.is_floating_point():
            continue
        factor = weights.float() / scores
        # Of one chosen expert, normalized weights tell nothing: the factor has to be the same for all tokens.
        usual = factor.mean(-1, keepdim=True) if chosen.shape[-1] > 1 else factor.mean()
        if bool(((factor - usual).abs() <= _CLOSE * usual.abs()).all()):
            return True
    return False


def _bias_path(small: Any, routers: Sequence[_Recorded]) -> str | None:
    """Return where the bias is that changes the choice of each router, and neither its logits nor anything before."""
    before = [each.routed(output) for each, output in zip(routers, _outputs(small, routers), strict=True)]
    for path in _candidates(small, routers[0]):
        biases = [getattr(*_owner_of(small, each.name, path), None) for each in routers]
        if all(_is_chosen(small, routers, at, bias, before) for at, bias in enumerate(biases)):
            return path
    return None


def _candidates(small: Any, router: _Recorded) -> Iterator[str]:
    """Yield the paths of untrained vectors with one number per expert, in the router or next to it."""
    parent = small.get_submodule(router.name.rpartition(".")[0])
    for prefix, module, recurse in (("", router.module, True), ("../", parent, False)):
        for name, tensor in [*module.named_buffers(recurse=recurse), *module.named_parameters(recurse=recurse)]:
            if tensor.is_floating_point() and not tensor.requires_grad:
                yield f"{prefix}{name}"


def _owner_of(model: nn.Module, router: str, path: str) -> tuple[nn.Module, str]:
    """Return the module that has the tensor at a path from a router, and its name there."""
    start = router.rpartition(".")[0] if path.startswith("../") else router
    owner, _, name = f"{start}.{path.removeprefix('../')}".rpartition(".")
    return model.get_submodule(owner), name


@torch.no_grad()
def _is_chosen(
    small: Any, routers: Sequence[_Recorded], at: int, bias: torch.Tensor | None, before: Sequence[Any]
) -> bool:
    """Return whether the last expert is chosen for all tokens, by the same logits, once its bias is large."""
    logits = before[at][0]
    if bias is None or bias.numel() != logits.shape[-1]:
        return False
    kept = bias.clone()
    bias.view(-1)[-1] += _FORCED
    try:
        after = routers[at].routed(_outputs(small, routers)[at])
    finally:
        bias.copy_(kept)
    if after is None:
        return False
    forced = bool((after[1] == logits.shape[-1] - 1).any(-1).all())
    return forced and torch.allclose(after[0], logits, rtol=1e-4, atol=1e-5)


class Routers:
    """The routers of a model in training."""

    def __init__(
        self,
        routers: Sequence[_Recorded],
        options: RouterOptions,
        kind: RouterKind | None,
        biases: Sequence[tuple[nn.Module, str]],
    ) -> None:
        self._routers = routers
        self._options = options
        self._kind = kind
        self._biases = biases
        self._seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] | None = None
        self._experts: set[int] = set()
        for at, each in enumerate(routers):
            each.module.register_forward_hook(self._hook(at, each))

    def _hook(self, at: int, router: _Recorded) -> Callable[..., None]:
        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            # None outside of a forward pass in training, such as in one that is repeated for its gradients. Nothing is
            # computed here: what is in a checkpointed layer would have to be computed again in the same way.
            if self._seen is not None and (routed := router.routed(output)) is not None:
                logits, chosen = routed
                self._experts.add(logits.shape[-1])
                kept = logits if self._options.aux_loss or self._options.z_loss else logits.new_empty(0)
                self._seen.setdefault(at, []).append((kept, chosen.detach()))

        return note

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, note what tokens are routed to."""
        self._seen = {}
        try:
            yield
        finally:
            self._seen = None

    def add_to(self, view: ModelView, batch: MicroBatch, add_up: AddUp | None) -> ModelView:
        """Return a view with the losses of routers and the load, of what was noted of the tokens of `batch`.

        `batch` may be a part of the tokens of its samples; `add_up` then adds a tensor up over all parts.
        """
        options = self._options
        if len(self._experts) > 1 and options.requested:
            raise options.refusal(f"routers have different numbers of experts: {sorted(self._experts)}.")
        if not self._seen or len(self._experts) > 1:
            return view
        routed = [(at, *each) for at, passes in self._seen.items() for each in passes if self._fits(at, each[1], batch)]
        if options.log_load or options.bias_rate:
            load = self._load([(at, chosen) for at, _, chosen in routed], batch)
            if add_up is not None:
                add_up(load)
            view = replace(view, expert_load=load)
        if options.aux_loss or options.z_loss:
            view = self._with_losses(view, [(logits, chosen.shape[-1]) for _, logits, chosen in routed], batch, add_up)
        return view

    def _load(self, routed: Sequence[tuple[int, torch.Tensor]], batch: MicroBatch) -> torch.Tensor:
        (experts,) = self._experts
        inside = batch.segment_ids >= 0
        load = inside.new_zeros((len(self._routers), experts), dtype=torch.float32)
        for at, chosen in routed:
            load[at] += load_of(chosen, inside, experts)
        return load

    def _with_losses(
        self, view: ModelView, routed: Sequence[tuple[torch.Tensor, int]], batch: MicroBatch, add_up: AddUp | None
    ) -> ModelView:
        """Return a view with the losses, the means over layers; `routed` are the logits and top-k of each router."""
        options = self._options
        terms: dict[str, list[torch.Tensor]] = {}
        if options.aux_loss:
            terms["router_aux_loss"] = [self._balance(*each, batch, add_up) for each in routed]
        if options.z_loss:
            terms["router_z_loss"] = [z_loss(logits, batch.segment_ids >= 0) for logits, _ in routed]
        means = {name: torch.stack(each).sum() / len(self._routers) for name, each in terms.items()}
        weights = {"router_aux_loss": options.aux_loss, "router_z_loss": options.z_loss}
        loss = torch.stack([weights[name] * each for name, each in means.items()]).sum()
        noted = torch.stack([each.detach() for each in means.values()])
        if add_up is not None:
            add_up(noted)
        return replace(view, router_loss=loss, **dict(zip(means, noted, strict=True)))

    def _balance(self, logits: torch.Tensor, top_k: int, batch: MicroBatch, add_up: AddUp | None) -> torch.Tensor:
        assert self._kind is not None
        assert self._kind.scoring is not None
        return balance_loss(logits, top_k, batch.segment_ids, batch.segments, scoring=self._kind.scoring, add_up=add_up)

    def _fits(self, at: int, chosen: torch.Tensor, batch: MicroBatch) -> bool:
        """Return whether a router was given the tokens of the micro-batch, each once; refuse options that need it."""
        fits = len(chosen) == batch.segment_ids.numel()
        if not fits and self._options.requested:
            name, tokens = self._routers[at].name, batch.segment_ids.numel()
            raise self._options.refusal(f"the router {name} was given {len(chosen)} tokens instead of {tokens}.")
        return fits

    def follow(self, load: torch.Tensor | None) -> None:
        """Let the biases of routers follow the load [layers, experts] of the global batch, where they are to do so."""
        if load is None or not self._options.bias_rate:
            return
        for (owner, name), each in zip(self._biases, load, strict=True):
            follow_load(getattr(owner, name), each, self._options.bias_rate)


def routers_of(run: Run, model: PreTrainedModel) -> Routers | None:
    """Return the routers of a model in training, hooks in place; None where nothing is wanted of them.

    Refuses losses and biases that the architecture does not support.
    """
    options, compiled = RouterOptions.of(run, model.config), run.config.train.compile
    routers = recorded_routers(model)
    if not options.requested:
        # Code that is compiled has no hooks.
        wanted = options.log_load and routers and not compiled
        return Routers(routers, options, None, []) if wanted else None
    name = type(model).__name__
    if compiled:
        raise options.refusal("routers cannot be seen in compiled layers (train.compile).")
    if not routers:
        raise options.refusal(f"{name} has no routers that transformers notes (`_can_record_outputs`).")
    kind = kind_of(model)
    if kind is None:
        raise options.refusal(f"the routers of {name} do not show logits and chosen experts.")
    if options.aux_loss and kind.scoring is None:
        raise options.refusal(f"the routers of {name} have a scoring function that swift does not know.")
    return Routers(routers, options, kind, _biases(model, routers, kind, options))


def _biases(
    model: PreTrainedModel, routers: Sequence[_Recorded], kind: RouterKind, options: RouterOptions
) -> list[tuple[nn.Module, str]]:
    """Return the module and the name of the bias of each router, where biases are to follow the load."""
    if not options.bias_rate:
        return []
    if kind.bias is None:
        raise options.refusal(
            f"the routers of {type(model).__name__} have no bias that corrects the choice of experts."
        )
    biases = [_owner_of(model, each.name, kind.bias) for each in routers]
    if any(isinstance(getattr(owner, name, None), nn.Parameter) for owner, name in biases):
        raise options.refusal(
            f"{type(model).__name__} keeps the bias of routers as a weight, which backends may shard."
        )
    return biases
