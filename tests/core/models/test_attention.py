"""Which attention is chosen, what is said about it, and what is refused."""

from __future__ import annotations

import importlib.util
from functools import partialmethod
from itertools import pairwise

import pytest
import torch
import torch.compiler.config
import transformers

from swift.errors import ModelError
from swift.models import attention
from swift.models.attention import FLASH, FLASH_3, FLEX, VARLEN, choose_attention, packing_of, varlen_attention
from swift.models.build import compile_blocks

QWEN = transformers.Qwen3Config()


@pytest.fixture
def flash_attn_installed(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "flash_attn" else found(name))


def test_auto_reports_why_no_flash_attention():
    choice = choose_attention("auto", QWEN, flat=False, device="cpu")
    assert (choice.name, choice.implementation) == ("sdpa", "sdpa")
    assert "NVIDIA GPU" in choice.reason
    assert "flash-attn is not installed" in choose_attention("auto", QWEN, flat=False, device="cuda:0").reason


def test_packed_samples_run_singly_through_sdpa():
    """Packed samples go one by one through SDPA when there is no flash attention."""
    for requested in ("auto", "sdpa"):
        assert choose_attention(requested, QWEN, flat=True, device="cpu").implementation == VARLEN


def test_unavailable_flash_attention_names_command():
    with pytest.raises(ModelError, match=r"NVIDIA GPU(.|\n)*core\[flash-attn\]"):
        choose_attention(FLASH, QWEN, flat=False, device="cpu")


def test_flash_attention_needs_gpu_and_half_precision(flash_attn_installed):
    """Flash attention is taken on a GPU in half precision only."""

    def chosen(dtype: torch.dtype) -> str:
        return choose_attention("auto", QWEN, flat=True, device="cuda", dtype=dtype).implementation

    assert chosen(torch.bfloat16) == FLASH
    assert chosen(torch.float32) == VARLEN
    with pytest.raises(ModelError, match="float32"):
        choose_attention(FLASH, QWEN, flat=True, device="cuda", dtype=torch.float32)


def test_flash_attention_3_is_taken_on_hopper_alone(monkeypatch):
    """The faster one is taken where it is installed and the GPU is one that it is for; else the other one is."""
    installed = ("flash_attn", "flash_attn_interface")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else found(name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in (((9, 0), FLASH_3), ((8, 0), FLASH), ((10, 0), FLASH)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        choice = choose_attention("auto", QWEN, flat=True, device="cuda", dtype=torch.bfloat16)
        assert choice.implementation == expected
    with pytest.raises(ModelError, match=r"flash_attention_3 cannot be used: it needs a Hopper GPU"):
        choose_attention(FLASH_3, QWEN, flat=True, device="cuda", dtype=torch.bfloat16)


def test_flex_attention_is_used_by_name_on_a_gpu():
    """It needs no package and no half precision; on the CPU it has no gradient."""
    choice = choose_attention(FLEX, QWEN, flat=True, device="cuda", dtype=torch.float32)
    assert (choice.implementation, choice.reason) == (FLEX, "requested")
    with pytest.raises(ModelError, match=r"flex_attention cannot be used: it needs an NVIDIA GPU"):
        choose_attention(FLEX, QWEN, flat=True, device="cpu")


@pytest.mark.parametrize("flat", [True, False])
def test_capped_logits_use_eager_and_refuse_sdpa(flat):
    """Capped attention logits fall back to eager aloud and refuse SDPA."""
    config = transformers.Gemma2Config()
    choice = choose_attention("auto", config, flat=flat, device="cpu")
    assert choice.implementation == "eager"
    assert "caps its attention logits" in choice.reason
    assert ("tokens x tokens mask" in choice.reason) == flat
    with pytest.raises(ModelError, match="caps its attention logits"):
        choose_attention("sdpa", config, flat=flat, device="cpu")


def test_attention_sinks_need_no_mask_when_packed():
    config = transformers.GptOssConfig()
    assert choose_attention("auto", config, flat=True, device="cpu").implementation == VARLEN
    assert choose_attention("auto", config, flat=False, device="cpu").implementation == "eager"


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("packed", [True, False])
def test_attention_sinks_equal_softmax_with_one_more_logit(window, packed):
    """The output and all gradients are those of the formula, written down with a matrix of logits."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 16, 8, requires_grad=True) for heads in (4, 2, 2))
    sinks = torch.randn(4, requires_grad=True)
    position, sample = torch.arange(16), torch.tensor([0] * 7 + [1] * 9) * packed
    distance = position[:, None] - position[None, :]
    seen = (distance >= 0) & (sample[:, None] == sample[None, :]) & (distance < (window or 99))
    logits = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.3
    logits = logits.masked_fill(~seen, float("-inf"))
    weights = torch.cat([logits, sinks[None, :, None, None].expand(1, 4, 16, 1)], -1).softmax(-1)[..., :-1]
    expected = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
    given = {"packing": packing_of([0, 7], 16)} if packed else {}
    found, _ = varlen_attention(
        torch.nn.Module(), query, key, value, None, scaling=0.3, sliding_window=window, s_aux=sinks, **given
    )
    torch.testing.assert_close(found, expected)
    tensors = (query, key, value, sinks)
    weight = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad((found * weight).sum(), tensors),
        torch.autograd.grad((expected * weight).sum(), tensors),
        strict=True,
    )
    for gradient, reference in pairs:
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [transformers.Qwen3NextConfig(), transformers.NemotronHConfig()])
def test_stateful_layers_leave_attention_without_a_mask(config):
    """Layers that carry state are called sample by sample; attention between them needs no mask."""
    assert choose_attention("auto", config, flat=True, device="cpu").implementation == VARLEN


def test_chunks_and_indexers_keep_their_mask():
    """What such attention sees is written into its mask alone."""
    for config in (transformers.Llama4TextConfig(), transformers.DeepseekV32Config()):
        assert choose_attention("auto", config, flat=True, device="cpu").implementation == "sdpa"


def test_padding_at_the_end_of_a_pack_is_one_more_sample():
    assert packing_of([0, 3, 7], 10).lengths == (3, 4, 3)
    assert packing_of([0, 3, 7], 7).lengths == (3, 4)


def test_attention_of_ours_generates_like_the_usual_one():
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, pad_token_id=0, eos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    prompts = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    expected = model.generate(prompts, attention_mask=mask, max_new_tokens=8, do_sample=False)
    model.set_attn_implementation(VARLEN)
    assert torch.equal(model.generate(prompts, attention_mask=mask, max_new_tokens=8, do_sample=False), expected)


@pytest.fixture
def torchs_flash_attention(monkeypatch):
    """Take the way of a GPU, with attention by a mask instead of its kernel."""

    def by_a_mask(row, edges, longest, dropout, scaling, window):
        query, key, value = row
        assert torch.compiler.is_compiling() or longest == edges.diff().max()
        places = torch.arange(len(query))
        sample, distance = torch.searchsorted(edges, places, right=True), places[:, None] - places[None, :]
        mask = (sample[:, None] == sample[None, :]) & (distance >= 0)
        if window is not None:
            mask &= distance < window
        rows = [each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (query, key, value)]
        heads = (each.transpose(0, 1)[None].float() for each in rows)
        output = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scaling)
        return output[0].transpose(0, 1)

    monkeypatch.setattr(attention, "_all_at_once", by_a_mask)
    monkeypatch.setattr(attention, "_has_flash", lambda device: True)


@pytest.mark.parametrize("window", [None, 3])
def test_all_samples_at_once_are_what_they_are_one_by_one(torchs_flash_attention, window):
    query, key, value = (torch.randn(1, heads, 12, 16, dtype=torch.bfloat16) for heads in (4, 2, 2))
    together = packing_of([0, 3, 9], 12, torch.device("cpu"))
    assert together.edges.tolist() == [0, 3, 9, 12]
    apart = packing_of([0, 3, 9], 12)
    assert together == apart
    given = (torch.nn.Module(), query, key, value, None)
    found, _ = varlen_attention(*given, sliding_window=window, packing=together)
    expected, _ = varlen_attention(*given, sliding_window=window, packing=apart)
    assert found.shape == expected.shape == (1, 12, 4, 16)
    assert torch.allclose(found.float(), expected.float(), atol=0.02)


@pytest.mark.parametrize(
    ("width", "dtype", "autocast", "taken"),
    [
        (64, torch.bfloat16, False, torch.bfloat16),
        (64, torch.float32, True, torch.bfloat16),
        (64, torch.float32, False, None),
        (60, torch.bfloat16, False, None),
        (512, torch.bfloat16, False, None),
    ],
)
def test_torchs_kernel_takes_halves_of_some_widths(width, dtype, autocast, taken):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert attention.flash_dtype(torch.empty(1, 2, 3, width, dtype=dtype)) == taken


def test_torch_varlen_kernel_is_called_correctly_with_gradient():
    """Torch's kernel is called as it wants to be and has a gradient."""
    query, key, value = (
        torch.empty(10, heads, 64, dtype=torch.bfloat16, device="meta", requires_grad=True) for heads in (4, 2, 2)
    )
    edges = torch.empty(3, dtype=torch.int32, device="meta")
    for window in (None, 4):
        attention._all_at_once((query, key, value), edges, 6, 0.0, None, window).sum().backward()
    assert key.grad.shape == key.shape


@pytest.mark.parametrize("packs", ["of any width", "of one width"])
@torch.compiler.config.patch(dynamic_sources="mine")
def test_compiled_blocks_compile_once_for_all_packs(torchs_flash_attention, monkeypatch, packs):
    """Compiled blocks are compiled once for packs of any samples."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Qwen3Config(vocab_size=64, num_hidden_layers=2, head_dim=16, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(VARLEN)
    last = 40 if packs == "of one width" else None
    compile_blocks(model, one_width=last is not None)
    for *starts, end in ([0, 5, 12], [0, 3, 4, 20], [0, 30], [0, 1, 2, 3, 4, 40]):
        edges = [*starts, last or end]
        given = {
            "input_ids": torch.randint(0, 64, (1, edges[-1])),
            "position_ids": torch.cat([torch.arange(end - start) for start, end in pairwise(edges)])[None],
            "attention_mask": torch.zeros(1, 1, 1, 1),
            "packing": packing_of(edges, edges[-1], torch.device("cpu")),
        }
        with torch.autocast("cpu", torch.bfloat16):
            model.model(**given, use_cache=False).last_hidden_state.sum().backward()
    assert counters["stats"]["unique_graphs"] == 1
    assert torch.compiler.config.dynamic_sources.startswith("mine")  # what others want is kept
