"""Chunked log-probabilities against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from swift.contracts import Need
from swift.models.logps import LogitTransform, token_logps, token_logps_of_module

torch.set_num_threads(1)

EVERYTHING = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS})
WAYS = {
    "kept": {"keep_bytes": 2**30},
    "one chunk": {"keep_bytes": 0, "chunk_tokens": 64},
    "chunks": {"keep_bytes": 0, "chunk_tokens": 5},
}
TRANSFORMS = [LogitTransform(), LogitTransform(scale=0.25), LogitTransform(softcap=2.0), LogitTransform(0.5, 3.0)]


def problem(
    bias: bool = True, tokens: int = 23
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 16, requires_grad=True)
    weight = torch.randn(37, 16, requires_grad=True)
    offset = torch.randn(37, requires_grad=True) if bias else None
    return hidden, weight, offset, torch.randint(0, 37, (tokens,))


def plain(hidden, weight, bias, targets, transform):
    logits = F.linear(hidden, weight, bias) * transform.scale
    if transform.softcap:
        logits = torch.tanh(logits / transform.softcap) * transform.softcap
    logps = logits.log_softmax(-1)
    return logps.gather(1, targets[:, None])[:, 0], logps.mean(-1), (logits.argmax(-1) == targets).float()


def gradients(logps, means, leaves):
    torch.manual_seed(1)
    loss = (logps * torch.randn_like(logps)).sum() + (means * torch.randn_like(means)).sum()
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_are_those_of_plain_torch(way, transform):
    hidden, weight, bias, targets = problem()
    views = token_logps(hidden, weight, targets, bias=bias, transform=transform, want=EVERYTHING, **WAYS[way])
    logps, means, correct = plain(hidden, weight, bias, targets, transform)
    torch.testing.assert_close(views.logps, logps)
    torch.testing.assert_close(views.mean_logps, means)
    assert torch.equal(views.correct, correct)
    expected = gradients(logps, means, [hidden, weight, bias])
    for mine, reference in zip(gradients(views.logps, views.mean_logps, [hidden, weight, bias]), expected, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("way", WAYS)
def test_a_head_that_is_a_module_gives_the_same(way):
    hidden, weight, bias, targets = problem()
    views = token_logps_of_module(
        lambda h: F.linear(h, weight, bias), hidden, targets, vocabulary=37, want=EVERYTHING, **WAYS[way]
    )
    logps, means, correct = plain(hidden, weight, bias, targets, LogitTransform())
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
        views = token_logps(hidden, weight, targets, want=EVERYTHING, **WAYS[way])
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


def test_kept_logits_refuse_a_second_backward_pass_instead_of_giving_wrong_gradients():
    hidden, weight, bias, targets = problem()
    loss = token_logps(hidden, weight, targets, bias=bias).logps.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_no_tensor_of_tokens_times_vocabulary_is_ever_made():
    tokens, vocabulary = 400, 500
    hidden, weight = torch.randn(tokens, 8, requires_grad=True), torch.randn(vocabulary, 8, requires_grad=True)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
            result = function(*arguments, **(kwargs or {}))
            sizes.extend(x.untyped_storage().nbytes() for x in [result] if isinstance(x, torch.Tensor))
            return result

    with Watch():
        token_logps(
            hidden, weight, torch.zeros(tokens, dtype=torch.long), keep_bytes=0, chunk_tokens=50
        ).logps.sum().backward()
    assert max(sizes) <= 50 * vocabulary * 4
