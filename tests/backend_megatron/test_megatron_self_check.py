"""Megatron is compared with transformers before it trains: what it computes otherwise is refused on every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron_imported  # noqa: F401
import pytest
import torch
import transformers
from against_torch import MOE
from processes import on_processes, succeeded
from tiny_images import image_configuration
from tiny_runs import conversations

from swift.errors import UnsupportedLayout
from swift.parsing import config_from_mapping
from swift.toolkit import auto_class, name_map
from swift_backend_megatron import model as megatron_model
from swift_backend_megatron import self_check as megatron_check
from swift_backend_megatron.architectures import (
    ON_GPU,
    REFUSED,
    TRAINED,
    WITH_ENCODERS,
    as_refusal,
    check_architecture,
    not_known,
)
from swift_backend_megatron.probe_model import HIDDEN, VOCABULARY, WIDTH, WINDOW, probe_config
from swift_backend_megatron.self_check import excess_of, self_check
from swift_testing.subjects import SHAPE, write_model

Shape = tuple[str, Mapping[str, Any]]
"""Of a model: its architecture, and what its configuration has beside the kit's."""

SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPED = {**ROUTED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, **GROUPED,
}  # fmt: skip
LATENT_AND_HEAD = {**LATENT, "head_dim": 8}
GREEDY = {**LATENT_AND_HEAD, "topk_method": "greedy"}
SHARED = {**MOE, "shared_expert_intermediate_size": 48}
TYPES: dict[str, Shape] = {
    "cwm": ("Cwm", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    "deepseek_v2": ("DeepseekV2", {**GREEDY, "routed_scaling_factor": 16.0}),
    "deepseek_v3": ("DeepseekV3", LATENT_AND_HEAD),
    "dots1": ("Dots1", {**GROUPED, "norm_topk_prob": True}),
    "ernie4_5": ("Ernie4_5", {}),
    "glm4": ("Glm4", {"pad_token_id": 0}),
    "glm4_moe": ("Glm4Moe", {**GROUPED, "use_qk_norm": True}),
    "glm4_moe_lite": ("Glm4MoeLite", {**LATENT, **SPARSE}),
    "hy_v3": ("HYV3", {**MOE, **SPARSE}),
    "llama": ("Llama", {}),
    "minimax_m2": ("MiniMaxM2", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen2_moe": ("Qwen2Moe", SHARED),
    "qwen3": ("Qwen3", {}),
    "qwen3_moe": ("Qwen3Moe", MOE),
    "seed_oss": ("SeedOss", {}),
    "solar_open": ("SolarOpen", {**ROUTED, "n_group": 1, "topk_group": 1}),
}
"""A tiny model of each type that Megatron trains."""
ALSO: dict[str, Shape] = {
    "dense and routed layers in turn": ("Qwen3Moe", {**MOE, "decoder_sparse_step": 2}),
    "a dense layer by name": ("Qwen2Moe", {**SHARED, "mlp_only_layers": [0]}),
    "sums of experts not divided": ("Qwen3Moe", {**MOE, "norm_topk_prob": False}),
    "groups without group_limited_greedy": ("DeepseekV2", {**GREEDY, "n_group": 2}),
    "a sum that transformers ignores": ("DeepseekV2", {**GREEDY, "norm_topk_prob": True}),
    "another activation": ("Llama", {"hidden_act": "gelu"}),
    "a large epsilon": ("Llama", {"rms_norm_eps": 1e-3}),
    "tied": ("Qwen3", {"tie_word_embeddings": True}),
}
"""Settings that mcore-bridge reads otherwise than transformers, or not at all, and the backend passes to Megatron."""
WRONG: dict[str, tuple[Shape, str]] = {
    "dots1": (("Dots1", GROUPED), "dots1 with norm_topk_prob false"),
    "deepseek v3": (("DeepseekV3", {**LATENT_AND_HEAD, "norm_topk_prob": False}), "norm_topk_prob false"),
    "groups by their sum": (
        ("DeepseekV3", {**LATENT_AND_HEAD, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}),
        "n_group 4, topk_group 2",
    ),
    "groups by their best": (
        ("DeepseekV2", {**LATENT_AND_HEAD, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
        "n_group 2, topk_group 1",
    ),
    "clipped": (("Olmoe", {**TYPES["olmoe"][1], "clip_qkv": 0.1}), "clip_qkv 0.1"),
}
"""What Megatron computes otherwise: refused by name."""
BROKEN: dict[str, tuple[Shape, dict[str, Any]]] = {
    "rope": (TYPES["qwen3"], {"rotary_base": 20000}),
    "epsilon": (TYPES["qwen3"], {"layernorm_epsilon": 1e-4}),
    "windows": (TYPES["mistral"], {"window_size": "12,0"}),
    "scaling of experts": (TYPES["qwen3_moe"], {"moe_router_topk_scaling_factor": 1.5}),
    "order of softmax": (TYPES["qwen3_moe"], {"moe_router_pre_softmax": False}),
    "correction": (TYPES["deepseek_v3"], {"moe_router_num_groups": 2, "moe_router_group_topk": 1}),
}
"""Settings of Megatron that no list names, made wrong."""
DIFFERENT = "otherwise than transformers: token log-probabilities"
Check = Callable[[Shape], str]


def source_of(shape: Shape) -> Any:
    """Return what the check needs of a model's source."""
    architecture, changes = shape
    return source_with(getattr(transformers, f"{architecture}Config")(**{**SHAPE, **changes}))


def source_with(config: Any) -> Any:
    with torch.device("meta"):
        made = auto_class(config).from_config(config)
    return SimpleNamespace(config=config, names=name_map(made).names)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", architecture="Qwen3Moe", **MOE)


@contextmanager
def run_on(model: Path, plan: Mapping[str, Any]) -> Iterator[tuple[Any, Check]]:
    """Yield a run in this layout, and what returns the message and hint with which it refuses a model."""
    from swift.train.prepare import open_job

    settings = {"model.path": str(model), "tuner.kind": "full", "backend.name": "megatron", "train.global_batch": 4}
    settings |= {"logging.output": str(model.parent / "out"), **plan}
    with open_job(config_from_mapping(settings), rows=conversations(4)) as job:

        def refusal(shape: Shape) -> str:
            megatron_check._PASSED.clear()
            try:
                self_check(job.run, source_of(shape))
            except UnsupportedLayout as refused:
                return str(refused)
            return ""

        yield job.run, refusal


def refusals(model: Path, shapes: Mapping[str, Shape], plan: Mapping[str, Any]) -> dict[str, str]:
    with run_on(model, plan) as (_, refusal):
        return {name: refusal(shape) for name, shape in shapes.items()}


def test_trained_types_pass_the_check(model: Path) -> None:
    """Every type that messages name, and settings that mcore-bridge alone would get wrong."""
    assert sorted(TYPES) == sorted(TRAINED)
    (found,) = succeeded(on_processes(1, partial(refusals, model, {**TYPES, **ALSO}, {}))[0])
    assert found == dict.fromkeys([*TYPES, *ALSO], "")


LAYOUTS: dict[str, dict[str, Any]] = {
    "tensors": {"parallel.tp": 2},
    "stages": {"parallel.pp": 2},
    "experts": {"parallel.ep": 2},
    "sequences, packed": {"parallel.cp": 2, "data.packing": True, "data.max_length": 128},
}


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_healthy_models_pass_in_every_layout(model: Path, layout: str) -> None:
    chosen = ("qwen3_moe", "deepseek_v3") if layout == "experts" else ("qwen3", "qwen3_moe", "mistral", "glm4")
    shapes = {name: TYPES[name] for name in chosen}
    (found,) = on_processes(2, partial(refusals, model, shapes, LAYOUTS[layout]))
    assert succeeded(found) == [dict.fromkeys(chosen, "")] * 2


def test_wrong_models_are_refused_by_name_and_by_the_check(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check finds what the list names, without the list."""
    shapes = {name: shape for name, (shape, _) in WRONG.items()}
    named = partial(refusals, model, shapes, {})

    def unlisted() -> dict[str, str]:
        monkeypatch.setattr(megatron_model, "check_settings", lambda *_: None)
        return refusals(model, shapes, {})

    by_name, by_check = (succeeded(each)[0] for each in on_processes(1, named, unlisted, fresh=True))
    for name, (_, setting) in WRONG.items():
        assert setting in by_name[name]
        assert DIFFERENT in by_check[name]
        assert "--backend fsdp" in by_check[name]


def test_broken_megatron_is_refused_on_every_process(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that no list names; the last stage alone sees the difference."""
    right = megatron_model.settings_of_files

    def broken() -> dict[str, str]:
        found = {}
        with run_on(model, {"parallel.pp": 2}) as (_, refusal):
            for name, (shape, wrong) in BROKEN.items():
                monkeypatch.setattr(megatron_model, "settings_of_files", lambda *each, w=wrong: right(*each) | w)
                found[name] = refusal(shape)
        return found

    (found,) = on_processes(2, broken, fresh=True)
    for process in succeeded(found):
        assert {name: DIFFERENT in message for name, message in process.items()} == dict.fromkeys(BROKEN, True)


def test_check_leaves_random_numbers_alone(model: Path) -> None:
    """Of a model with a vision encoder, whose weights transformers draws."""

    def states() -> bool:
        from megatron.core.tensor_parallel import get_cuda_rng_tracker

        with run_on(model, {}) as (run, _):
            before = torch.get_rng_state(), get_cuda_rng_tracker().get_states()
            self_check(run, source_with(image_configuration("qwen2_vl")[0]))
            after = torch.get_rng_state(), get_cuda_rng_tracker().get_states()
        same = {name: torch.equal(state, after[1][name]) for name, state in before[1].items()}
        return torch.equal(before[0], after[0]) and all(same.values())

    assert succeeded(on_processes(1, states)[0]) == [True]


RELEASED: dict[str, Shape] = {
    # DeepSeek-V3, Qwen3-30B-A3B and Llama-3-70B in the sizes of their layers.
    "deepseek_v3": ("DeepseekV3", {"num_hidden_layers": 6}),
    "qwen3_moe": (
        "Qwen3Moe",
        {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
         "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_hidden_layers": 4, "norm_topk_prob": True},
    ),
    "llama": (
        "Llama",
        {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
         "num_hidden_layers": 4, "vocab_size": 128256, "pad_token_id": 128004},
    ),
}  # fmt: skip


def released(name: str) -> Any:
    architecture, changes = RELEASED[name]
    return source_with(getattr(transformers, f"{architecture}Config")(**changes))


@pytest.mark.full
def test_released_sizes_are_checked_by_small_models(model: Path) -> None:
    def checked() -> int:
        with run_on(model, {"parallel.tp": 2, "parallel.pp": 2}) as (run, _):
            for name in RELEASED:
                self_check(run, released(name))
        return len(RELEASED)

    assert succeeded(on_processes(4, checked)[0]) == [3] * 4


def test_probe_keeps_settings_and_reduces_sizes() -> None:
    """One layer of each kind is kept; what decides about the mathematics stays."""
    source = released("deepseek_v3")
    probe = probe_config(source, SimpleNamespace(tp=2, etp=1, pp=1, vpp=1))
    assert probe.num_hidden_layers == 4  # three dense ones, and the first with experts
    assert (probe.hidden_size, probe.moe_intermediate_size) == (HIDDEN, WIDTH * 2)
    assert (probe.num_attention_heads, probe.num_key_value_heads, probe.vocab_size) == (4, 4, VOCABULARY * 2)
    kept = ("n_group", "topk_group", "num_experts_per_tok", "n_routed_experts", "routed_scaling_factor", "v_head_dim")
    assert [getattr(probe, name) for name in kept] == [getattr(source.config, name) for name in kept]
    windows = source_of(("Qwen2", {"num_hidden_layers": 6, "use_sliding_window": True, "max_window_layers": 3}))
    probe = probe_config(windows, SimpleNamespace(tp=1, etp=1, pp=2, vpp=1))
    assert probe.sliding_window == WINDOW
    assert probe.layer_types == ["full_attention"] * 3 + ["sliding_attention"]


def test_low_precision_tolerates_its_own_rounding() -> None:
    """A few tokens may go to other experts; a difference of all of them is none of rounding."""
    expected = torch.linspace(-8, -1, 40)
    rounded = expected + 0.01
    flipped = expected + 0.01 * (torch.arange(40) % 2 * 2 - 1)
    flipped[5] += 1.0
    assert excess_of(flipped, expected, rounded) < 1 < excess_of(expected + 0.05, expected, rounded)
    assert excess_of(expected + 1e-5, expected, None) < 1 < excess_of(expected + 1e-3, expected, None)


@pytest.mark.parametrize("kind", ["Gemma4Text", "DeepseekV32", "Qwen3_5Text", "GptOss", "NemotronH", "Phi3"])
def test_untrained_types_are_refused_before_weights_load(kind: str) -> None:
    """Also those whose sizes differ by layer, and those that mcore-bridge names."""
    config = getattr(transformers, f"{kind}Config")()
    run = SimpleNamespace(planned_only=False, config=SimpleNamespace(data=SimpleNamespace(max_length=64)))
    with pytest.raises(UnsupportedLayout, match=f"does not train .*{config.model_type}") as refused:
        check_architecture(run, config)
    assert "--backend fsdp" in (refused.value.hint or "")


def test_failure_to_build_is_a_refusal() -> None:
    """What Megatron or the bridge lacks is shown as such, with its cause, and not as an internal error."""
    cannot = pytest.raises(UnsupportedLayout, match="cannot build gpt9 under this plan: FLA is not installed")
    with cannot as refused, as_refusal("gpt9"):
        raise ImportError("FLA is not installed.")
    assert isinstance(refused.value.__cause__, ImportError)


def test_known_types_are_those_that_train() -> None:
    listed = not_known("qwen9").message.partition("It trains: ")[2].rstrip(".").split(", ")
    assert listed == sorted({*TRAINED, *WITH_ENCODERS})
    assert not {*REFUSED, *ON_GPU} & {*listed}
