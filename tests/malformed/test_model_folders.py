"""Model folders with files that are damaged, hostile or do not belong together."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import spoil
from draws import drawn, judge_all, wrong
from judge import CANARY, Case, judge, sampled

from swift.models.sentence_files import write_sentence_files

INFER = ["infer", "model", "--prompt", "hello", "--max_new_tokens", "2"]
TRAIN = [
    "sft",
    "--model",
    "model",
    "--dataset",
    "data.jsonl",
    "--max_steps",
    "1",
    "--tuner.kind",
    "full",
    "--backend.device",
    "cpu",
    "--data.workers",
    "1",
    "--report_to",
    "jsonl",
    "--checkpoint.save_last",
    "false",
]
SAMPLE = ["config", "show", "sft", "--model", "model", "--dataset", "data.jsonl", "--sample", "1"]
EXPORT = ["export", "model", "--out", "out", "--verify", "none"]
RANDOM = [*TRAIN, "--model.random_weights", "true"]
SPOILT = {**spoil.NOT_A_FILE, **spoil.NOT_AN_OBJECT}
COMMANDS = (INFER, SAMPLE, EXPORT, TRAIN)

Spoil = Callable[[Path], object]
Expected = Literal["refused", "works", "either"]


def case(
    name: str,
    change: Spoil,
    *names: str,
    argv: Sequence[str] = INFER,
    expected: Expected = "refused",
    file: str = "",
) -> Case:
    """A case that changes the folder `model`, or one file of it."""

    def build(folder: Path) -> Sequence[str]:
        change(folder / "model" / file if file else folder / "model")
        return argv

    return Case(name, build, expected, names)


def of_config(key: str, value: Any) -> Spoil:
    return lambda model: spoil.edit(model / "config.json", **{key: value})


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
NO_SIZES: dict[str, Any] = {
    "zero": 0,
    "negative": -3,
    "a text": "many",
    "a fraction": 2.5,
    "a list of texts": ["1"],
    "an object": {"a": 1},
    "true": True,
    "a thousand million": 10**9,
    "thirty digits": 10**30,
    "NaN": math.nan,
    "null": None,
}
NUMBERS = ("rms_norm_eps", "rope_theta", "attention_dropout", "initializer_range", "layer_norm_eps")
NO_NUMBERS: dict[str, Any] = {
    "a text": "small",
    "negative": -1.0,
    "NaN": math.nan,
    "a list": [1],
    "an object": {"a": 1},
}


def config_values() -> Iterator[Case]:
    for index, key in enumerate(SIZES):
        for offset, (what, value) in enumerate(drawn(key, NO_SIZES.items(), 4)):
            may_be: Expected = (
                "either" if value is None or (key, value) == ("max_position_embeddings", 10**9) else "refused"
            )
            argv = COMMANDS[(index + offset) % len(COMMANDS)]
            yield case(
                f"config.json: {key} is {what}", of_config(key, value), "config.json", argv=argv, expected=may_be
            )
            yield case(
                f"config.json: {key} is {what}, with random weights",
                of_config(key, value),
                "config.json",
                argv=RANDOM,
                expected="either" if may_be == "either" or key == "intermediate_size" else "refused",
            )
    for key in NUMBERS:
        for what, value in drawn(key, NO_NUMBERS.items(), 2):
            yield case(f"config.json: {key} is {what}", of_config(key, value), "config.json", expected="either")


REFUSED: list[tuple[str, Any]] = [
    ("rms_norm_eps", math.nan),
    ("rms_norm_eps", -1.0),
    ("attention_dropout", -1.0),
    ("model_type", "nothing"),
    ("hidden_act", "nothing"),
    ("attn_implementation", "somebody/kernel"),
    ("tie_word_embeddings", "yes"),
    ("num_attention_heads", 3),
    ("num_key_value_heads", 3),
    ("num_hidden_layers", 3),
    ("hidden_size", 128),
    ("vocab_size", 100),
    ("head_dim", 32),
    ("num_hidden_layers", 4000),
    ("text_config", {"num_hidden_layers": 10**9}),
    ("quantization_config", {"quant_method": "nothing"}),
    ("is_encoder_decoder", True),
    ("architectures", "Qwen3"),
    ("dtype", "float99"),
    ("eos_token_id", "x"),
]


def whole_files() -> Iterator[Case]:
    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for number, file in enumerate(files):
        for offset, (what, change) in enumerate(drawn(file, SPOILT.items(), 9)):
            may: Expected = "refused"
            missing = what == "a link to nothing" and number > 1
            if missing or (file == "generation_config.json" and what == "a number of a million digits"):
                may = "either"
            names = () if missing else (file,)
            yield case(f"{file} is {what}", change, *names, argv=COMMANDS[offset % 3], file=file, expected=may)
    for file in (
        "model.safetensors",
        "model.safetensors.index.json",
        "chat_template.jinja",
        "added_tokens.json",
        "special_tokens_map.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
    ):
        for what, change in drawn(file, spoil.NOT_A_FILE.items(), 2):
            expected: Expected = (
                "either" if "link to nothing" in what or "itself" in what or "GiB" in what else "refused"
            )
            yield case(f"{file} is {what}", change, "model", file=file, expected=expected)
    for file in ("special_tokens_map.json", "added_tokens.json", "model.safetensors.index.json"):
        for what, change in drawn(file, spoil.NOT_AN_OBJECT.items(), 5):
            if what in ("cut off", "UTF-16"):
                continue
            yield case(f"{file} is {what}", change, file, file=file)
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        yield case(f"{file} is not there", lambda path: path.unlink(), "model", file=file)


def tokenizer_files() -> Iterator[Case]:
    for key in ("gguf_file", "init_inputs"):
        yield case(
            f"tokenizer_config.json names a file by {key}",
            lambda path, k=key: spoil.edit(path, **{k: ["/etc/passwd"]}),
            "tokenizer_config.json",
            key,
            file="tokenizer_config.json",
        )
    yield case(
        "tokenizer.json of another model",
        lambda path: spoil.set_in(path, "model.vocab", {chr(300 + i): i for i in range(500)}),
        "model",
        file="tokenizer.json",
    )


def _weights(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def build(file: Path) -> None:
        tensors = spoil.tensors_of(file)
        changed = change(tensors)
        spoil.put_tensors(file, changed if isinstance(changed, dict) else tensors)

    return build


def _header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def build(file: Path) -> None:
        header, data = spoil.header_of(file)
        changed = change(header)
        spoil.put_header(file, changed if changed is not None else header, data)

    return build


EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"


def weight_files() -> Iterator[Case]:
    def of_file(name: str, change: Spoil, *names: str, **more: Any) -> Case:
        return case(f"weights: {name}", change, *(names or ("model",)), file="model.safetensors", **more)

    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "one is missing": lambda all: all.pop(NORM) is None,
        "all but one are missing": lambda all: {NORM: all[NORM]},
        "none": lambda _: {},
        "of another shape": lambda all: all.update({NORM: all[NORM][:7].clone()}),
        "of one more dimension": lambda all: all.update({NORM: all[NORM][None].clone()}),
        "transposed": lambda all: all.update({EMBEDDING: all[EMBEDDING].T.contiguous()}),
        "not a number": lambda all: all[EMBEDDING][3].fill_(math.nan) is None,
        "infinite": lambda all: all[NORM][3:4].fill_(math.inf) is None,
        "minus infinity": lambda all: all[NORM][3:4].fill_(-math.inf) is None,
        "bytes": lambda all: all.update({EMBEDDING: all[EMBEDDING].byte()}),
        "whole numbers": lambda all: all.update({EMBEDDING: all[EMBEDDING].long()}),
        "switches": lambda all: all.update({EMBEDDING: all[EMBEDDING] > 0}),
        "renamed": lambda all: all.update({"other.weight": all.pop(NORM)}),
    }
    for name, change in changes.items():
        for which, argv in drawn(name, (("infer", INFER), ("export", EXPORT), ("train", TRAIN)), 1):
            yield of_file(f"{name} ({which})", _weights(change), argv=argv)
    yield of_file(
        "one too many", _weights(lambda all: all.update({"other.weight": all[NORM].clone()})), expected="works"
    )
    entries: dict[str, Callable[[dict[str, Any]], object]] = {
        "overlapping": lambda head: head[NORM].update(data_offsets=[o - 4 for o in head[NORM]["data_offsets"]]),
        "outside of the file": lambda head: head[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256]),
        "before the file": lambda head: head[NORM].update(data_offsets=[-256, 0]),
        "offsets the wrong way round": lambda head: head[NORM]["data_offsets"].reverse(),
        "three offsets": lambda head: head[NORM]["data_offsets"].append(7),
        "offsets are texts": lambda head: head[NORM].update(data_offsets=["0", "256"]),
        "an unknown type": lambda head: head[NORM].update(dtype="F99"),
        "a type that is a number": lambda head: head[NORM].update(dtype=7),
        "a type that is a list": lambda head: head[NORM].update(dtype=["F32"]),
        "a negative shape": lambda head: head[NORM].update(shape=[-64]),
        "a shape of many dimensions": lambda head: head[NORM].update(shape=[1] * 100_000 + [64]),
        "a shape without bounds": lambda head: head[NORM].update(shape=[1 << 62, 1 << 62]),
        "a shape that is a text": lambda head: head[NORM].update(shape="64"),
        "no shape": lambda head: head[NORM].pop("shape") and None,
        "an entry that is a list": lambda head: head.update({NORM: [1]}),
        "an entry that is null": lambda head: head.update({NORM: None}),
        "a header that is a list": lambda _: [1],
        "a header without end": lambda _: b"[" * spoil.DEEP,
        "a header of bytes": lambda _: bytes(range(256)),
    }
    for name, change in entries.items():
        yield of_file(name, _header(change), "model.safetensors")
    yield of_file(
        "longer than its header says", lambda file: file.write_bytes(file.read_bytes() + b"xx"), "truncated or alt"
    )
    yield of_file("cut off", lambda file: file.write_bytes(file.read_bytes()[:-3]), "truncated or altered")
    yield of_file("a header of gigabytes", lambda file: spoil.put_header(file, b"{}", b"", length=1 << 40), "header")
    yield of_file("nothing", lambda file: file.write_bytes(b""), "model.safetensors")
    yield of_file("seven bytes", lambda file: file.write_bytes(b"1234567"), "model.safetensors")


def _sharded(weight_map: Callable[[dict[str, str]], Any]) -> Spoil:
    def build(model: Path) -> None:
        header, _ = spoil.header_of(model / "model.safetensors")
        (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
        named = {name: "model-00001-of-00001.safetensors" for name in header if name != "__metadata__"}
        content = {"metadata": {"total_size": 1}, "weight_map": weight_map(named)}
        (model / "model.safetensors.index.json").write_text(json.dumps(content))

    return build


def indices() -> Iterator[Case]:
    index = "model.safetensors.index.json"
    maps: dict[str, Callable[[dict[str, str]], Any]] = {
        "leaves the folder": lambda named: {**named, NORM: "../../etc/passwd"},
        "leaves the folder for a model": lambda named: {**named, NORM: "../model/model-00001-of-00001.safetensors"},
        "names an absolute path": lambda named: {**named, NORM: "/etc/passwd"},
        "names a device": lambda named: {**named, NORM: "/dev/zero"},
        "names the folder": lambda named: {**named, NORM: "."},
        "names nothing": lambda named: {**named, NORM: ""},
        "names a number": lambda named: {**named, NORM: 7},
        "names a list": lambda named: {**named, NORM: [1]},
        "names null": lambda named: {**named, NORM: None},
        "names a file with a NUL": lambda named: {**named, NORM: "a\0b"},
        "names a file of a very long name": lambda named: {**named, NORM: "x" * 100_000},
        "names a missing file": lambda named: {**named, NORM: "model-00002-of-00002.safetensors"},
        "names a missing tensor": lambda named: {**named, "other.weight": "model-00001-of-00001.safetensors"},
        "names a settings file": lambda named: {**named, NORM: "config.json"},
        "is a list": lambda _: [1],
        "is null": lambda _: None,
        "is empty": lambda _: {},
        "is a text": lambda _: "x",
    }
    for name, change in maps.items():
        for which, argv in drawn(name, (("infer", INFER), ("export", EXPORT)), 1):
            yield case(f"the index {name} ({which})", _sharded(change), "model", argv=argv)

    def linked(model: Path) -> None:
        _sharded(lambda named: named)(model)
        shard = model / "model-00001-of-00001.safetensors"
        shard.rename(model.parent / "elsewhere.safetensors")
        shard.symlink_to(model.parent / "elsewhere.safetensors")

    yield case("the index names a link that leaves the folder", linked, index)

    def without_map(model: Path) -> None:
        _sharded(lambda named: named)(model)
        spoil.drop_in(model / index, "weight_map")

    yield case("the index has no weight_map", without_map, index)
    yield case("the index is whole", _sharded(lambda named: named), expected="works")


def code() -> Iterator[Case]:
    """Everything that libraries would import from a folder."""

    def own(model: Path) -> None:
        text = f"open({str(model.parent / CANARY)!r}, 'w')\nclass Own: pass\n"
        for name in ("own.py", "custom_generate/generate.py", "configuration_own.py", "tokenization_own.py"):
            (model / name).parent.mkdir(exist_ok=True)
            (model / name).write_text(text)

    def adding(file: str, **changes: Any) -> Spoil:
        def build(model: Path) -> None:
            own(model)
            spoil.edit(model / file, **changes)

        return build

    auto = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    for which, argv in (("infer", INFER), ("sample", SAMPLE), ("export", EXPORT), ("train", TRAIN)):
        yield case(f"code for the model ({which})", adding("config.json", auto_map=auto), argv=argv, expected="either")
        change = adding("config.json", auto_map=auto, model_type="own")
        yield case(f"code for an unknown model ({which})", change, "--trust_remote_code", argv=argv)
        change = adding("tokenizer_config.json", auto_map=auto, tokenizer_class="Own")
        yield case(f"code for the tokenizer ({which})", change, argv=argv, expected="either")
        change = adding("generation_config.json", custom_generate="own", trust_remote_code=True)
        yield case(f"code to generate ({which})", change, argv=argv, expected="either")
        change = adding("config.json", trust_remote_code=True, auto_map=auto)
        yield case(f"a model that trusts itself ({which})", change, argv=argv, expected="either")

    def pickled(model: Path) -> None:
        payload = f"cbuiltins\nopen\n(V{model.parent / CANARY}\nVw\ntR."
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(payload.encode())

    for which, argv in (("infer", INFER), ("export", EXPORT), ("train", TRAIN)):
        yield case(f"a pickle ({which})", pickled, "pytorch_model.bin", argv=argv)


def places() -> Iterator[Case]:
    yield case("the model is an empty folder", lambda model: (shutil.rmtree(model), model.mkdir()), "model")
    yield case("the model is a file", lambda model: (shutil.rmtree(model), model.write_text("x")), "model")
    yield case("the model is a pipe", lambda model: (shutil.rmtree(model), os.mkfifo(model)), "model")
    yield case("the model is a link to itself", lambda m: (shutil.rmtree(m), m.symlink_to("model")), "model")
    for name in ("a\0b", "x" * 100_000, "\udcff", "", "..", "/dev/zero", "/dev/null", "~nobody-there/x", "a/b/c", "-"):
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

    for argv in (ask, EXPORT):
        yield case(f"no head for scores: {argv[0]}", scoring(), "model", "score.weight", argv=argv)
    for argv in (ask, judge_it, EXPORT):
        yield case(f"a head for scores: {argv[0]}", scoring(2, 64), argv=argv, expected="works")
        for shape in ((64,), (0, 64), (2, 8)):
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
        for argv, place in ((INFER, "The prompt"), (ask, "rows.jsonl:1")):
            name = f"a chat template with {what}: {place}"
            yield case(name, holding(template), "chat_template.jinja", place, argv=argv)
    for what, template, said in (
        ("that refuses every row", "{{ raise_exception('not that') }}", "not that"),
        ("that writes the same of every row", "hello", "is not in the text"),
    ):
        named = ("chat_template.jinja", "data.jsonl:1", said)
        yield case(f"a chat template {what}", holding(template), *named, argv=TRAIN)
    half = "{{ '\\ud800' }}{% for message in messages %}{{ message.content }}{% endfor %}"
    for argv in (INFER, TRAIN):
        name = f"a chat template with half a surrogate pair: {argv[0]}"
        yield case(name, holding(half), "the chat template", "surrogate", argv=argv)


SENTENCES: dict[str, list[tuple[str, Any]]] = {
    "modules.json": [
        (f"{key} of the pooling is {what}", [{"type": "models.Pooling", "path": "1_Pooling", key: value}])
        for key, what, value in (
            ("path", "a number", 7),
            ("path", "null", None),
            ("path", "empty", ""),
            ("path", "the folder above", ".."),
            ("path", "absolute", "/etc"),
            ("path", "a name with NUL", "a\0b"),
            ("path", "half a surrogate pair", "\ud800"),
            ("path", "very long", "x" * 100_000),
        )
    ]
    + [("a list of numbers", [1]), ("an object", {"a": 1}), ("a text", "x")],
    "1_Pooling/config.json": [
        ("a list", [1]),
        ("no pooling", {}),
        ("an unknown pooling", {"pooling_mode": "weightedmean"}),
        ("two poolings", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}),
    ],
    "config_sentence_transformers.json": [
        (f"prompts is {what}", {"prompts": value})
        for what, value in (
            ("a number", 7),
            ("a text", "query"),
            ("a list", [1]),
            ("to a number", {"query": 7}),
            ("to a list", {"query": ["x"]}),
            ("to half a surrogate pair", {"query": "\ud800"}),
            ("named half a surrogate pair", {"\ud800": "x"}),
        )
    ],
}


def files_beside() -> Iterator[Case]:
    """Files that sentence-transformers and processors keep in a model's folder."""

    def vectors(change: Spoil, file: str) -> Spoil:
        def build(model: Path) -> None:
            spoil.edit(model / "config.json", architectures=["Qwen3Model"])
            write_sentence_files(model, size=64, pooling="mean")
            change(model / file)

        return build

    def written(value: Any) -> Spoil:
        return lambda file: file.write_text(json.dumps(value))

    yield case("sentence files are as they should be", vectors(lambda _: None, ""), argv=EXPORT, expected="works")
    for file, values in SENTENCES.items():
        spoils = dict(drawn(file, SPOILT.items(), 4)) | {what: written(value) for what, value in drawn(file, values, 4)}
        for what, change in spoils.items():
            yield case(f"{file}: {what}", vectors(change, file), Path(file).name, argv=EXPORT)
    file = "video_preprocessor_config.json"
    for what, change in drawn(file, SPOILT.items(), 6):
        if what not in ("cut off", "UTF-16"):
            yield case(f"{file} is {what}", change, file, argv=SAMPLE, file=file)


CASES = [
    *config_values(),
    *(case(f"config.json must not have {key} {value!r:.40}", of_config(key, value), "model") for key, value in REFUSED),
    *whole_files(),
    *tokenizer_files(),
    *weight_files(),
    *indices(),
    *code(),
    *places(),
    *files_beside(),
    *heads(),
    *templates(),
]


@pytest.mark.parametrize("case", sampled(CASES, every=10))
def test_a_model_folder_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)


KEYS = {
    "config.json": """model_type architectures hidden_act dtype rope_parameters rope_scaling quantization_config
        layer_types sliding_window eos_token_id pad_token_id tie_word_embeddings attention_bias is_encoder_decoder
        text_config attn_implementation auto_map output_attentions id2label num_labels problem_type
        transformers_version name_or_path""",
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


@pytest.mark.parametrize("file", KEYS)
def test_wrong_value_in_a_file_of_a_model_is_answered_clearly(file: str, template: Path) -> None:
    cases = []
    for number, key in enumerate(KEYS[file].split()):
        (value,) = wrong(f"{file} {key}", 1)
        change = lambda path, k=key, v=value: spoil.set_in(path, k, v)  # noqa: E731
        argv = COMMANDS[number % 3]
        cases.append(case(f"{key} is {value!r:.40}", change, "model", argv=argv, file=file, expected="either"))
    judge_all(cases, template)
