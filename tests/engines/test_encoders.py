"""Encoders train with the numbers of plain transformers, for vectors, scores of pairs and labels."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from encode_row import encode_row, encoder_of
from encoder_cells import (
    CELLS,
    TASKS,
    EncoderSubject,
    encoder_tokenizer,
    encoder_verdicts,
    encoder_verdicts_together,
    load_encoder,
    tasks_of,
    text,
    write_encoder,
)
from peft import PeftModel
from tiers import tiered
from tiny_runs import run_training, write_jsonl
from tiny_types import tiny_config
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from type_cells import LORA, Verdict

from swift.config.sections import ModelSection
from swift.data.batch import collate
from swift.data.samples import TOKEN_TYPES, Encoded, Segment
from swift.errors import DataError, ModelError, UnsupportedLayout
from swift.models.encoders import EncoderInputs, encoder_head_modules
from swift.models.positions import check_longest
from swift.models.sequence import sequence_attention
from swift.models.source import open_source
from swift.parsing import config_from_mapping
from swift_objectives.encodings.reranker import Documents, PairEncoding

MECHANISMS = {
    "albert": "layers that share their weights",
    "bert": "token types, positions in a table",
    "deberta-v2": "relative positions: padded alone",
    "distilbert": "no token types",
    "electra": "embeddings of another width, a head of its own",
    "eurobert": "grouped heads, scores that are averaged over tokens",
    "gte": "a pooler beside the layers, matrices that files hold as one",
    "mobilebert": "embeddings of a token's neighbours: unpadded alone",
    "modernbert": "windows to both sides",
    "mpnet": "a bias by distance: padded alone",
    "roberta": "positions after the padding token",
    "t5": "the encoder of an encoder-decoder: vectors alone",
}
"""Types, and the mechanism that each stands for. `make encoders` tries all."""
PADDED_ONLY = {"deberta-v2", "mpnet", "t5"}
NAMES = [(name, task) for name in MECHANISMS for task in tasks_of(name)]
SHARDED = [("bert", "embedding"), ("albert", "reranker"), ("modernbert", "seq_cls"), ("deberta-v2", "seq_cls")]
QUICK = [("bert", "reranker"), ("gte", "seq_cls"), ("roberta", "seq_cls"), ("modernbert", "embedding")]


@pytest.mark.parametrize("named", tiered(NAMES, QUICK), ids="-".join)
def test_encoder_trains_like_transformers(named: tuple[str, str], tmp_path: Path) -> None:
    """Padded, without padding and with adapters, from the first loss to the export; other layouts are refused."""
    name, task = named
    found = encoder_verdicts(EncoderSubject(name, tmp_path, task))
    unpadded = found.pop("padding-free")
    if name == "mobilebert":
        assert unpadded == Verdict("equal")
        assert all(each.note.endswith("Type --data.padding_free true") for each in found.values())
        return
    assert found == dict.fromkeys(found, Verdict("equal"))
    hint = "Turn it on: --data.packing false --data.padding_free false"
    assert unpadded.note.endswith(hint) if name in PADDED_ONLY else unpadded == Verdict("equal")


def test_what_cannot_be_trained_is_told_before_training(tmp_path: Path) -> None:
    """A model whose own code fails on short texts, one that padding changes, and the scores of half a model."""
    funnel = EncoderSubject("funnel", tmp_path, "embedding")
    assert "FunnelModel fails on a text of 4 tokens" in funnel.run(CELLS[0]).note
    fnet = EncoderSubject("fnet", tmp_path, "embedding")
    assert fnet.run(CELLS[0]).note.endswith("when samples are padded. Use another model.")
    model = str(write_encoder("t5", tmp_path / "t5", "embedding"))
    rows = str(write_jsonl(tmp_path / "rows.jsonl", TASKS["seq_cls"].rows))
    words = ["sft", "--model", model, "--dataset", rows, "--num_labels", "3"]
    assert "no class for the scores of t5 encoders" in typed([*words, "--task_type", "seq_cls"], tmp_path).output
    assert "swift trains only its encoder" in typed(words[:-2], tmp_path).output


def test_samples_of_encoders_are_not_sharded() -> None:
    """Each token sees all of its sample, of which a process would have a part."""
    settings = config_from_mapping({"model.path": "m", "backend.name": "fsdp", "parallel.cp": 2}).config
    run: Any = SimpleNamespace(config=settings, topology=SimpleNamespace(device="cpu"))
    with pytest.raises(UnsupportedLayout, match="bert does not support sharded sequences: its tokens see those after"):
        sequence_attention(run, tiny_config("bert"))


@pytest.mark.full
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.processes > 1], ids=lambda cell: cell.name)
def test_encoder_trains_on_two_processes(cell: Any, tmp_path: Path) -> None:
    """FSDP2 and ZeRO-3 shard encoders, heads and shared layers included."""
    subjects = [EncoderSubject(name, tmp_path, task) for name, task in SHARDED]
    assert encoder_verdicts_together(cell, subjects) == [Verdict("equal")] * len(subjects)


def masked(name: str, folder: Path) -> Path:
    """Write an encoder as it is after pre-training: with a head for masked tokens alone."""
    config, tokenizer = tiny_config(name), encoder_tokenizer()
    config.pad_token_id, config.eos_token_id, config.bos_token_id = tokenizer.pad_token_id, None, None
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_pretrained_encoder_gets_a_head(tmp_path: Path) -> None:
    """The head and its pooler begin the same in every process, are trained whole beside adapters, and load in PEFT."""
    model = masked("bert", tmp_path / "model")
    rows = [{"text": text(n, 3), "label": n % 2} for n in range(4)]
    settings = {**LORA, "objective.name": "seq_cls", "model.num_labels": 2, "checkpoint.save_last": True}
    run = run_training(model, tmp_path / "out", rows, {**settings, "train.max_steps": 2, "optim.lr": 1e-2})
    source = open_source(ModelSection(path=str(model), task="seq_cls", num_labels=2), say=lambda _: None)
    built: Any = source.build(dtype=torch.float32)
    assert encoder_head_modules(built) == ["classifier", "bert.pooler"]
    assert torch.equal(source.read("bert.pooler.dense.weight"), built.bert.pooler.dense.weight)
    base = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    adapted = PeftModel.from_pretrained(base, run.folder / "last-checkpoint").eval()
    scores = [adapted(**AutoTokenizer.from_pretrained(model)(row["text"], return_tensors="pt")).logits for row in rows]
    lines = typed(["infer", str(run.folder), "--dataset", str(write_jsonl(tmp_path / "rows.jsonl", rows))], tmp_path)
    found = [json.loads(line)["scores"] for line in lines.output.splitlines() if line.startswith("{")]
    assert np.array(found) == pytest.approx(torch.cat(scores).detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("changes", [LORA, {}], ids=["LoRA", "full"])
def test_encoder_trains_in_bfloat16(changes: dict[str, Any], tmp_path: Path) -> None:
    """Frozen layers in bfloat16 and a head in float32 go together; the loss is near that of float32."""
    subject = EncoderSubject("bert", tmp_path, "seq_cls")
    settings = {**TASKS["seq_cls"].settings, **changes, "train.max_steps": 2, "model.dtype": "bfloat16"}
    run = run_training(subject.model, tmp_path / "out", TASKS["seq_cls"].rows, {**settings, "train.micro_batch": 6})
    assert run.losses[0] == pytest.approx(subject.expected.losses[0], rel=1e-2)


def test_roberta_counts_no_padding_token_in_a_text(tmp_path: Path) -> None:
    """Positions of samples that lie end to end are those of transformers, also where a text names the padding token."""
    model = load_encoder(write_encoder("roberta", tmp_path, "embedding"), "embedding")
    padding = model.config.pad_token_id
    rows = [[5, 6, padding, 7], [8, 9, 10]]
    samples = [
        Encoded(n, (Segment(np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=np.float32)),))
        for n, ids in enumerate(rows)
    ]
    positions = EncoderInputs(model).of(collate(samples, flat=True))["position_ids"][0].tolist()
    first = padding + 1
    assert positions == [first, first + 1, padding, first + 2, first, first + 1, first + 2]


def test_roberta_has_fewer_positions_than_rows(tmp_path: Path) -> None:
    """The rows of the table before the first position hold no token."""
    config = tiny_config("roberta")
    config.max_position_embeddings, config.pad_token_id = 514, 1
    assert check_longest(512, config, "roberta") is None
    with pytest.raises(DataError, match="has only 512 positions"):
        check_longest(513, config, "roberta")


def test_pairs_are_joined_by_the_tokenizer(tmp_path: Path) -> None:
    """Training and `swift infer` read a query with a document as transformers does; what is cut off is not the end."""
    model = write_encoder("bert", tmp_path / "model", "reranker")
    tokenizer = AutoTokenizer.from_pretrained(model)
    query, document = "a fox?", text(3, 4)
    made = tokenizer(query, document)
    encoding = PairEncoding(Documents(listwise=False))
    row = {"query": query, "document": document, "label": 1}
    ((whole,),) = (each.segments for each in encode_row(encoder_of(tokenizer, encoding), row))
    assert whole.input_ids.tolist() == made["input_ids"]
    assert whole.token_values[TOKEN_TYPES].tolist() == made["token_type_ids"]
    short = encoder_of(tokenizer, encoding, max_length=18, truncation="right")
    ((cut,),) = (each.segments for each in encode_row(short, row))
    assert cut.input_ids.tolist() == tokenizer(query, document, truncation="longest_first", max_length=18)["input_ids"]
    data = write_jsonl(tmp_path / "rows.jsonl", [{"query": query, "document": document}, {"text": query}])
    ended = typed(["infer", str(model), "--dataset", str(data)], tmp_path)
    scores = [json.loads(line)["score"] for line in ended.output.splitlines() if line.startswith("{")]
    plain = load_encoder(model, "reranker").eval()
    own = [plain(**tokenizer(*texts, return_tensors="pt")).logits.item() for texts in ((query, document), (query,))]
    assert scores == pytest.approx(own, abs=1e-5)
    rows = [dict(row) for row in TASKS["reranker"].rows]
    ended = typed(["eval", str(model), "--dataset", str(write_jsonl(tmp_path / "ranked.jsonl", rows))], tmp_path)
    better = [
        plain(**tokenizer(row["query"], row["positive"], return_tensors="pt")).logits.item()
        > plain(**tokenizer(row["query"], row["negative"], return_tensors="pt")).logits.item()
        for row in rows
    ]
    mrr = sum(1.0 if each else 0.5 for each in better) / len(rows)
    assert json.loads(ended.output.splitlines()[-1])["mrr"] == pytest.approx(mrr)


def test_vectors_are_pooled_as_the_folder_says(tmp_path: Path) -> None:
    """`modules.json` decides, else the mean; what the user types comes first."""
    model = write_encoder("bert", tmp_path, "embedding")

    def pooling(**settings: Any) -> str:
        section = ModelSection(path=str(model), task="embedding", **settings)
        return open_source(section, say=lambda _: None).pooling

    assert [pooling(), pooling(pooling="last")] == ["mean", "last"]
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (model / "modules.json").write_text(json.dumps(modules))
    assert [pooling(), pooling(pooling="mean")] == ["cls", "mean"]
    modules.append({"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="Dense"):
        pooling()


def test_vectors_of_an_export_are_those_of_automodel(tmp_path: Path) -> None:
    """A folder without a pooler makes the same vectors in transformers, which makes one up."""
    model = write_encoder("bert", tmp_path / "model", "embedding")
    settings = {
        **TASKS["embedding"].settings,
        "train.max_steps": 1,
        "export.to": "hf",
        "export.out": str(tmp_path / "o"),
    }
    run_training(model, tmp_path / "out", TASKS["embedding"].rows, settings)
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a fox"}])
    ended = typed(["infer", str(tmp_path / "o"), "--dataset", str(data)], tmp_path)
    (line,) = [json.loads(each) for each in ended.output.splitlines() if each.startswith("{")]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "o")("a fox", return_tensors="pt")
    hidden = AutoModel.from_pretrained(tmp_path / "o").eval()(**inputs).last_hidden_state[0].mean(0)
    assert line["vector"] == pytest.approx((hidden / hidden.norm()).tolist(), abs=1e-5)
