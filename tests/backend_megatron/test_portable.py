"""The portable layer of the Megatron backend: its layers against plain torch, and what it leaves of the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from swift_backend_megatron import portable
from swift_backend_megatron.experts import mark_experts

HEADS, GROUPS, CHANNELS = 4, 2, 8


def explicit(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True, window: int = -1, scale: float | None = None
) -> torch.Tensor:
    """Attention of one sequence by its definition; everything is [tokens, batch, heads, channels]."""
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
    scores = torch.einsum("qbhc,kbhc->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = (distance < 0) & causal
    if window >= 0:
        hidden |= distance > window
    out = torch.einsum("bhqk,kbhc->qbhc", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return out.flatten(2)


def drawn(tokens: int, batch: int = 2, heads: int = HEADS, values: int = CHANNELS) -> list[torch.Tensor]:
    torch.manual_seed(tokens)
    sizes = ((heads, CHANNELS), (GROUPS, CHANNELS), (GROUPS, values))
    return [torch.randn(tokens, batch, *size, requires_grad=True) for size in sizes]


def assert_same(ours: torch.Tensor, reference: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Values and gradients."""
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((each * weight).sum(), leaves) for each in (ours, reference)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def attention(**options: Any) -> portable.DotProductAttention:
    return portable.DotProductAttention(HEADS, options.pop("kv_channels", CHANNELS), num_gqa_groups=GROUPS, **options)


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"attn_mask_type": "no_mask"}, {"causal": False}),
        ({"window_size": (5, 0)}, {"window": 5}),
        ({"softmax_scale": 0.2}, {"scale": 0.2}),
    ],
    ids=["causal", "full", "window", "scale"],
)
def test_attention_is_what_its_definition_says(options: dict[str, Any], reference: dict[str, Any]) -> None:
    leaves = drawn(37)
    assert_same(attention(**options)(*leaves), explicit(*leaves, **reference), leaves)


def test_long_sequences_are_cut_into_blocks_where_there_is_a_window() -> None:
    leaves = drawn(600, batch=1)
    assert_same(attention(window_size=(20, 0))(*leaves), explicit(*leaves, window=20), leaves)


def test_keys_and_values_may_have_different_sizes() -> None:
    leaves = drawn(19, values=6)
    assert_same(attention(kv_channels=(CHANNELS, 6))(*leaves), explicit(*leaves), leaves)


@pytest.mark.parametrize(("causal", "window"), [(True, -1), (True, 4), (False, -1)])
def test_packed_sequences_do_not_see_each_other(causal: bool, window: int) -> None:
    edges = [0, 7, 8, 31, 40]
    leaves = drawn(43, batch=1)
    out = attention(window_size=(window, 0 if causal else -1))(
        *(leaf.squeeze(1) for leaf in leaves),
        qkv_format="thd",
        cu_seqlens_q=torch.tensor(edges),
        attn_mask_type="padding_causal" if causal else "padding",
    )
    parts = [explicit(*(leaf[a:b] for leaf in leaves), causal=causal, window=window) for a, b in pairwise(edges)]
    reference = torch.cat(parts).squeeze(1)
    assert_same(out, F.pad(reference, (0, 0, 0, 3)), leaves)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_inside_a_pack_is_not_seen(causal: bool) -> None:
    lengths, rooms = [5, 8, 2], [8, 8, 8]
    leaves = drawn(24, batch=1)
    out = attention()(
        *(leaf.squeeze(1) for leaf in leaves),
        qkv_format="thd",
        cu_seqlens_q=torch.tensor([0, *torch.tensor(lengths).cumsum(0)]),
        cu_seqlens_q_padded=torch.tensor([0, *torch.tensor(rooms).cumsum(0)]),
        attn_mask_type="padding_causal" if causal else "padding",
    )
    parts = [
        F.pad(explicit(*(leaf[start : start + length] for leaf in leaves), causal=causal), (0, 0, 0, 0, 0, 8 - length))
        for start, length in zip((0, 8, 16), lengths, strict=True)
    ]
    assert_same(out, torch.cat(parts).squeeze(1), leaves)


def test_a_mask_of_padding_is_looked_at() -> None:
    leaves = drawn(12)
    mask = torch.zeros(2, 1, 1, 12, dtype=torch.bool)
    mask[1, ..., 9:] = True
    out = attention()(*leaves, attention_mask=mask, attn_mask_type="padding_causal")
    torch.testing.assert_close(out[:, 0], explicit(*leaves)[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[:9, 1], explicit(*(leaf[:9] for leaf in leaves))[:, 1], rtol=1e-5, atol=1e-5)


class Group:
    """What attention asks of a process group."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


def zigzag(tensor: torch.Tensor, rooms: list[int], size: int, rank: int) -> torch.Tensor:
    parts = []
    for sequence in tensor.split(rooms):
        chunks = sequence.chunk(2 * size)
        parts += [chunks[rank], chunks[2 * size - 1 - rank]]
    return torch.cat(parts)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [-1, 4])
def test_context_parallel_processes_hold_two_chunks_of_every_sequence(
    monkeypatch: pytest.MonkeyPatch, size: int, packed: bool, window: int
) -> None:
    rooms = [12, 24, 12] if packed else [48]
    lengths = [12, 20, 5] if packed else [48]
    leaves = drawn(48, batch=1 if packed else 2)
    outs, references = [], []
    for rank in range(size):
        local = [zigzag(leaf, rooms, size, rank) for leaf in leaves]
        whole = iter([torch.cat([zigzag(leaf, rooms, size, each) for each in range(size)]) for leaf in leaves[1:]])
        monkeypatch.setattr(portable, "_gathered", lambda *_, whole=whole: next(whole))
        layer = attention(cp_group=Group(size, rank), window_size=(window, 0))
        if packed:
            edges = {
                name: torch.tensor([0, *each]).cumsum(0)
                for name, each in (("cu_seqlens_q", lengths), ("cu_seqlens_q_padded", rooms))
            }
            outs.append(layer(*(each.squeeze(1) for each in local), qkv_format="thd", **edges).unsqueeze(1))
        else:
            outs.append(layer(*local))
        parts, start = [], 0
        for length, room in zip(lengths, rooms, strict=True):
            part = explicit(*(leaf[start : start + length] for leaf in leaves), window=window)
            parts.append(F.pad(part, (0, 0, 0, 0, 0, room - length)))
            start += room
        references.append(zigzag(torch.cat(parts), rooms, size, rank))
    assert_same(torch.cat(outs), torch.cat(references), leaves)


def test_a_sequence_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        attention(cp_group=Group(2, 0))(
            *(leaf.squeeze(1) for leaf in drawn(6, batch=1)), qkv_format="thd", cu_seqlens_q=torch.tensor([0, 5, 12])
        )


def test_dropout_of_attention_is_drawn_in_training_only() -> None:
    leaves = drawn(16)
    layer = attention(attention_dropout=0.5)
    assert not torch.equal(layer(*leaves), layer(*leaves))
    assert_same(layer.eval()(*leaves), explicit(*leaves), leaves)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: attention(softmax_type="learnable"),
        lambda: attention(softmax_type="off-by-one"),
        lambda: attention(return_max_logit=True),
        lambda: portable.fp8_autocast(enabled=True),
        lambda: portable.Linear(4, 4, fuse_wgrad_accumulation=True),
        lambda: portable.Linear(4, 4, delay_wgrad_compute=True),
        lambda: portable.FusedAdam([torch.zeros(1)], use_decoupled_grad=True),
        lambda: portable.Linear(4, 4).set_extra_state(torch.ones(3, dtype=torch.uint8)),
    ],
)
def test_what_the_stand_in_lacks_is_refused(refused: Any) -> None:
    with pytest.raises(NotImplementedError, match="needs CUDA and Transformer Engine"):
        refused()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("centred", [False, True])
def test_norm_and_product_in_one(dtype: torch.dtype, normalization: str, centred: bool) -> None:
    layer = portable.LayerNormLinear(
        6,
        4,
        normalization=normalization,
        zero_centered_gamma=centred,
        return_layernorm_output=True,
        return_bias=True,
        params_dtype=dtype,
    )
    assert next(iter(layer.state_dict())) == "layer_norm_weight"
    x = torch.randn(3, 2, 6, dtype=dtype)
    out, bias, normed = layer(x)
    expected = F.rms_norm(x, (6,), eps=1e-5) if normalization == "RMSNorm" else F.layer_norm(x, (6,))
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(out, F.linear(expected, layer.weight))
    assert bias is layer.bias
    assert out.dtype is dtype


def test_marks_on_cut_weights() -> None:
    column = portable.Linear(8, 8, parallel_mode="column", tp_size=2, sequence_parallel=True)
    row = portable.Linear(8, 8, parallel_mode="row", tp_size=2, sequence_parallel=True)
    assert (column.weight.shape, row.weight.shape) == ((4, 8), (8, 4))
    assert (column.weight.partition_dim, row.weight.partition_dim) == (0, 1)
    assert column.bias.tensor_model_parallel
    assert row.bias.sequence_parallel
    assert not hasattr(row.bias, "tensor_model_parallel")
    assert not hasattr(portable.Linear(8, 8).weight, "tensor_model_parallel")


def test_experts_without_tokens_get_gradients_of_zero() -> None:
    layer = portable.GroupedLinear(3, 4, 5, bias=True)
    x = torch.randn(6, 4, requires_grad=True)
    out = layer(x, [4, 0, 2])
    parts = [F.linear(x[:4], layer.weight0, layer.bias0), F.linear(x[4:], layer.weight2, layer.bias2)]
    torch.testing.assert_close(out, torch.cat(parts))
    out.sum().backward()
    assert torch.equal(layer.weight1.grad, torch.zeros(5, 4))
    assert layer.weight0.grad.abs().sum() > 0
    layer(torch.zeros(0, 4), [0, 0, 0]).sum().backward()


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_is_that_of_torch(decoupled: bool) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    theirs = [torch.nn.Parameter(each.detach().clone()) for each in ours]
    options: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    one = portable.FusedAdam([{"params": ours}, {"params": []}], adam_w_mode=decoupled, **options)
    other = (torch.optim.AdamW if decoupled else torch.optim.Adam)(theirs, **options)
    for _ in range(5):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            yours.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-6, atol=1e-6)
        assert one.state[mine].keys() == {"exp_avg", "exp_avg_sq"}
        torch.testing.assert_close(one.state[mine]["exp_avg_sq"], other.state[yours]["exp_avg_sq"])
    assert one.param_groups[0]["step"] == 5
    assert "step" not in one.param_groups[1]


def test_norms_and_scaling_of_many_tensors() -> None:
    tensors = [torch.randn(3), torch.randn(2, 2)]
    norm, each = portable.multi_tensor_applier(portable.multi_tensor_l2norm, torch.zeros(1), [tensors], True)
    torch.testing.assert_close(norm, torch.cat([tensor.flatten() for tensor in tensors]).norm()[None])
    torch.testing.assert_close(each, torch.stack([tensor.norm() for tensor in tensors]))
    targets = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
    portable.multi_tensor_applier(portable.multi_tensor_scale, torch.zeros(1), [tensors, targets], 0.5)
    torch.testing.assert_close(targets[0], (tensors[0] * 0.5).bfloat16())


def test_dropout_is_the_same_when_computed_again() -> None:
    tracker = portable.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 3)
    masks = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x.sin(), 0.5)
        with tracker.fork():
            y = F.dropout(y, 0.5)
        masks.append(y.detach() == 0)
        return y.cos() * y

    x = torch.randn(64, requires_grad=True)
    out = portable.checkpoint(layer, x, get_rng_state_tracker=lambda: tracker)
    with tracker.fork():
        torch.rand(1)
    later = tracker.get_states()
    out.sum().backward()
    assert len(masks) == 2
    assert torch.equal(*masks)
    assert all(torch.equal(state, later[name]) for name, state in tracker.get_states().items())


def everything() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in (torch, torch.cuda, torch.cuda.random, torch.Tensor, torch.nn.Module)]


def use_cuda() -> None:
    x = torch.zeros(2, device="cuda")
    assert x.device.type == "cpu"
    assert x.cuda(0).to("cuda:1").to(torch.cuda.current_device()).device.type == "cpu"
    assert torch.device("cuda", 1) == torch.device("cpu")
    assert torch.device("cuda", index=0) == torch.device("cpu")
    assert torch.device("meta").type == "meta"
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.type(torch.float16).type("torch.cuda.FloatTensor").dtype is torch.float32
    assert not torch.zeros(1, pin_memory=True).pin_memory().is_pinned()
    assert torch.nn.Linear(1, 1).cuda().to("cuda").weight.device.type == "cpu"
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda.Event(enable_timing=True).record()
    torch.cuda.synchronize()
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    with portable.cuda_on_cpu():
        pass
    assert torch.zeros(1, device="cuda").device.type == "cpu"


def test_cuda_means_the_cpu_inside_and_nothing_is_left_of_it_outside() -> None:
    torch.cuda.is_available()
    before = everything()
    with portable.cuda_on_cpu(), portable.cuda_on_cpu():
        use_cuda()
    assert everything() == before
    with pytest.raises(ZeroDivisionError), portable.cuda_on_cpu():
        1 / torch.zeros(1, device="cuda").long().item()
    assert everything() == before
    assert torch.device("cuda").type == "cuda"
    assert torch.overrides._get_current_function_mode_stack() == []


def test_threads_leave_each_other_their_patches() -> None:
    before = everything()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with portable.cuda_on_cpu():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    assert torch.device("cuda").type == "cuda"
    with portable.cuda_on_cpu():
        pass
    assert torch.cuda.current_device() == torch.device("cpu")
    leave.set()
    thread.join()
    assert everything() == before


class Config:
    expert_model_parallel_size = 1
    expert_tensor_parallel_size = 1
    tensor_model_parallel_size = 2


def test_experts_are_marked() -> None:
    layer = torch.nn.Module()
    layer.experts = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("linear_fc1", "linear_fc2")})
    model = torch.nn.ModuleDict({"mlp": layer, "shared_experts": torch.nn.Linear(2, 2)})
    mark_experts([model], Config)
    assert not layer.experts["linear_fc1"].weight.allreduce
    assert layer.experts["linear_fc1"].weight.partition_dim == 0
    assert layer.experts["linear_fc2"].weight.partition_dim == 1
    assert not hasattr(model["shared_experts"].weight, "tensor_model_parallel")


WHOLE = """
import importlib.util, os, subprocess, sys, tempfile, warnings

import peft
from swift_backend_megatron import portable

compiler = __import__("torch").compile
with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    portable.prepare()
portable.prepare()
import torch, torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

assert torch.compile is compiler and "TORCH_COMPILE_DISABLE" not in os.environ
assert "triton" not in sys.modules
assert importlib.util.find_spec("transformer_engine") is not None
import accelerate
from accelerate.utils import is_transformer_engine_available
assert not is_transformer_engine_available()
import transformer_engine.pytorch as te
for name in ("Float8BlockQuantizer", "Nothing"):
    try:
        getattr(te, name)
    except AttributeError:
        continue
    raise AssertionError(name)
try:
    import transformer_engine.pytorch.permutation
except ImportError:
    pass
else:
    raise AssertionError("permutation")

from peft import LoraConfig, get_peft_model
SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, max_position_embeddings=64)
tokens = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(0))
adapted = get_peft_model(Qwen3ForCausalLM(Qwen3Config(**SIZES)), LoraConfig(target_modules=["q_proj", "down_proj"]))
assert type(adapted.base_model.model.model.layers[0].self_attn.q_proj).__name__ == "Linear"
adapted(tokens, labels=tokens).loss.backward()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with portable.cuda_on_cpu():
    from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    moe = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
    sparse = Qwen3MoeConfig(**SIZES, **moe)
    for kind, config in ((Qwen3ForCausalLM, Qwen3Config(**SIZES)), (Qwen3MoeForCausalLM, sparse)):
        torch.manual_seed(0)
        reference = kind(config).eval()
        expected = reference(tokens).logits
        with tempfile.TemporaryDirectory() as folder:
            reference.save_pretrained(folder)
            megatron = ModelConfig(
                params_dtype=torch.float32, perform_initialization=True, gradient_accumulation_fusion=False,
                masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
                apply_rope_fusion=False, moe_permute_fusion=False, moe_router_dtype="fp32",
                **hf_to_mcore_config(config))
            model, = get_mcore_model(megatron)
            megatron.bridge.load_weights([model], folder)
        positions = torch.arange(16).expand(2, -1)
        ours = model(tokens, positions, None)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        model(tokens[:, :2], positions[:, :2], None).sum().backward()
        missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert not missing, missing
        again = Qwen3ForCausalLM(Qwen3Config(**SIZES))
        again(tokens)
try:
    with portable.cuda_on_cpu():
        te.Linear(4, 4); te.fp8_autocast(enabled=True)
except NotImplementedError as problem:
    assert "fp8" in str(problem)
else:
    raise AssertionError("fp8")
dist.destroy_process_group()
print("all is well")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("mcore_bridge") is None, reason="needs megatron-core and mcore-bridge")
def test_models_of_the_bridge_answer_as_those_of_transformers_and_other_libraries_still_work(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(WHOLE)
    result = run(f"import runpy; runpy.run_path({str(tmp_path / 'whole.py')!r}, run_name='__main__')")
    assert result.returncode == 0, result.stderr
    assert "all is well" in result.stdout
    assert "[INFO:mcore_bridge]" not in result.stderr


@pytest.mark.full
def test_what_was_imported_too_early_is_named() -> None:
    result = run(
        "import sys, types; sys.modules['megatron.core'] = types.ModuleType('megatron.core')\n"
        "from swift_backend_megatron import portable; portable.prepare()"
    )
    assert "imported before the portable layer was prepared: megatron.core" in result.stderr
