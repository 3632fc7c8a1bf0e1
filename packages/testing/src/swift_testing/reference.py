"""Training written down plainly: what backends are compared with.

One process, one sample at a time, no padding, no packing; plain torch, transformers and PEFT. It shares with swift
the samples of each step, the matrices that adapters start from, and nothing of how a step is made.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_scheduler,
)

from swift_testing.objectives import SCALE
from swift_testing.objectives import TEMPERATURE as OF_SIMILARITIES
from swift_testing.token_trial import ENTROPY, LEFT, RATIO, TEACHER, TEMPERATURE, candidates_of, values_of

Tokens = tuple[list[int], list[int]]
"""The prompt, and what is learned."""
Sample = tuple[Tokens, ...]
"""One conversation; or a chosen and a rejected one; or a question, and steps with a label of each."""


@dataclass
class Recipe:
    """How a run is to be made, in plain values."""

    model: Path
    samples: Sequence[Sample]
    batches: Sequence[Sequence[int]]
    """Indices of the samples that each step takes."""
    seen: Sequence[Mapping[str, torch.Tensor]] = ()
    """Of a model that reads images, what it gets of each sample besides its tokens."""
    held_out: Sequence[int] = ()
    evaluated_every: int = 0
    """Steps from one evaluation to the next; a run that is evaluated at all is once more at its end."""
    objective: str = "sft"
    beta: float = 0.1
    task: str = "causal_lm"
    labels: int = 1
    pooling: str = "last"
    ending: Sequence[int] = ()
    """What the chat template puts behind a response, which is not learned."""
    head_start: Callable[[str, tuple[int, ...]], torch.Tensor] | None = None
    """Where a weight of a new head starts, by its name and shape."""
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup: int = 0
    steps: int = 0
    """Length of the schedule."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float | None = None
    """Updates with momentum instead of by AdamW."""
    clip: float = 1.0
    """0 does not clip."""
    pad_token: bool = False
    """Whether the padding token's row of the embedding gets the gradient of inputs."""
    freeze: Sequence[str] = ()
    """Patterns of names of weights that are not trained."""
    in_turn: Callable[[Sequence[str], int], Sequence[str]] | None = None
    """`in_turn(names, step)`: those that are trained at a step, counted from 0, of weights in a layer rotation."""
    notes_changes: bool = False
    """Whether to say which weights each step has changed."""
    adapter: dict[str, Any] | None = None
    """Arguments of PEFT's LoraConfig."""
    adapter_start: Callable[[str, tuple[int, ...]], torch.Tensor | None] | None = None
    """Where the adapter matrix of a PEFT name starts."""
    loss: Callable[[Any, Recipe, Sequence[int]], torch.Tensor] | None = None
    """`loss(model, recipe, batch)`, divided by the weight of the batch, of an objective that is not the kit's."""
    prepare: Callable[[Any, Recipe], None] | None = None
    """`prepare(model, recipe)` changes the model before training, to one with another head for example."""


@dataclass
class Expected:
    """Results of the reference."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    """Before clipping."""
    rates: list[float] = field(default_factory=list)
    evaluations: dict[int, float] = field(default_factory=dict)
    """Step → mean loss on the held-out samples."""
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    tokens: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    """Sample → values of its tokens before the first step, of the first batch and the held-out samples."""
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """At the end, as transformers or PEFT itself writes them to disk."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """By name, the value after each step of what is logged besides."""
    changed: dict[int, list[str]] = field(default_factory=dict)
    """Step, counted from 1 → the names on disk of weights that it has changed."""


def tokens_of(tokenizer: Any, question: str, response: str) -> Tokens:
    """Return a conversation as ids, laid out by hand: the response and the token that ends it are learned."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer(prompt).input_ids, tokenizer(f"{response}<|im_end|>").input_ids


def samples_of(model: Path, rows: Sequence[dict[str, Any]]) -> list[Sample]:
    """Rows of messages, of a query with a chosen and a rejected response, or of steps with labels."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    samples: list[Sample] = []
    for row in rows:
        if "messages" in row:
            question, response = (message["content"] for message in row["messages"])
            samples.append((tokens_of(tokenizer, question, response),))
        elif "completions" in row:
            prompt = tokens_of(tokenizer, row["prompt"], "")[0]
            steps = [
                (tokenizer(f"{step}\n").input_ids, [int(label)])
                for step, label in zip(row["completions"], row["labels"], strict=True)
            ]
            samples.append(((prompt, []), *steps))
        else:
            responses = (row["response"], row["rejected_response"])
            samples.append(tuple(tokens_of(tokenizer, row["query"], response) for response in responses))
    return samples


def ending_of(model: Path) -> list[int]:
    """Return the tokens that the chat template puts behind a response."""
    ids: list[int] = AutoTokenizer.from_pretrained(model)("\n").input_ids
    return ids


def response_logp(
    model: torch.nn.Module, tokens: Tokens, seen: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """log p of the response given the prompt, and what the model sees besides, summed over its tokens."""
    return _response_logps(model, tokens, seen).sum()


def _response_logps(
    model: torch.nn.Module, tokens: Tokens, seen: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    prompt, response = tokens
    logits = model(input_ids=torch.tensor([prompt + response]), **(seen or {})).logits[0].float()
    predictions = logits[len(prompt) - 1 : -1]
    return -F.cross_entropy(predictions, torch.tensor(response), reduction="none")


def run_reference(recipe: Recipe) -> Expected:
    """Train from the first step to the last."""
    torch.manual_seed(0)
    base = _prepared(recipe)
    past = copy.deepcopy(base) if recipe.objective == "dpo" else None
    model: Any = base if recipe.adapter is None else _with_adapter(base, recipe)
    model.eval()  # nothing that is compared has dropout
    _freeze(model, recipe.freeze)
    expected = Expected(start=_written(model))
    ever = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    trained, due = list(ever.values()), sorted(ever)
    optimizer = _optimizer(recipe, trained)
    clock = torch.optim.SGD([torch.zeros(1)], lr=recipe.lr)
    schedule = get_scheduler(recipe.schedule, clock, recipe.warmup, recipe.steps)
    weights = expected.start
    if recipe.objective == "tokens":
        expected.tokens = _tokens_at_the_start(recipe, model)

    for step, batch in enumerate(recipe.batches, start=1):
        if recipe.in_turn is not None and (turn := sorted(recipe.in_turn(sorted(ever), step - 1))) != due:
            due, trained = turn, [ever[name] for name in turn]
            optimizer = _optimizer(recipe, trained)
        loss = _loss(recipe, model, past, batch)
        model.zero_grad()
        torch.autograd.backward(loss)
        if recipe.seen:
            _fill(trained)
        norm = math.sqrt(sum(float(each.grad.double().square().sum()) for each in trained if each.grad is not None))
        expected.losses.append(loss.item())
        expected.grad_norms.append(norm)
        expected.rates.append(schedule.get_last_lr()[0])
        if recipe.clip and norm > recipe.clip:
            _scale(trained, recipe.clip / norm)
        for group in optimizer.param_groups:
            group["lr"] = expected.rates[-1]
        optimizer.step()
        clock.step()
        schedule.step()
        if recipe.notes_changes:
            before, weights = weights, _written(model)
            expected.changed[step] = sorted(name for name in weights if not weights[name].equal(before[name]))
        if recipe.evaluated_every and (step % recipe.evaluated_every == 0 or step == recipe.steps):
            with torch.no_grad():
                expected.evaluations[step] = _loss(recipe, model, past, recipe.held_out).item()
    expected.weights = _written(model)
    return expected


@torch.no_grad()
def evaluate_adapter(recipe: Recipe, adapter: Mapping[str, np.ndarray]) -> float:
    """Return the loss on the held-out samples, without dropout, with an adapter by its names on disk."""
    from peft import set_peft_model_state_dict

    model = _with_adapter(_base(recipe), recipe)
    weights = {name: torch.from_numpy(value) for name, value in adapter.items()}
    assert not set_peft_model_state_dict(model, weights).unexpected_keys
    return _loss(recipe, model.eval(), None, recipe.held_out).item()


def _fill(trained: Sequence[torch.nn.Parameter]) -> None:
    """Give weights that nothing has reached a gradient of zero: a vision encoder decays in steps without images too."""
    for each in trained:
        if each.grad is None:
            each.grad = torch.zeros_like(each)


def _scale(trained: Sequence[torch.nn.Parameter], factor: float) -> None:
    for each in trained:
        if each.grad is not None:
            each.grad.mul_(factor)


@torch.no_grad()
def _tokens_at_the_start(recipe: Recipe, model: Any) -> dict[int, dict[str, list[float]]]:
    samples = {*recipe.batches[0], *recipe.held_out}
    return {index: _of_tokens(model, index, *recipe.samples[index])[1] for index in samples}


def _optimizer(recipe: Recipe, trained: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    if recipe.momentum is not None:
        return _Momentum(groups, lr=recipe.lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps)


def _freeze(model: torch.nn.Module, patterns: Sequence[str]) -> None:
    for name, parameter in model.named_parameters():
        if _is_frozen(name, patterns):
            parameter.requires_grad_(False)


def _is_frozen(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class _Momentum(torch.optim.SGD):
    """torch's momentum, with the decay of AdamW: next to the gradient and not in it."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure here
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0
        super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def _loss(recipe: Recipe, model: Any, past: Any, batch: Sequence[int]) -> torch.Tensor:
    if recipe.loss is not None:
        return recipe.loss(model, recipe, batch)
    samples = [recipe.samples[index] for index in batch]
    if recipe.objective == "dpo":
        return torch.stack([_dpo(recipe, model, past, *sample) for sample in samples]).mean()
    if recipe.objective == "prm":
        return torch.cat([_of_steps(model, sample) for sample in samples]).mean()
    if recipe.objective == "kit-negatives":
        return _negatives(recipe, model, samples)
    if recipe.task != "causal_lm":
        return torch.stack([_least_squares(recipe, model, tokens) for (tokens,) in samples]).sum() / len(samples)
    weight = sum(len(response) for ((_, response),) in samples)
    if recipe.objective == "tokens":
        return torch.stack([_of_tokens(model, index, *recipe.samples[index])[0] for index in batch]).sum() / weight
    if recipe.objective == "kit-plan":
        return torch.stack([_surprise(model, tokens) for (tokens,) in samples]).sum() / weight
    seen = [recipe.seen[index] for index in batch] if recipe.seen else [None] * len(samples)
    logps = [response_logp(model, tokens, each) for (tokens,), each in zip(samples, seen, strict=True)]
    return -torch.stack(logps).sum() / weight


def _prepared(recipe: Recipe) -> Any:
    base = _base(recipe)
    if recipe.pad_token:
        base.get_input_embeddings().padding_idx = None
    if recipe.prepare is not None:
        recipe.prepare(base, recipe)
    return base


def _base(recipe: Recipe) -> Any:
    settings: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if recipe.seen:
        return AutoModelForImageTextToText.from_pretrained(recipe.model, **settings)
    if recipe.task == "causal_lm":
        return AutoModelForCausalLM.from_pretrained(recipe.model, **settings)
    if recipe.task == "embedding":
        model = AutoModel.from_pretrained(recipe.model, **settings)
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # of encoders, for other vectors
        return model
    model, loaded = AutoModelForSequenceClassification.from_pretrained(
        recipe.model, num_labels=recipe.labels, output_loading_info=True, **settings
    )
    assert recipe.head_start is not None
    with torch.no_grad():
        for name in loaded["missing_keys"]:
            weight = model.get_parameter(name)
            weight.copy_(recipe.head_start(name, tuple(weight.shape)))
    return model


def _least_squares(recipe: Recipe, model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the kit's objectives (`swift_testing.objectives`) of one sample, as transformers' own models return it."""
    prompt, response = tokens
    whole = [*prompt, *response, *recipe.ending]
    length = len(whole)
    inputs = {"input_ids": torch.tensor([whole]), "use_cache": False}
    if recipe.task == "value":
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        values = base.score(base.model(**inputs).last_hidden_state)[0, :, 0]
        learned = slice(len(prompt) - 1, len(prompt) + len(response) - 1)
        return _squares((values - torch.arange(length) / SCALE)[learned])
    if recipe.task == "embedding":
        vector = _vector(recipe, model, whole)
        return _squares(vector - length / SCALE) / len(vector)
    targets = length / SCALE * torch.arange(1, recipe.labels + 1)
    return _squares(model(**inputs).logits[0] - targets)


def _of_steps(model: Any, sample: Sample) -> torch.Tensor:
    """Return the cross entropy of each step's label, by the head's score at the last token of the step."""
    ids = [token for tokens, _ in sample for token in tokens]
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    scores = base.score(base.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state)[0, :, 0]
    losses, end = [], 0
    for tokens, labels in sample:
        end += len(tokens)
        losses += [F.logsigmoid(scores[end - 1] if label else -scores[end - 1]).neg() for label in labels]
    return torch.stack(losses)


def _negatives(recipe: Recipe, model: Any, samples: Sequence[Sample]) -> torch.Tensor:
    """Return the kit's objective that compares all pairs of a batch, by a vector of each text."""
    sequences = [[*prompt, *response, *recipe.ending] for sample in samples for prompt, response in sample]
    vectors = F.normalize(torch.stack([_vector(recipe, model, tokens) for tokens in sequences]), dim=-1)
    similarities = vectors[0::2] @ vectors[1::2].T / OF_SIMILARITIES
    return F.cross_entropy(similarities, torch.arange(len(samples)))


def _vector(recipe: Recipe, model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Return the hidden states of a text, pooled."""
    hidden: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    return {"last": hidden[-1], "cls": hidden[0], "mean": hidden.mean(0)}[recipe.pooling]


def _squares(differences: torch.Tensor) -> torch.Tensor:
    return differences.square().sum()


def _dpo(recipe: Recipe, model: Any, past: Any, chosen: Tokens, rejected: Tokens) -> torch.Tensor:
    """-log σ(β (log ratio of the chosen - log ratio of the rejected))."""
    with torch.no_grad():
        reference = response_logp(past, chosen) - response_logp(past, rejected)
    ratio = response_logp(model, chosen) - response_logp(model, rejected) - reference
    return -F.logsigmoid(recipe.beta * ratio)


def _surprise(model: Any, tokens: Tokens) -> torch.Tensor:
    """Return the loss of the kit's objective with a plan, which asks the weights of this very step."""
    logps = _response_logps(model, tokens)
    before = logps.detach()
    return (before * (logps - before).exp()).sum()


def _of_tokens(model: Any, index: int, tokens: Tokens) -> tuple[torch.Tensor, dict[str, list[float]]]:
    """Return the loss of the kit's objective over tokens, summed over a response, and the values of all tokens."""
    prompt, response = tokens
    ids = prompt + response
    logits = model(input_ids=torch.tensor([ids])).logits[0].float() / TEMPERATURE
    everything = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    values = {name: torch.from_numpy(value)[len(prompt) :] for name, value in values_of(index, len(ids)).items()}
    candidates = torch.from_numpy(candidates_of(ids))[len(prompt) :]
    logps = everything.gather(-1, torch.tensor(response)[:, None])[:, 0]
    entropy = -(everything.exp() * everything).sum(-1)
    rest = everything.scatter(-1, candidates, -torch.inf).logsumexp(-1)
    distilled = (everything.gather(-1, candidates) * torch.tensor(TEACHER)).sum(-1) + LEFT * rest
    ratio = torch.exp(RATIO * (logps - values["old"]))
    loss = -(values["advantage"] * ratio + ENTROPY * entropy + distilled).sum()
    seen = {"logps": logps, "entropy": entropy, "rest": rest}
    per_token = {name: [0.0] * len(prompt) + value.tolist() for name, value in seen.items()}
    per_token["advantage"] = [0.0, *values_of(index, len(ids))["advantage"][1:].tolist()]
    return loss, per_token


def _with_adapter(base: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    # 'all-linear' of PEFT would put adapters on the stacked experts of a mixture too, and on a frozen vision encoder.
    head = base.get_output_embeddings() or getattr(base, "score", None)
    linear = {
        name
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module is not head
        and not _is_frozen(f"{name}.weight", recipe.freeze)
    }
    task = "CAUSAL_LM" if recipe.task == "causal_lm" else "SEQ_CLS"
    config = LoraConfig(task_type=task, target_modules=sorted(linear), **recipe.adapter or {})
    model = get_peft_model(base, config)
    assert recipe.adapter_start is not None
    start = {}
    for name, value in get_peft_model_state_dict(model, save_embedding_layers=False).items():
        first = recipe.adapter_start(name, tuple(value.shape))
        start[name] = value if first is None else first
    assert not set_peft_model_state_dict(model, start).unexpected_keys
    return model


def _written(model: Any) -> dict[str, torch.Tensor]:
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {name: tensor for file in Path(folder).glob("*.safetensors") for name, tensor in load_file(file).items()}
