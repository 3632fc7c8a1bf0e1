"""Views of real transformers architectures against their own plain forward pass, sample by sample."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tiny_models import HEADS, Watch, encoded

from swift.contracts import Need
from swift.data.batch import collate
from swift.data.samples import Encoded
from swift.errors import ModelError
from swift.models.attention import choose_attention
from swift.models.view import ViewModule

torch.set_num_threads(1)

NEEDS = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.MEAN_LOGPS})
# The range is large, so that attention matters to the loss.
SMALL = {**HEADS, "vocab_size": 101, "max_position_embeddings": 128, "initializer_range": 0.3}
WINDOW = {"sliding_window": 6}
MODELS = {
    "qwen3": lambda: transformers.Qwen3Config(**SMALL),
    "qwen3 with windows": lambda: transformers.Qwen3Config(
        **SMALL, **WINDOW, use_sliding_window=True, max_window_layers=1
    ),
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral with windows": lambda: transformers.MistralConfig(**SMALL, **WINDOW),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, **WINDOW, query_pre_attn_scalar=8, final_logit_softcapping=5.0
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, **WINDOW),
    "qwen3 moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24
    ),
    "cohere": lambda: transformers.CohereConfig(**SMALL, logit_scale=0.25),
    "granite": lambda: transformers.GraniteConfig(**SMALL, logits_scaling=4.0),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **{k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "head_dim")}
    ),
}  # fmt: skip


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]())
    return model.eval()


def samples(lengths=(9, 14, 3, 1, 11)) -> list[Encoded]:
    random = np.random.default_rng(0)
    rows = [random.integers(3, 101, length) for length in lengths]
    weights = [(random.integers(0, 2, length) * random.random(length)).astype(np.float32) for length in lengths]
    for each in weights:
        each[0] = 0
    return encoded(rows, weights)


def attention(model, *, flat: bool, requested: str = "auto"):
    return choose_attention(requested, model.config, flat=flat, device="cpu", dtype=torch.float32)


def plain_loss(model, sample: Encoded) -> torch.Tensor:
    """Weighted negative log-likelihood by the model's own forward pass."""
    segment = sample.segments[0]
    ids = torch.from_numpy(segment.input_ids.astype(np.int64))[None]
    logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return -(logps * torch.from_numpy(segment.weights)[1:]).sum()


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_loss_and_gradients(model, viewed: ViewModule, *, flat: bool, pad_to_multiple: int = 1) -> None:
    expected = sum(plain_loss(model, sample) for sample in samples())
    expected.backward()
    reference = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    batch = collate(samples(), flat=flat, pad_to_multiple=pad_to_multiple)
    loss = -(viewed(batch, {Need.TOKEN_LOGPS}).token_logps * batch.weights).sum()
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    found = gradients(model)
    assert found.keys() == reference.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient,
            reference[name],
            rtol=1e-4,
            atol=2e-5 * reference[name].abs().max().item() + 1e-6,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flat", [True, False], ids=["end to end", "padded"])
def test_losses_and_gradients_equal_those_of_each_sample_alone(name, flat):
    model = build(name)
    said = []
    viewed = ViewModule(model, attention=attention(model, flat=flat), say=said.append)
    assert not said
    assert_same_loss_and_gradients(model, viewed, flat=flat, pad_to_multiple=8)


def test_batch_normalization_keeps_its_statistics_in_training():
    """Vision encoders of timm have it: statistics of a micro-batch would make its samples depend on each other."""
    model = build("qwen3")
    model.norm = torch.nn.BatchNorm2d(3)
    viewed = ViewModule(model, attention=attention(model, flat=False))
    viewed.train()
    assert model.training
    assert not model.norm.training


@pytest.mark.parametrize("name", ["qwen3", "mistral with windows", "gpt2"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_keeps_packed_samples_apart(name, reentrant):
    model = build(name)
    viewed = ViewModule(model, attention=attention(model, flat=True))
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    if reentrant:
        model.enable_input_require_grads()
    assert_same_loss_and_gradients(model, viewed, flat=True)


@pytest.mark.parametrize("requested", ["sdpa", "eager"])
def test_all_attention_implementations_match(requested):
    """Every attention implementation gives the same numbers."""
    model = build("qwen3")
    viewed = ViewModule(model, attention=attention(model, flat=True, requested=requested))
    assert_same_loss_and_gradients(model, viewed, flat=True)


def test_packed_samples_build_no_quadratic_mask():
    """No mask of tokens times tokens is built for packed samples."""
    model = build("mistral with windows")
    viewed = ViewModule(model, attention=attention(model, flat=True))
    batch = collate(samples([30, 40, 30]), flat=True)
    with Watch() as watch:
        viewed(batch, {Need.TOKEN_LOGPS}).token_logps.sum().backward()
    assert not [shape for shape in watch.shapes if shape.count(100) >= 2]


def test_accuracy_and_vocab_means_match_full_logits():
    """Accuracy and vocabulary means are those of the own logits."""
    model = build("qwen3")
    viewed = ViewModule(model, attention=attention(model, flat=False))
    batch = collate(samples(), flat=False)
    view = viewed(batch, NEEDS)
    logits = model(input_ids=batch.input_ids).logits
    counts = batch.weights != 0
    assert torch.equal(view.token_correct[counts], (logits.argmax(-1) == batch.targets)[counts].float())
    torch.testing.assert_close(view.mean_logps[counts], logits.log_softmax(-1).mean(-1)[counts])
    assert not view.token_logps[~counts].any()


def test_unknown_view_is_refused_by_name():
    """A view that a model does not have is refused by its name."""
    model = build("llama")
    viewed = ViewModule(model, attention=attention(model, flat=False))
    with pytest.raises(ModelError, match="scores"):
        viewed(collate(samples([5]), flat=False), {Need.SCORES})


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["q_proj", "lm_head"]], ids=["body", "head too"])
def test_adapters_on_body_and_head_match_plain_forward(targets):
    """Adapters on body and head train as in the own forward pass."""
    torch.manual_seed(0)
    model = get_peft_model(build("llama"), LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
    viewed = ViewModule(model, attention=attention(model, flat=True))
    assert_same_loss_and_gradients(model, viewed, flat=True)
    assert all("lora" in name for name in gradients(model))


def test_zero_weight_micro_batch_gives_zero_gradients():
    """A micro-batch without any weight reaches every parameter with zeros."""
    model = build("qwen3")
    viewed = ViewModule(model, attention=attention(model, flat=True))
    batch = collate(samples(), flat=True)
    batch.weights.zero_()
    viewed(batch, {Need.TOKEN_LOGPS}).token_logps.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


class Squared(transformers.LlamaForCausalLM):
    """A head that does something that no configuration tells."""

    def forward(self, **inputs):
        output = super().forward(**inputs)
        output.logits = output.logits + 0.1 * output.logits**2
        return output


def test_unknown_head_falls_back_to_model_with_note():
    """A head that is not understood is left to the model and reported."""
    torch.manual_seed(0)
    model = Squared(MODELS["llama"]()).eval()
    said = []
    viewed = ViewModule(model, attention=attention(model, flat=True), say=said.append)
    assert "Squared" in said[0]
    assert_same_loss_and_gradients(model, viewed, flat=True)


def test_a_model_that_mixes_packed_samples_is_refused():
    model = build("qwen3")
    layer = model.model.layers[0]
    forward = layer.forward
    layer.forward = lambda hidden, **kwargs: forward(hidden + hidden.cumsum(1), **kwargs)
    with pytest.raises(ModelError, match="packed"):
        ViewModule(model, attention=attention(model, flat=True))


def test_the_check_leaves_modes_and_random_state_as_they_were():
    model = build("qwen3").train()
    model.lm_head.eval()
    state = torch.get_rng_state()
    ViewModule(model, attention=attention(model, flat=True))
    assert model.training
    assert not model.lm_head.training
    assert torch.equal(state, torch.get_rng_state())


def test_meta_model_is_checked_after_loading():
    """A model on the meta device is checked once its weights are there."""
    real = build("qwen3")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(MODELS["qwen3"]())
    viewed = ViewModule(model, attention=attention(model, flat=True))
    viewed.model = copy.deepcopy(real)
    viewed.model.set_attn_implementation(viewed.attention.implementation)
    viewed.self_check()
    assert not viewed.own_logits


FEW = {name: value for name, value in SMALL.items() if name != "head_dim"}
LLAMA4 = {
    **SMALL, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "no_rope_layers": [1, 0],
    "initializer_range": 0.1,
}  # fmt: skip


def llama4(**settings):
    torch.manual_seed(0)
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**LLAMA4, **settings)).eval()


@pytest.mark.parametrize("limits", [(8, 4), (8192, 8192)], ids=["short", "released"])
def test_packed_llama4_equals_samples_alone(limits):
    """Chunks and scales count from the beginning of a row: the decoder is called for each sample."""
    model = llama4(attention_chunk_size=limits[0], floor_scale=limits[1])
    viewed = ViewModule(model, attention=attention(model, flat=True), say=lambda _: None)
    assert_same_loss_and_gradients(model, viewed, flat=True, pad_to_multiple=8)


def test_padded_llama4_equals_samples_alone():
    model = llama4(attention_chunk_size=8, floor_scale=4)
    viewed = ViewModule(model, attention=attention(model, flat=False), say=lambda _: None)
    assert_same_loss_and_gradients(model, viewed, flat=False, pad_to_multiple=8)


RELEASED = {
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=4096),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=8),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL),
    "phi3 longrope": lambda: transformers.Phi3Config(
        **FEW, original_max_position_embeddings=64, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4,
        "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 64},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_windows_of_released_size_are_packed_and_equal(name):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(RELEASED[name]()).eval()
    viewed = ViewModule(model, attention=attention(model, flat=True))
    assert_same_loss_and_gradients(model, viewed, flat=True)


def scale_long_rows(hidden, window):
    return hidden * (1.5 if hidden.shape[1] > window else 1.0)


def leak_first_token(hidden, window):
    """What a row begins with reaches all tokens from this position on."""
    return torch.cat([hidden[:, :window], hidden[:, window:] + hidden[:, :1]], dim=1)


@pytest.fixture
def faulty_layers(monkeypatch):
    """Return how to put a fault into Mistral's layers; the window is of released size, which no probe reaches."""
    layer = transformers.models.mistral.modeling_mistral.MistralDecoderLayer
    forward = layer.forward

    def put(fault):
        def faulty(self, hidden_states, **kwargs):
            return forward(self, fault(hidden_states, self.self_attn.config.sliding_window), **kwargs)

        monkeypatch.setattr(layer, "forward", faulty)
        torch.manual_seed(0)
        return transformers.MistralForCausalLM(RELEASED["mistral"]())

    return put


def test_fault_beyond_a_window_is_refused_when_padded(faulty_layers):
    model = faulty_layers(scale_long_rows)
    with pytest.raises(ModelError, match=r"in rows longer than sliding_window 4,096") as caught:
        ViewModule(model, attention=attention(model, flat=False))
    assert "--data.padding_free true" in str(caught.value)


def test_leak_beyond_a_window_is_refused_when_packed(faulty_layers, monkeypatch):
    """Where modules may not be called sample by sample; where they may, each layer is."""
    model = faulty_layers(leak_first_token)
    viewed = ViewModule(model, attention=attention(model, flat=True))
    assert {type(module).__name__ for module in viewed.by_sample} == {"MistralDecoderLayer"}
    monkeypatch.setattr(ViewModule, "separates", False)
    with pytest.raises(ModelError, match=r"in rows longer than sliding_window 4,096") as caught:
        ViewModule(faulty_layers(leak_first_token), attention=attention(model, flat=True))
    assert "--data.packing false" in str(caught.value)


class OneSize(transformers.MistralModel):
    """Code of a model that takes no other configuration."""

    def __init__(self, config):
        if config.vocab_size != SMALL["vocab_size"] or config.sliding_window != 4096:
            raise ValueError("This is for one size only.")
        super().__init__(config)


def test_packing_is_refused_where_limits_cannot_be_probed():
    model = transformers.MistralForCausalLM(RELEASED["mistral"]())
    model.model = OneSize(model.config)
    with pytest.raises(ModelError, match="cannot be checked"):
        ViewModule(model, attention=attention(model, flat=True))
    ViewModule(model, attention=attention(model, flat=False))


def test_a_model_that_sees_later_tokens_is_refused():
    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=101, d_model=32, d_inner=48, n_layer=2, n_head=4, initializer_range=0.3
    )  # fmt: skip
    model = transformers.XLNetLMHeadModel(config)
    with pytest.raises(ModelError, match="depends on the tokens after it"):
        ViewModule(model, attention=attention(model, flat=False), say=lambda _: None)


def test_probes_stay_within_the_vocabulary_of_logits():
    """CPM-Ant embeds tokens of prompts, which it predicts none of."""
    config = transformers.CpmAntConfig(
        vocab_size=101, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48, num_hidden_layers=2,
        prompt_length=4, prompt_types=8, segment_types=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.CpmAntForCausalLM(config)
    try:
        viewed = ViewModule(model, attention=attention(model, flat=False), say=lambda _: None)
    except ModelError:
        return  # refused in a sentence
    assert viewed.probe((7, 4)).input_ids.max() < 101
