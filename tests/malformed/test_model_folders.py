"""Model folders with files that are damaged, hostile or do not belong together."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import spoil
from hypothesis import given
from hypothesis import strategies as st
from judge import CANARY, Case, Expected, judge, sampled
from spoil import BAD, NOT_A_FILE, Spoil, of_header, of_tensors
from strategies import bad_file, examples, not_an_object, wrong

from swift.models.sentence_files import write_sentence_files

INFER = ["infer", "model", "--prompt", "hello", "--max_new_tokens", "2"]
TRAIN = [
    *("sft", "--model", "model", "--dataset", "data.jsonl", "--max_steps", "1", "--tuner.kind", "full"),
    *("--backend.device", "cpu", "--data.workers", "1", "--report_to", "jsonl", "--checkpoint.save_last", "false"),
]
SAMPLE = ["config", "show", "sft", "--model", "model", "--dataset", "data.jsonl", "--sample", "1"]
EXPORT = ["export", "model", "--out", "out", "--verify", "none"]
RANDOM = [*TRAIN, "--model.random_weights", "true"]
COMMANDS = (INFER, SAMPLE, EXPORT, TRAIN)
commands = st.sampled_from((*COMMANDS, RANDOM))


def case(
    name: str, change: Spoil, *names: str, argv: Sequence[str] = INFER, expected: Expected = "refused", file: str = ""
) -> Case:
    """A case that changes the folder `model`, or one file of it."""

    def build(folder: Path) -> Sequence[str]:
        change(folder / "model" / file if file else folder / "model")
        return argv

    return Case(f"{name} ({argv[0]})", build, expected, names)


def of_config(key: str, value: Any) -> Spoil:
    return lambda model: spoil.edit(model / "config.json", **{key: value})


SIZES = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings"""


@examples(40)
@given(st.sampled_from(SIZES.split()), wrong("null", "number") | st.sampled_from((0, -3, 2.5, 10**9)), commands)
def test_invalid_size_of_a_model_is_refused(template: Path, key: str, value: Any, argv: list[str]) -> None:
    free = (key, value) == ("max_position_embeddings", 10**9) or (argv is RANDOM and key == "intermediate_size")
    judge(
        case(key, of_config(key, value), "config.json", argv=argv, expected="either" if free else "refused"), template
    )


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@examples(40)
@given(st.sampled_from(FILES), bad_file, st.sampled_from(COMMANDS[:3]))
def test_bad_file_of_a_model_is_refused(template: Path, file: str, how: str, argv: list[str]) -> None:
    missing = how == "a link to nothing" and file in FILES[2:]
    either = missing or (file == FILES[3] and (how == "a number of a million digits" or argv is not INFER))
    names = () if missing or either else (file,)
    judge(case(how, BAD[how], *names, argv=argv, file=file, expected="either" if either else "refused"), template)


OTHERS = """model.safetensors model.safetensors.index.json chat_template.jinja added_tokens.json vocab.json
    special_tokens_map.json merges.txt tokenizer.model"""


@examples(20)
@given(st.sampled_from(OTHERS.split()), st.sampled_from(sorted(NOT_A_FILE)))
def test_model_file_that_is_no_file_is_refused(template: Path, file: str, how: str) -> None:
    expected: Expected = "either" if "link to nothing" in how or "itself" in how or "GiB" in how else "refused"
    judge(case(f"{file} is {how}", NOT_A_FILE[how], "model", file=file, expected=expected), template)


@examples(15)
@given(
    st.sampled_from(("special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json")),
    not_an_object.filter(lambda how: how not in ("cut off", "UTF-16")),
)
def test_model_file_that_is_no_object_is_refused(template: Path, file: str, how: str) -> None:
    judge(case(f"{file} is {how}", BAD[how], file, file=file), template)


REFUSED: tuple[tuple[str, Any], ...] = (
    ("rms_norm_eps", math.nan), ("attention_dropout", -1.0), ("model_type", "nothing"), ("hidden_act", "nothing"),
    ("attn_implementation", "somebody/kernel"), ("tie_word_embeddings", "yes"), ("num_attention_heads", 3),
    ("num_hidden_layers", 3), ("head_dim", 32), ("text_config", {"num_hidden_layers": 10**9}),
    ("quantization_config", {"quant_method": "nothing"}), ("is_encoder_decoder", True), ("architectures", "Qwen3"),
    ("dtype", "float99"), ("eos_token_id", "x"),
)  # fmt: skip


def tokenizer_files() -> Iterator[Case]:
    file = "tokenizer_config.json"
    change = lambda path: spoil.edit(path, gguf_file=["/etc/passwd"])  # noqa: E731
    yield case(f"{file} names a file", change, file, "gguf_file", file=file)
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        yield case(f"{file} is not there", Path.unlink, "model", file=file)


EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "one is missing": lambda all: all.pop(NORM) is None,
    "none": lambda _: {},
    "of another shape": lambda all: all.update({NORM: all[NORM][:7].clone()}),
    "transposed": lambda all: all.update({EMBEDDING: all[EMBEDDING].T.contiguous()}),
    "not a number": lambda all: all[EMBEDDING][3].fill_(math.nan) is None,
    "infinite": lambda all: all[NORM][3:4].fill_(math.inf) is None,
    "whole numbers": lambda all: all.update({EMBEDDING: all[EMBEDDING].long()}),
}
HEADER: dict[str, Callable[[dict[str, Any]], object]] = {
    "overlapping": lambda head: head[NORM].update(data_offsets=[o - 4 for o in head[NORM]["data_offsets"]]),
    "offsets the wrong way round": lambda head: head[NORM]["data_offsets"].reverse(),
    "a shape of many dimensions": lambda head: head[NORM].update(shape=[1] * 100_000 + [64]),
    "a shape without bounds": lambda head: head[NORM].update(shape=[1 << 62, 1 << 62]),
    "a header without end": lambda _: b"[" * spoil.DEEP,
    "a header of bytes": lambda _: bytes(range(256)),
}


def weight_files() -> Iterator[Case]:
    file = "model.safetensors"
    for number, (name, change) in enumerate(TENSORS.items()):
        argv = (INFER, EXPORT, TRAIN)[number % 3]
        yield case(f"weights: {name}", of_tensors(change), "model", argv=argv, file=file)
    for name, change in HEADER.items():
        yield case(f"weights: {name}", of_header(change), file, *([NORM] if name == "overlapping" else []), file=file)
    for name, spoilt, reason in (
        ("longer than its header", lambda path: path.write_bytes(path.read_bytes() + b"xx"), "truncated or altered"),
        ("cut off", lambda path: path.write_bytes(path.read_bytes()[:-3]), "truncated or altered"),
        ("a header of gigabytes", of_header(lambda _: b"{}", length=1 << 40), "header"),
        ("seven bytes", lambda path: path.write_bytes(b"1234567"), file),
    ):
        yield case(f"weights: {name}", spoilt, reason, file=file)


@examples(25)
@given(
    st.sampled_from((("shape",), ("shape", 0), ("dtype",), ("data_offsets",), ("data_offsets", 0), ())),
    wrong() | st.just(spoil.GONE),
)
def test_wrong_value_in_a_header_is_refused(template: Path, keys: spoil.Keys, value: Any) -> None:
    change = of_header(lambda head: spoil.put(head, (NORM, *keys), value))
    judge(case(f"{keys}", change, "model", file="model.safetensors"), template)


INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"


def _sharded(weight_map: Callable[[dict[str, str]], Any]) -> Spoil:
    def build(model: Path) -> None:
        names = list(spoil.tensors_of(model / "model.safetensors"))
        (model / "model.safetensors").rename(model / SHARD)
        content = {"metadata": {"total_size": 1}, "weight_map": weight_map(dict.fromkeys(names, SHARD))}
        (model / INDEX).write_text(json.dumps(content))

    return build


SHARDS = ("../../etc/passwd", f"../model/{SHARD}", "/etc/passwd", "/dev/zero", ".", "", "model-00002.safetensors")
"""What an index gives as the file of a weight."""


@examples(20)
@given(st.sampled_from((*SHARDS, "config.json")) | wrong(), st.sampled_from((INFER, EXPORT)))
def test_wrong_file_in_an_index_is_refused(template: Path, name: Any, argv: list[str]) -> None:
    judge(case("the index", _sharded(lambda named: {**named, NORM: name}), "model", argv=argv), template)


def indices() -> Iterator[Case]:
    for change in (lambda named: {**named, "other.weight": SHARD}, lambda _: [1], lambda _: {}):
        yield case(f"the index is {change({})}", _sharded(change), "model")

    def linked(model: Path) -> None:
        _sharded(lambda named: named)(model)
        (model / SHARD).rename(model.parent / "outside.safetensors")
        (model / SHARD).symlink_to(model.parent / "outside.safetensors")

    yield case("the index names a link that leaves the folder", linked, INDEX)
    yield case("the index is whole", _sharded(lambda named: named), expected="works")


def code() -> Iterator[Case]:
    """Everything that libraries would import from a folder."""
    auto = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    generating = {"custom_generate": "own", "trust_remote_code": True}

    def adding(file: str, changes: dict[str, Any]) -> Spoil:
        def build(model: Path) -> None:
            (model / "custom_generate").mkdir()
            for name in ("own.py", "custom_generate/generate.py", "configuration_own.py"):
                (model / name).write_text(f"open({str(model.parent / CANARY)!r}, 'w')\nclass Own: pass\n")
            spoil.edit(model / file, **changes)

        return build

    def pickled(model: Path) -> None:
        payload = f"cbuiltins\nopen\n(V{model.parent / CANARY}\nVw\ntR."
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(payload.encode())

    for argv in (INFER, EXPORT, TRAIN):
        change = adding("config.json", {"auto_map": auto, "trust_remote_code": True})
        yield case("a model that trusts itself", change, argv=argv, expected="either")
        change = adding("config.json", {"auto_map": auto, "model_type": "own"})
        yield case("code for an unknown model", change, "--trust_remote_code", argv=argv)
        yield case("code to generate", adding("generation_config.json", generating), argv=argv, expected="either")
        yield case("a pickle", pickled, "pytorch_model.bin", argv=argv)


def paths() -> Iterator[Case]:
    yield case("the model is an empty folder", lambda model: (shutil.rmtree(model), model.mkdir()), "model")
    yield case("the model is a file", lambda model: (shutil.rmtree(model), model.write_text("x")), "model")
    yield case("the model is a pipe", lambda model: (shutil.rmtree(model), os.mkfifo(model)), "model")
    yield case("the model is a link to itself", lambda m: (shutil.rmtree(m), m.symlink_to("model")), "model")
    for name in ("a\0b", "x" * 100_000, "\udcff", "", "..", "/dev/zero", "~nobody-there/x", "a/b/c"):
        argv = ["infer", name, "--prompt", "hello"]
        yield case(f"a model called {name[:20]!r}", lambda _: None, argv=argv)


def heads() -> Iterator[Case]:
    """Heads of models that score: a new one would score at random."""
    ask = ["infer", "model", "--prompt", "hello"]
    judge_it = ["eval", "model", "--dataset", "labels.jsonl"]

    def scoring(*shape: int, **settings: Any) -> Spoil:
        def build(model: Path) -> None:
            import torch

            spoil.edit(model / "config.json", architectures=["Qwen3ForSequenceClassification"], **settings)
            (model.parent / "labels.jsonl").write_text('{"query": "a", "label": 0}\n')
            if shape:
                tensors = spoil.tensors_of(model / "model.safetensors")
                spoil.put_tensors(model / "model.safetensors", {**tensors, "score.weight": torch.ones(shape)})

        return build

    for argv in (ask, judge_it, EXPORT):
        yield case(f"a head for scores: {argv[0]}", scoring(2, 64), argv=argv, expected="works")
        for shape in ((), (0, 64), (2, 8)):  # the first is none at all
            yield case(f"a head of the shape {shape}: {argv[0]}", scoring(*shape), "score.weight", argv=argv)
    yield case("labels of no kind", scoring(2, 64, problem_type="none"), "config.json", "problem_type", argv=judge_it)


def templates() -> Iterator[Case]:
    """Chat templates that raise, or write nothing."""
    ask = ["infer", "model", "--dataset", "rows.jsonl", "--max_new_tokens", "1"]

    def holding(template: str) -> Spoil:
        def build(model: Path) -> None:
            (model / "chat_template.jinja").write_text(template)
            (model.parent / "rows.jsonl").write_text('{"query": "Hello"}\n')

        return build

    for what, template in {
        "a variable that is not there": "{{ x.y.z }}",
        "an operation on what it is not for": "{{ messages + 5 }}",
        "a message that is not there": "{{ messages[5].content }}",
        "nothing": "",
        "an order to the terminal": "{{ raise_exception('no \x1b[2J') }}",
    }.items():
        for argv, where in ((INFER, "The prompt"), (ask, "rows.jsonl:1")):
            name = f"a chat template with {what}: {where}"
            yield case(name, holding(template), "chat_template.jinja", where, argv=argv)
    for what, template, reason in (
        ("that refuses every row", "{{ raise_exception('not that') }}", "not that"),
        ("that writes the same of every row", "hello", "is not in the rendered text"),
    ):
        named = ("chat_template.jinja", "data.jsonl:1", reason)
        yield case(f"a chat template {what}", holding(template), *named, argv=TRAIN)
    half = "{{ '\\ud800' }}{% for message in messages %}{{ message.content }}{% endfor %}"
    for argv in (INFER, TRAIN):
        name = "a chat template with an unpaired surrogate"
        yield case(name, holding(half), "the chat template", "surrogate", argv=argv)


POOLING = {"type": "models.Pooling", "path": "1_Pooling"}
SENTENCES: dict[str, tuple[Any, ...]] = {
    "modules.json": (
        *([{**POOLING, "path": path}] for path in (7, None, "", "..", "/etc", "a\0b", "\ud800", "x" * 100_000)),
        *([1], {"a": 1}, "x"),
    ),
    "1_Pooling/config.json": (
        *([1], {}, {"pooling_mode": "weightedmean"}),
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ),
    "config_sentence_transformers.json": tuple(
        {"prompts": value} for value in (7, "query", [1], {"query": 7}, {"query": "\ud800"}, {"\ud800": "x"})
    ),
}
"""Files of sentence-transformers, and what they must not hold."""


def _vectors(change: Spoil, file: str) -> Spoil:
    """Make the model one of vectors, and change a file that sentence-transformers keeps in its folder."""

    def build(model: Path) -> None:
        spoil.edit(model / "config.json", architectures=["Qwen3Model"])
        write_sentence_files(model, size=64, pooling="mean")
        change(model / file)

    return build


def test_whole_sentence_files_are_exported(template: Path) -> None:
    judge(case("whole", _vectors(lambda _: None, ""), argv=EXPORT, expected="works"), template)


@examples(20)
@given(st.sampled_from([(file, value) for file, values in SENTENCES.items() for value in values]))
def test_wrong_value_in_a_sentence_file_is_refused(template: Path, changed: tuple[str, Any]) -> None:
    file, value = changed
    change = _vectors(lambda path: path.write_text(json.dumps(value)), file)
    judge(case(f"{file}", change, Path(file).name, argv=EXPORT), template)


@examples(15)
@given(st.sampled_from(sorted(SENTENCES)), bad_file)
def test_bad_sentence_file_is_refused(template: Path, file: str, how: str) -> None:
    judge(case(f"{file}: {how}", _vectors(BAD[how], file), Path(file).name, argv=EXPORT), template)


@examples(8)
@given(bad_file.filter(lambda how: how not in ("cut off", "UTF-16")))
def test_bad_file_of_a_video_processor_is_refused(template: Path, how: str) -> None:
    file = "video_preprocessor_config.json"
    judge(case(f"{file} is {how}", BAD[how], file, argv=SAMPLE, file=file), template)


CASES = [
    *(case(f"config.json must not have {key} {value!r:.40}", of_config(key, value), "model") for key, value in REFUSED),
    *tokenizer_files(),
    *weight_files(),
    *indices(),
    *code(),
    *paths(),
    *heads(),
    *templates(),
]


@pytest.mark.parametrize("case", sampled(CASES, every=10))
def test_a_model_folder_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)


KEYS = {
    "config.json": """model_type architectures hidden_act dtype rope_parameters rope_scaling quantization_config
        layer_types sliding_window eos_token_id pad_token_id tie_word_embeddings attention_bias is_encoder_decoder
        text_config attn_implementation auto_map output_attentions id2label num_labels problem_type
        transformers_version name_or_path rms_norm_eps rope_theta attention_dropout
        initializer_range""",
    "tokenizer.json": """model model.type model.vocab model.merges added_tokens pre_tokenizer normalizer decoder
        post_processor truncation padding version""",
    "tokenizer_config.json": """tokenizer_class model_max_length eos_token pad_token chat_template added_tokens_decoder
        extra_special_tokens additional_special_tokens auto_map init_inputs gguf_file fast_tokenizer_files vocab_file
        tokenizer_file clean_up_tokenization_spaces padding_side truncation_side model_input_names add_bos_token backend
        is_local name_or_path self cls""",
    "generation_config.json": """eos_token_id temperature num_beams cache_implementation max_length top_k do_sample
        custom_generate watermarking_config compile_config self""",
}
"""Keys of each file that libraries read."""


@examples(50)
@given(
    st.sampled_from([(file, key) for file, keys in KEYS.items() for key in keys.split()]),
    wrong(),
    st.sampled_from(COMMANDS[:3]),
)
def test_wrong_value_of_a_model_is_handled_clearly(
    template: Path, keys: tuple[str, str], value: Any, argv: list[str]
) -> None:
    file, key = keys
    change = lambda path: spoil.put_in(path, tuple(key.split(".")), value)  # noqa: E731
    judge(case(f"{key} of {file}", change, "model", argv=argv, file=file, expected="either"), template)
