"""Chunked log-probabilities against plain torch."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiny_models import Watch
from torch.nn import functional as F

from swift.contracts import Need
from swift.data.batch import Batch
from swift.data.samples import Encoded, Segment
from swift.models.logits import LogitTransform, VocabularyShard
from swift.models.logps import at_positions, token_logps, token_logps_of_module
from swift_testing import crew

torch.set_num_threads(1)

OF_TARGETS = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS})
WAYS = {
    "kept": {"keep_bytes": 2**30},
    "one chunk": {"keep_bytes": 0, "chunk_tokens": 64},
    "chunks": {"keep_bytes": 0, "chunk_tokens": 5},
}
VIEWS = ("logps", "mean_logps", "entropy", "candidate_logps", "candidate_rest")
WITH_CANDIDATES = OF_TARGETS | {Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS}
TRANSFORMS = [LogitTransform(), LogitTransform(scale=0.25), LogitTransform(softcap=2.0), LogitTransform(0.5, 3.0)]
TRANSFORMS += [LogitTransform(temperature=0.6), LogitTransform(0.5, 3.0, 1.7)]


def problem(
    bias: bool = True, tokens: int = 23
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 16, requires_grad=True)
    weight = torch.randn(37, 16, requires_grad=True)
    offset = torch.randn(37, requires_grad=True) if bias else None
    return hidden, weight, offset, torch.randint(0, 37, (tokens,))


def plain_logits(hidden, weight, bias, transform):
    logits = F.linear(hidden, weight, bias) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    return logits / transform.temperature


def plain(hidden, weight, bias, targets, transform):
    logits = plain_logits(hidden, weight, bias, transform)
    logps = logits.log_softmax(-1)
    return logps.gather(1, targets[:, None])[:, 0], logps.mean(-1), (logits.argmax(-1) == targets).float()


def viewed(head, hidden, weight, bias, targets, **asked):
    """Return the views through a matrix, or through a module that is the same."""
    if head == "matrix":
        return token_logps(hidden, weight, targets, bias=bias, **asked)
    return token_logps_of_module(
        lambda rows: F.linear(rows, weight, bias), hidden, targets, vocabulary=len(weight), **asked
    )


def gradients(logps, means, leaves):
    torch.manual_seed(1)
    loss = (logps * torch.randn_like(logps)).sum() + (means * torch.randn_like(means)).sum()
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", ["matrix", "module"])
def test_values_and_gradients_are_those_of_plain_torch(head, way, transform):
    hidden, weight, bias, targets = problem()
    views = viewed(head, hidden, weight, bias, targets, transform=transform, want=OF_TARGETS, **WAYS[way])
    logps, means, correct = plain(hidden, weight, bias, targets, transform)
    torch.testing.assert_close(views.logps, logps)
    torch.testing.assert_close(views.mean_logps, means)
    assert torch.equal(views.correct, correct)
    expected = gradients(logps, means, [hidden, weight, bias])
    for mine, reference in zip(gradients(views.logps, views.mean_logps, [hidden, weight, bias]), expected, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_head_gets_no_gradient(way):
    hidden, weight, bias, targets = problem()
    views = token_logps(hidden, weight.detach(), targets, bias=bias.detach(), **WAYS[way])
    logps = plain(hidden, weight.detach(), bias.detach(), targets, LogitTransform())[0]
    (mine,) = torch.autograd.grad(views.logps.sum(), [hidden])
    torch.testing.assert_close(mine, torch.autograd.grad(logps.sum(), [hidden])[0])


@pytest.mark.parametrize("way", WAYS)
def test_under_bfloat16_autocast_only_the_products_are_rounded(way):
    hidden, weight, _, targets = problem(bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        views = token_logps(hidden, weight, targets, want=OF_TARGETS, **WAYS[way])
        logits = F.linear(hidden, weight)
    logps = logits.float().log_softmax(-1)
    assert views.logps.dtype == torch.float32
    torch.testing.assert_close(views.logps, logps.gather(1, targets[:, None])[:, 0])
    assert torch.equal(views.correct, (logits.argmax(-1) == targets).float())
    mine = gradients(views.logps, views.mean_logps, [hidden, weight])
    expected = gradients(logps.gather(1, targets[:, None])[:, 0], logps.mean(-1), [hidden, weight])
    for ours, reference in zip(mine, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, reference, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("way", WAYS)
def test_no_token_at_all_still_reaches_every_weight_with_zeros(way):
    hidden, weight, bias, targets = problem(tokens=0)
    views = token_logps(hidden, weight, targets, bias=bias, **WAYS[way])
    _, weight_gradient, bias_gradient = torch.autograd.grad(views.logps.sum(), [hidden, weight, bias])
    assert not weight_gradient.any()
    assert not bias_gradient.any()


def test_kept_logits_refuse_second_backward():
    """Kept logits refuse a second backward pass instead of giving wrong gradients."""
    hidden, weight, bias, targets = problem()
    loss = token_logps(hidden, weight, targets, bias=bias).logps.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_no_tokens_by_vocabulary_tensor_is_built():
    tokens, vocabulary = 400, 500
    hidden, weight = torch.randn(tokens, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    with Watch() as watch:
        token_logps(
            hidden, weight, torch.zeros(tokens, dtype=torch.long), keep_bytes=0, chunk_tokens=50
        ).logps.sum().backward()
    assert watch.largest <= 50 * vocabulary * 4


def candidates_of(targets: torch.Tensor, count: int) -> torch.Tensor:
    """As many different tokens for each target, itself among those of every second."""
    torch.manual_seed(2)
    drawn = torch.stack([torch.randperm(37)[:count] for _ in targets])
    missing = (drawn != targets[:, None]).all(-1)
    missing[1::2] = False
    drawn[missing, 0] = targets[missing]
    return drawn


def plain_views(logits: torch.Tensor, targets: torch.Tensor, candidates: torch.Tensor) -> dict[str, torch.Tensor]:
    """All views from all logits, in float64, as their definitions say."""
    logps = logits.double().log_softmax(-1)
    among = torch.zeros_like(logps, dtype=torch.bool).scatter(-1, candidates, True)
    return {
        "logps": logps.gather(1, targets[:, None])[:, 0],
        "mean_logps": logps.mean(-1),
        "entropy": -(logps.exp() * logps).sum(-1),
        "candidate_logps": logps.gather(1, candidates),
        "candidate_rest": logps.masked_fill(among, -torch.inf).logsumexp(-1),
    }


def pulled(views: dict[str, torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a sum in which every value of every view has a weight of its own."""
    torch.manual_seed(1)
    loss = sum((view.double() * torch.randn(view.shape, dtype=torch.float64)).sum() for view in views.values())
    return list(torch.autograd.grad(loss, leaves))


def assert_views(views, expected, leaves) -> None:
    found = {name: getattr(views, name) for name in expected}
    for name, values in expected.items():
        torch.testing.assert_close(
            found[name].double(), values, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    for mine, reference in zip(pulled(found, leaves), pulled(expected, leaves), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("head", ["matrix", "module"])
@pytest.mark.parametrize(
    ("some", "want"),
    [
        (True, WITH_CANDIDATES),
        (False, WITH_CANDIDATES),
        (False, WITH_CANDIDATES - {Need.TOKEN_ENTROPY}),
    ],
    ids=["some", "all", "all, no entropy"],
)
def test_entropy_and_candidates_are_those_of_all_logits(head, way, transform, some, want):
    hidden, weight, bias, targets = problem()
    candidates = candidates_of(targets, 5) if some else torch.arange(37).expand(len(targets), 37)
    asked = {"transform": transform, "candidates": candidates, "want": want, **WAYS[way]}
    views = viewed(head, hidden, weight, bias, targets, **asked)
    expected = plain_views(plain_logits(hidden, weight, bias, transform), targets, candidates)
    if not some:
        assert (views.candidate_rest == -torch.inf).all()
        del expected["candidate_rest"]
    if Need.TOKEN_ENTROPY not in want:
        del expected["entropy"]
    assert_views(views, expected, [hidden, weight, bias])


@pytest.mark.parametrize("head", ["matrix", "module"])
def test_remainder_of_likely_candidates_keeps_precision(head):
    """One candidate has all but 1e-9 of the probability: its complement would be rounded to nothing."""
    logits = torch.tensor([[30.0, 9.0, 8.0, -50.0], [200.0, 0.0, -1.0, 2.0]], requires_grad=True)
    candidates, targets = torch.tensor([[0], [0]]), torch.tensor([1, 0])
    asked = {"candidates": candidates, "want": {Need.CANDIDATE_LOGPS}, "keep_bytes": 0}
    views = viewed(head, logits, torch.eye(4), None, targets, **asked)
    expected = plain_views(logits, targets, candidates)["candidate_rest"]
    torch.testing.assert_close(views.candidate_rest.double(), expected, rtol=1e-6, atol=1e-6)
    (mine,) = torch.autograd.grad(views.candidate_rest.sum(), [logits])
    torch.testing.assert_close(mine, torch.autograd.grad(expected.sum(), [logits])[0])


@pytest.mark.parametrize("head", ["matrix", "module"])
def test_whole_vocabulary_leaves_no_remainder(head):
    """Nothing is left next to the whole vocabulary and its gradient is zero."""
    hidden, weight, bias, targets = problem()
    candidates = torch.arange(37).expand(len(targets), 37)
    asked = {"candidates": candidates, "want": {Need.CANDIDATE_LOGPS}}
    views = viewed(head, hidden, weight, bias, targets, **asked)
    assert (views.candidate_rest == -torch.inf).all()
    torch.testing.assert_close(views.candidate_logps, F.linear(hidden, weight, bias).log_softmax(-1))
    for gradient in torch.autograd.grad(views.candidate_rest.sum(), [hidden, weight, bias]):
        assert not gradient.any()


def test_whole_vocabulary_memory_is_one_token():
    """The whole vocabulary of a batch takes the memory of one token and no ids."""
    ids = np.arange(6, dtype=np.int32)
    sample = Encoded(0, (Segment(ids, np.ones(6, np.float32)),))
    batch = Batch(0, [(sample,)] * 2, 0, 2, 1.0, 2, 12, False, 0, candidates=tuple(range(37)))
    candidates = next(batch.micro_batches()).to("cpu").candidates
    assert candidates.shape == (2, 6, 37)
    assert candidates.untyped_storage().nbytes() == 37 * 8
    hidden, weight, _, targets = problem(tokens=4)
    with Watch() as watch:
        chosen = at_positions(candidates, torch.tensor([1, 2, 3, 7]))
        token_logps(hidden, weight, targets, candidates=chosen, want={Need.CANDIDATE_LOGPS})
    assert chosen.shape == (4, 37)
    assert "scatter" not in watch.called


def test_candidates_that_are_needed_and_missing_are_named():
    hidden, weight, _, targets = problem()
    with pytest.raises(ValueError, match="no candidates"):
        token_logps(hidden, weight, targets, want={Need.CANDIDATE_LOGPS})


def of_a_shard(rows: int, padding: int, transform: LogitTransform) -> list[list[float]]:
    """On each of two processes: the views and the gradients through its own rows of the head."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    hidden, weight, _, targets = problem()
    mine = slice(0, rows) if rank == 0 else slice(rows, 37)
    own = F.pad(weight.detach()[mine], (0, 0, 0, padding)).requires_grad_()
    shard = VocabularyShard(mine.start, mine.stop - mine.start, 37, dist.group.WORLD)
    views = token_logps(
        hidden, own, targets, transform=transform, candidates=candidates_of(targets, 5), want=WITH_CANDIDATES,
        shard=shard, keep_bytes=0, chunk_tokens=7,
    )  # fmt: skip
    found = {name: getattr(views, name) for name in VIEWS}
    of_hidden, of_weight = pulled(found, [hidden, own])
    dist.all_reduce(of_hidden)
    assert not of_weight[mine.stop - mine.start :].any()
    dist.destroy_process_group()
    return [each.detach().tolist() for each in (*found.values(), of_hidden, of_weight[: mine.stop - mine.start])]


@pytest.mark.parametrize(("rows", "padding"), [(19, 0), (30, 3)])
def test_shards_of_the_vocabulary_add_up_to_the_whole(rows, padding):
    transform = LogitTransform(0.5, 3.0, 0.8)
    first, second = crew.succeeded(crew.run_jobs(2, [lambda: of_a_shard(rows, padding, transform)])[0])
    hidden, weight, _, targets = problem()
    expected = plain_views(plain_logits(hidden, weight, None, transform), targets, candidates_of(targets, 5))
    of_hidden, of_weight = pulled(expected, [hidden, weight])
    for answers in (first, second):
        for values, reference in zip(answers, (*expected.values(), of_hidden), strict=False):
            torch.testing.assert_close(torch.tensor(values).double(), reference.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.tensor(first[-1] + second[-1]), of_weight, rtol=1e-4, atol=1e-4)


def test_unrequested_views_are_not_computed():
    hidden, weight, bias, targets = problem()
    for want in (OF_TARGETS, WITH_CANDIDATES):
        with Watch() as watch:
            views = token_logps(
                hidden, weight, targets, bias=bias, candidates=candidates_of(targets, 5), want=want, keep_bytes=0
            )
            (views.logps.sum() + views.mean_logps.sum()).backward()
        asked = want is WITH_CANDIDATES
        assert ({"xlogy", "scatter"} <= watch.called) == asked
        assert all((each is not None) == asked for each in (views.entropy, views.candidate_logps, views.candidate_rest))
