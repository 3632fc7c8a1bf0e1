"""Models with a head, and models of vectors: from training to a folder that transformers loads alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import typed
from safetensors.torch import load_file
from tiny_runs import conversations, run_training, write_model
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from swift.checkpoint.weights_location import find_weights
from swift.config.sections import ExportOptions
from swift.errors import ExportError, ModelError
from swift.export.objective import add_files_of_objective
from swift.export.plugins import HuggingFaceExporter
from swift.export.run import export_checkpoint
from swift.hookspecs import ExporterHooks
from swift.models.sentence_files import stored_pooling, stored_prompts, write_sentence_files
from swift_export_vllm.supported import check_exported
from swift_testing.objectives import install_objectives

OBJECTIVES = {"reward": "kit-scores", "seq_cls": "kit-scores", "value": "kit-values", "embedding": "kit-vectors"}
TOKENS = torch.arange(5, 35)[None]
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0, "optim.lr": 1e-2}


def trained(folder: Path, task: str, **changes: Any) -> Path:
    """The folder of a short run."""
    install_objectives()
    model = write_model(folder / "model", tie_word_embeddings=True)
    settings = {"model.task": task, "objective.name": OBJECTIVES[task], "checkpoint.save_last": True, **changes}
    return run_training(model, folder / "output", conversations(8), {"train.max_steps": 2, **settings}).folder


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("reward"), "reward")


def exported(run: Path, to: str = "hf", **options: Any) -> tuple[Path, dict[str, Any]]:
    folder = run.parent / f"exported-{to}"
    quiet = ExportOptions(out=folder, exist_ok=True, **{"verify": "transformers", **options})
    export_checkpoint(run, to=to, options=quiet, say=lambda _: None)
    report: dict[str, Any] = json.loads((folder / "verification.json").read_text())
    return folder, report


def test_reward_model_export_matches_scores(reward: Path) -> None:
    """A reward model is exported with its head and compared by its scores."""
    folder, report = exported(reward)
    assert report["outputs"]["values"] == report["outputs"]["prompts"]
    assert report["outputs"]["largest_difference"] < 1e-5
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForSequenceClassification"]
    assert config["num_labels"] == 1
    assert config["id2label"] == {"0": "LABEL_0"}
    weights = load_file(folder / "model.safetensors")
    assert weights["score.weight"].shape == (1, 64)
    assert not any("lm_head" in name for name in weights)
    assert not (folder / "generation_config.json").exists()
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    checkpoint = next(path for path in reward.iterdir() if path.name.startswith("checkpoint"))
    again = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    with torch.no_grad():
        assert torch.equal(model.eval()(TOKENS).logits, again.eval()(TOKENS).logits)


def test_export_of_export_keeps_its_kind(reward: Path) -> None:
    """An export is an export of the same kind when it is exported again."""
    folder, _ = exported(reward)
    out = folder.with_name("again")
    export_checkpoint(folder, to="hf", options=ExportOptions(out=out, verify="transformers"), say=lambda _: None)
    assert torch.equal(
        load_file(out / "model.safetensors")["score.weight"], load_file(folder / "model.safetensors")["score.weight"]
    )


def test_an_export_whose_scores_are_others_is_refused(reward: Path) -> None:
    class Forgetful(ExporterHooks):
        """Writes a configuration under which the same weights compute something else."""

        def swift_export(self, _: object, weights: Any, request: Any) -> Path:
            folder: Path = HuggingFaceExporter().swift_export(weights, request)
            config = json.loads((folder / "config.json").read_text())
            config["rms_norm_eps"] = 1.0
            (folder / "config.json").write_text(json.dumps(config))
            return folder

    with pytest.raises(ExportError, match="output 1 of test prompt"):
        export_checkpoint(
            reward,
            to="hf",
            options=ExportOptions(out=reward.parent / "forgetful", verify="transformers"),
            exporter=Forgetful(),
            say=lambda _: None,
        )
    assert not (reward.parent / "forgetful").exists()


@pytest.mark.full
def test_an_embedding_model_is_exported_without_any_head(tmp_path: Path) -> None:
    folder, report = exported(trained(tmp_path, "embedding", **{"model.pooling": "mean"}))
    assert report["outputs"]["values"] == 64 * report["outputs"]["prompts"]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3Model"]
    _, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert find_weights(str(folder)).weights.pooling == "mean"
    # As sentence-transformers reads it.
    modules = json.loads((folder / "modules.json").read_text())
    assert [(each["path"], each["type"].rpartition(".")[2]) for each in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 64
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens", "include_prompt"]


def test_reexport_keeps_pooling_and_prompts(tmp_path: Path) -> None:
    """A folder keeps its pooling and its prompts when it is exported again."""
    model = write_model(tmp_path / "model")
    folder = tmp_path / "vectors"
    AutoModel.from_pretrained(model).save_pretrained(folder)
    for file in [*model.glob("tokenizer*"), *model.glob("*.jinja")]:
        shutil.copy(file, folder)
    write_sentence_files(folder, size=64, pooling="mean")
    add_files_of_objective(folder, {"name": "embedding", "query_prompt": "Query: "}, model=None)
    again = tmp_path / "again"
    export_checkpoint(folder, to="hf", options=ExportOptions(out=again, verify="transformers"), say=lambda _: None)
    assert stored_pooling(again) == "mean"
    assert stored_prompts(again) == {"query": "Query: ", "document": ""}


def test_reranker_template_renders_query_and_document(
    tmp_path: Path,
) -> None:
    """The template of a reranker renders a query with a document and conversations as before."""
    folder = write_model(tmp_path / "model")
    before = AutoTokenizer.from_pretrained(folder)
    add_files_of_objective(folder, {"name": "reranker", "instruction": "Find the colour"}, model=None)
    after = AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "user", "content": "colour?"}, {"role": "assistant", "content": "blue"}]
    rendered = before.apply_chat_template(talk, tokenize=False)
    assert after.apply_chat_template(talk, tokenize=False) == rendered
    assert after.apply_chat_template(talk[:1], tokenize=False, add_generation_prompt=True) == (
        before.apply_chat_template(talk[:1], tokenize=False, add_generation_prompt=True)
    )
    pair: list[dict[str, Any]] = [{"role": "query", "content": "colour?"}, {"role": "document", "content": "blue"}]
    rendered = "<Instruct>: Find the colour\n<Query>: colour?\n<Document>: blue" + before.eos_token
    assert after.apply_chat_template(pair, tokenize=False) == rendered
    other = after.apply_chat_template(pair, tokenize=False, instruction="Rhyme")
    assert other == rendered.replace("Find the colour", "Rhyme")
    # As sentence-transformers has it.
    parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in pair]
    assert after.apply_chat_template(parts, tokenize=False) == rendered


@pytest.mark.full
def test_an_adapter_brings_its_head_and_is_merged_with_it(tmp_path: Path) -> None:
    run = trained(tmp_path, "seq_cls", **{**LORA, "model.num_labels": 3})
    adapter, _ = exported(run, "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS"
    assert "score" in config["modules_to_save"]
    from peft import PeftModel

    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", num_labels=3)
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    merged = AutoModelForSequenceClassification.from_pretrained(exported(run)[0]).eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(TOKENS).logits, merged(TOKENS).logits, atol=1e-5, rtol=1e-5)
    assert (found := find_weights(str(adapter)).weights).num_labels == 3
    assert found.task == "seq_cls"
    onward = trained(tmp_path / "onward", "seq_cls", **{**LORA, "model.num_labels": 3, "tuner.adapter": str(adapter)})
    assert (onward / "logging.jsonl").exists()


@pytest.mark.full
def test_adapter_without_head_is_refused_for_scoring(tmp_path: Path) -> None:
    """An adapter without a head is no beginning for a model with one."""
    install_objectives()
    model = write_model(tmp_path / "model")
    plain = run_training(
        model, tmp_path / "output", conversations(8), {**LORA, "train.max_steps": 1, "checkpoint.save_last": True}
    )
    adapter = next(path for path in plain.folder.iterdir() if path.name.startswith("checkpoint"))
    with pytest.raises(ModelError, match="was trained for CAUSAL_LM"):
        trained(tmp_path / "next", "reward", **{**LORA, "tuner.adapter": str(adapter)})


def test_reward_model_has_no_chat(reward: Path) -> None:
    folder, _ = exported(reward)
    for named in (reward, folder):
        ended = typed(["chat", str(named)], reward.parent)
        assert ended.code == 2
        assert "returns scores" in ended.output
        assert "swift export" in ended.output


def test_an_adapter_with_a_head_is_merged_before_it_is_served(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": str(tmp_path)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    ended = typed(["serve", str(adapter)], tmp_path)
    assert ended.code == 2
    assert "such models cannot be served with adapters" in ended.output
    assert "--to hf --out merged" in ended.output


def test_token_values_are_not_served_or_quantized(reward: Path, tmp_path: Path) -> None:
    """Values of tokens are not served and what is quantized generates text."""
    with pytest.raises(ExportError, match="does not support models of task"):
        check_exported(SimpleNamespace(task="value"))  # type: ignore[arg-type]  # all that it looks at
    options = ExportOptions(out=tmp_path / "small", quant="w8a8")
    with pytest.raises(ExportError, match="supports language models only, not models of task reward"):
        export_checkpoint(reward, to="vllm", options=options, say=lambda _: None)
