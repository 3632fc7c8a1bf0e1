"""Models come from folders, the hub cache or a configuration, and what is wrong with them is said in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_images import image_model
from tiny_models import SHARED, batch, configurations, tiny, write_architecture, write_tokenizer

from swift.config.sections import ModelSection
from swift.errors import ConfigError, ModelError
from swift.model_names import nearest_alias, resolve_name
from swift.models.classes import ENCODERS
from swift.models.source import HfSource, open_source
from swift.planning import model_config

torch.set_num_threads(1)


def opened(folder: Path, **options: object) -> HfSource:
    return open_source(ModelSection(path=str(folder), **options), say=lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_architecture(tmp_path)
    return tmp_path


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_weights_are_read_by_name_from_one_file_or_from_shards(tmp_path: Path, shard_size: str) -> None:
    model = write_architecture(tmp_path, "qwen3-moe", shard_size=shard_size)
    assert (tmp_path / "model.safetensors").is_file() == (shard_size == "5GB")
    source = opened(tmp_path)
    tensors = {name: source.read(name) for file in tmp_path.glob("*.safetensors") for name in load_file(file)}
    assert sorted(source.names()) == sorted(tensors)
    for name, tensor in tensors.items():
        assert source.shape(name) == tuple(tensor.shape)
    expert = model.model.layers[1].mlp.experts.gate_up_proj[2, :16]
    assert torch.equal(source.read("model.layers.1.mlp.experts.2.gate_proj.weight"), expert)


def test_what_is_built_computes_what_the_saved_model_computes(folder: Path) -> None:
    source = opened(folder)
    built = source.build(dtype=torch.float32)
    assert torch.equal(built(batch()).logits, tiny()(batch()).logits)
    assert source.build(dtype=torch.bfloat16).lm_head.weight.dtype == torch.bfloat16
    assert all(parameter.is_meta for parameter in source.build(dtype=torch.float32, weights=False).parameters())


@pytest.mark.parametrize("accelerate", [True, False])
def test_weights_go_straight_to_a_device_where_accelerate_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, accelerate: bool
) -> None:
    if not accelerate:
        monkeypatch.setattr("swift.models.source.find_spec", lambda name: None)
    elsewhere = opened(folder).build(dtype=torch.float32, device="cpu:0")  # for transformers another one than 'cpu'
    assert not hasattr(elsewhere, "hf_device_map")  # PEFT would ask it where adapters go
    for one, other in zip(elsewhere.parameters(), opened(folder).build(dtype=torch.float32).parameters(), strict=True):
        assert torch.equal(one, other)


def test_folder_without_base_prefix_uses_canonical_names(tmp_path: Path) -> None:
    """A folder without the base model's prefix is read under canonical names."""
    model = write_architecture(tmp_path, "gpt2")
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(opened(tmp_path).read("transformer.wte.weight"), model.transformer.wte.weight)


def test_tied_weights_have_one_name_even_where_both_are_on_disk(tmp_path: Path) -> None:
    write_architecture(tmp_path, "qwen3-tied")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "lm_head.weight" not in opened(tmp_path).names()


def test_fingerprint_changes_with_weight_and_architecture(folder: Path, tmp_path: Path) -> None:
    """The fingerprint changes with one weight and with the architecture."""
    before = opened(folder).fingerprint
    assert opened(folder).fingerprint == before
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("copy"))
    assert opened(copy).fingerprint == before

    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert opened(copy).fingerprint != before
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "0"}))
    assert opened(copy).fingerprint == before

    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] += 1e-3
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert opened(copy).fingerprint != before


def test_of_large_models_the_fingerprint_sees_every_tensor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swift.models.files.HASHED_WHOLE", 0)
    before, tensors = opened(folder).fingerprint, load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        changed = tensors | {name: tensors[name] + 1e-3}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        assert opened(folder).fingerprint != before


def test_random_weights_follow_seed_in_any_dtype(tmp_path: Path) -> None:
    """Random weights are those of the seed whatever the precision."""
    configurations()["qwen3-moe"].save_pretrained(tmp_path)
    section = ModelSection(path=str(tmp_path), random_weights=True)

    def source(seed: int) -> HfSource:
        return open_source(section, say=lambda _: None, seed=seed)

    torch.manual_seed(99)
    before = torch.get_rng_state()
    one, same, other = source(1).build(dtype=torch.float32), source(1).build(dtype=torch.bfloat16), source(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.lm_head.weight.bfloat16(), same.lm_head.weight)
    assert same.model.rotary_emb.inv_freq.dtype == torch.float32
    assert not torch.equal(one.lm_head.weight, other.read("lm_head.weight"))
    assert torch.equal(
        one.model.layers[0].mlp.experts.down_proj[3],
        source(1).read("model.layers.0.mlp.experts.3.down_proj.weight"),
    )
    assert source(1).fingerprint != other.fingerprint


def test_assets_make_a_folder_of_weights_a_model_again(folder: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    source, out = opened(folder, chat_template=template), tmp_path / "out"
    out.mkdir()
    save_file(
        {name: source.read(name) for name in source.names()}, out / "model.safetensors", metadata={"format": "pt"}
    )
    source.write_assets(out, "float32")
    assert torch.equal(transformers.AutoModelForCausalLM.from_pretrained(out)(batch()).logits, tiny()(batch()).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "w5"}], tokenize=False) == "[w5]"
    assert (out / "generation_config.json").is_file()
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def kinds_missing(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["layer_types"] = ["full_attention"] * 7
    (folder / "config.json").write_text(json.dumps(config))


def garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (drop("model.safetensors"), "no weights"),
        (drop("config.json"), "config.json is missing"),
        (drop("tokenizer.json"), "tokenizer.json is missing"),
        (pickled, "pickle"),
        (truncated, "truncated"),
        (garbage, "not a safetensors file"),
        (lambda folder: (folder / "config.json").write_text("{"), "malformed JSON"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "nothing"}'), "cannot be read"),
        (kinds_missing, r"validate_layer_type.*: .*must be equal"),
        (lambda folder: transformers.T5Config().save_pretrained(folder), "is a t5 model, an encoder-decoder"),
        (
            lambda folder: transformers.Qwen2_5OmniConfig().save_pretrained(folder),
            r"combines several models(.|\n)*Qwen2_5OmniThinkerForConditionalGeneration",
        ),
        (
            lambda folder: transformers.Kosmos2Config().save_pretrained(folder),
            "swift does not train Kosmos2ForConditionalGeneration: it does not put images among the tokens of its text",
        ),
        (
            lambda folder: transformers.ViTConfig().save_pretrained(folder),
            "ViTForImageClassification classifies",
        ),
    ],
)
def test_a_spoilt_folder_is_refused_with_the_reason(
    folder: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    spoil(folder)
    with pytest.raises(ModelError, match=sentence) as caught:
        opened(folder)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize("task", ["causal_lm", "reward", "value"])
def test_encoders_are_no_language_models(task: str, folder: Path) -> None:
    """The refusal names the three tasks that encoders have, also before a plan."""
    transformers.ModernBertConfig().save_pretrained(folder)
    sentence = r"an encoder \(modernbert\)\. swift trains encoders as embedding models, rerankers and classifiers"
    with pytest.raises(ModelError, match=sentence) as refused:
        open_source(ModelSection(path=str(folder), task=task), say=lambda _: None)
    assert "--task_type embedding, --task_type reranker, or --task_type seq_cls" in str(refused.value.hint)
    with pytest.raises(ModelError, match=sentence):
        model_config(str(folder), task)


def test_encoders_known_without_torch_are_masked_models() -> None:
    """The list that spares an import refuses nothing that `open_source` lets through."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    assert set(MODEL_FOR_MASKED_LM_MAPPING_NAMES) >= ENCODERS


def test_mistral4_is_a_text_model_listed_for_images(tmp_path: Path) -> None:
    """transformers lists Mistral4ForCausalLM with models for images alone."""
    config = transformers.Mistral4Config(
        **{**SHARED, "num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    torch.manual_seed(0)
    model = transformers.Mistral4ForCausalLM(config)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    source = opened(tmp_path)
    assert source.processor is None
    built = source.build(dtype=torch.float32)
    torch.testing.assert_close(built(batch()).logits, model(batch()).logits)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_architecture(tmp_path, shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=shard.name):
        opened(tmp_path)


def test_weights_that_are_not_all_there_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        opened(folder).build(dtype=torch.float32)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        opened(folder).read("model.layers.0.mlp.up_proj.weight")


def test_weight_shape_mismatch_is_refused(folder: Path) -> None:
    """Weights of another size than the configuration are refused."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(ModelError, match=r"proj.weight in .* has shape .*, but config.json requires \(.*40"):
        opened(folder).build(dtype=torch.float32)


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(folder: Path) -> None:
    write_tokenizer(folder, tokens=70)
    with pytest.raises(ModelError, match="70 tokens, but the model's vocabulary has 64"):
        _ = opened(folder).tokenizer


def test_unproducible_placeholders_may_exceed_vocabulary(folder: Path) -> None:
    """Placeholders that text cannot produce may lie beyond the vocabulary."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    said: list[str] = []
    source = open_source(ModelSection(path=str(folder)), say=said.append)
    assert len(source.tokenizer) == 65
    assert any("<image>" in line for line in said)


def test_invalid_chat_template_names_line(folder: Path, tmp_path: Path) -> None:
    """A chat template that does not parse is refused with its line."""
    template = tmp_path / "broken.jinja"
    template.write_text("{% for m in messages %}\n{{ m[ }}\n{% endfor %}")
    with pytest.raises(ConfigError, match="line 2"):
        _ = opened(folder, chat_template=template).tokenizer


def test_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Folder .* does not exist"):
        opened(tmp_path / "nothing")
    with pytest.raises(ModelError, match="No model was passed"):
        open_source(ModelSection(), say=lambda _: None)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which is offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def test_offline_and_not_cached_is_one_sentence_and_exit_code_2(hub: Path) -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match=r"Qwen/Qwen3-8B is not in the hub cache, and offline mode is on") as caught:
        open_source(ModelSection(path="qwen3-7b"), say=said.append)
    assert caught.value.exit_code == 2
    assert "using the nearest supported model, Qwen/Qwen3-8B" in said[0]


def test_a_hub_that_cannot_be_reached_is_one_sentence_too(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        opened(Path("some/model"))
    assert capfd.readouterr() == ("", "")


def test_a_model_in_the_hub_cache_is_found_offline(hub: Path) -> None:
    snapshot = hub / "models--some--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    write_architecture(snapshot)
    (hub / "models--some--model/refs").mkdir()
    (hub / "models--some--model/refs/main").write_text("abc")
    assert opened(Path("some/model")).folder == snapshot


def test_short_names_stand_for_released_models_and_say_so() -> None:
    assert resolve_name("qwen3-8b")[0] == "Qwen/Qwen3-8B"
    path, note = resolve_name("qwen/Qwen-72B")
    assert path == "Qwen/Qwen2.5-72B"
    assert note is not None
    assert "using the nearest supported model, Qwen/Qwen2.5-72B" in note
    assert resolve_name("my/own") == ("my/own", None)


def test_no_model_is_suggested_that_cannot_be_loaded() -> None:
    assert nearest_alias("Qwen/Qwen3-0.6B") == ""  # the model that was asked for, where the hub is out of reach
    assert nearest_alias("qwen3-06b") == " Did you mean 'qwen3-0.6b'?"
    assert "qwen-" not in nearest_alias("qwen-7b-x")


def test_what_the_models_code_freezes_stays_frozen(tmp_path: Path) -> None:
    """Loading in transformers makes every weight trainable, positions of an audio encoder too."""
    source = opened(image_model(tmp_path / "model", "qwen2_audio"))
    for weights in (True, False):
        model = source.build(dtype=torch.float32, weights=weights)
        fixed = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        assert fixed == ["model.audio_tower.embed_positions.weight"], weights
