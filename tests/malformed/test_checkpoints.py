"""Checkpoints, runs and adapters with files that are damaged, hostile or do not belong together."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import spoil
from hypothesis import given
from hypothesis import strategies as st
from judge import CANARY, Case, Expected, judge, sampled
from spoil import BAD, Spoil, of_header, of_tensors, put_in
from strategies import bad_file, examples, not_a_file, not_an_object, wrong

from swift.checkpoint.checksums import hash_file
from swift.checkpoint.manifest import _checksum
from swift.cli.main import run
from swift.errors import CheckpointError
from swift.untrusted_pickle import load_pickle

TRAIN = [
    *("sft", "--model", "model", "--dataset", "data.jsonl", "--backend.device", "cpu"),
    *("--data.workers", "1", "--report_to", "jsonl"),
]
GENERATE = ["--prompt", "hello", "--max_new_tokens", "2"]
INFER = ["infer", "full", *GENERATE]
EXPORT = ["export", "full", "--out", "out", "--verify", "none"]
CONVERT = ["convert", "full", "--to", "trainer", "--out", "out"]
RESUME = [
    *(*TRAIN, "--tuner.kind", "full", "--max_steps", "2", "--resume_from_checkpoint", "full/checkpoint-1"),
    *("--checkpoint.save_last", "false"),
]
LORA = ["infer", "lora", *GENERATE]
MERGE = ["merge-lora", "lora", "--out", "out", "--no-verify"]
ADAPTER = ["infer", "model", "--adapters", "adapter", *GENERATE]
ADAPTER_ALONE = ["infer", "adapter", *GENERATE]
FURTHER = [*TRAIN, "--adapters", "adapter", "--max_steps", "1", "--checkpoint.save_last", "false"]
IMPORT = ["convert", "adapter", "--model", "model", "--out", "out"]
TRAINER = ["convert", "trainer", "--model", "model", "--out", "out"]

RUNS = ("*.lock", "output", "output/*", "full/*", "lora/*")
"""What a run that is refused after its folder was claimed leaves."""
CHECKPOINT = "full/checkpoint-1"
ADAPTER_CONFIG = "adapter/adapter_config.json"
ADAPTER_MODEL = "adapter/adapter_model.safetensors"


@pytest.fixture(scope="session")
def trained(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with two runs of one step: `full` and `lora`, and the folder of an adapter alone."""
    folder = tmp_path_factory.mktemp("trained") / "template"
    shutil.copytree(template, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        for kind in ("full", "lora"):
            to = ["--output_dir", "runs", "--logging.run_name", kind]
            assert run([*TRAIN, "--tuner.kind", kind, "--max_steps", "1", *to]) == 0
            (folder / "runs" / "model" / kind).rename(folder / kind)
    shutil.rmtree(folder / "runs")
    (folder / "adapter").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / "lora" / "checkpoint-1" / name, folder / "adapter" / name)
    return folder


def case(
    name: str, change: Spoil, *names: str, argv: Sequence[str], at: str = CHECKPOINT, expected: Expected = "refused"
) -> Case:
    """Return a case that changes one file or folder."""

    def build(folder: Path) -> Sequence[str]:
        change(folder / at)
        return argv

    return Case(f"{name} ({' '.join(argv[:2])})", build, expected, names, leaves=RUNS if argv[0] == "sft" else ())


def sealed(change: Spoil) -> Spoil:
    """Change a checkpoint, and write the checksums of what it holds then."""

    def build(checkpoint: Path) -> None:
        change(checkpoint)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest.pop("checksum", None)
        if isinstance(manifest.get("files"), dict):
            for name in manifest["files"]:
                if (checkpoint / name).is_file():
                    manifest["files"][name] = hash_file(checkpoint / name).model_dump()
        manifest["checksum"] = _checksum(manifest)
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    return build


KEYS = """format step rows_per_step seed model_fingerprint data_fingerprint backend config config.model
    config.model.path config.model.random_weights config.model.chat_template config.data config.tuner config.optim
    config.train schedule metrics facts plugins versions files adapter"""
VALUES: tuple[tuple[str, Any], ...] = (
    ("format", 99), ("step", -1), ("config", {"model": []}), ("config.model", {"path": "/etc"}),
    ("config.model.path", "/dev/zero"), ("config.model.path", ".."), ("config.model.chat_template", "/dev/zero"),
    ("config.data", {"max_length": -1}), ("config.tuner", {"kind": "x"}), ("config.optim", {"beta1": 7}),
    ("config.train", {"epochs": -1}), ("schedule", {"total_steps": 10**30}), ("schedule", {"peak": "x"}),
    ("metrics", {"loss": "x"}), ("facts", {"progress": 7}), ("facts", {"progress": {"best": {"value": "x"}}}),
    ("facts", {"progress": {"epoch": math.nan}}), ("facts", {"scaler": {"scale": "x"}}),
    ("files", {"x": {"size": -1, "xxh3_128": "x"}}), ("files", {"/dev/zero": {"size": 1, "xxh3_128": "x"}}),
    ("files", {"../../etc/passwd": {"size": 1, "xxh3_128": "x"}}), ("adapter", {"peft_type": "PROMPT_TUNING"}),
)  # fmt: skip
"""Values of the right kind that are invalid."""
CLEAR = {
    "format": (), "step": ("number",), "rows_per_step": ("number",), "files": ("mapping",), "facts": ("mapping",),
    "schedule": ("mapping",), "config.data": ("mapping", "null"), "config.tuner": ("mapping", "null"),
}  # fmt: skip
"""Keys of which no other value is taken → the kinds of what they hold."""
DROPPED = ("format", "step", "seed", "model_fingerprint", "config", "files", "rows_per_step", "backend")
refused_values = (
    st.sampled_from(sorted(CLEAR)).flatmap(lambda key: st.tuples(st.just(key), wrong(*CLEAR[key])))
    | st.sampled_from([each for each in VALUES if each[0] in CLEAR])
    | st.tuples(st.sampled_from(DROPPED), st.just(spoil.GONE))
)
commands = st.sampled_from((INFER, EXPORT, CONVERT, RESUME))


def _of_manifest(key: str, value: Any) -> Spoil:
    return sealed(lambda checkpoint: put_in(checkpoint / "manifest.json", tuple(key.split(".")), value))


@examples(48)
@given(refused_values, commands)
def test_wrong_value_in_a_manifest_is_refused(trained: Path, setting: tuple[str, Any], argv: list[str]) -> None:
    judge(case(setting[0], _of_manifest(*setting), "full", argv=argv), trained)


@examples(30)
@given(st.tuples(st.sampled_from(KEYS.split()), wrong()) | st.sampled_from(VALUES), commands)
def test_odd_value_in_a_manifest_is_handled_clearly(trained: Path, setting: tuple[str, Any], argv: list[str]) -> None:
    judge(case(setting[0], _of_manifest(*setting), argv=argv, expected="either"), trained)


@examples(20)
@given(
    st.sampled_from((("manifest.json", "full"), ("state/index.json", "index.json"))),
    bad_file,
    st.sampled_from((INFER, EXPORT, RESUME)),
)
def test_bad_file_of_a_checkpoint_is_refused(trained: Path, file: tuple[str, str], how: str, argv: list[str]) -> None:
    argv = argv if "manifest" in file[0] else EXPORT
    judge(case(how, BAD[how], file[1], argv=argv, at=f"{CHECKPOINT}/{file[0]}"), trained)


@examples(11)
@given(not_an_object)
def test_index_that_is_no_object_is_refused(trained: Path, how: str) -> None:
    change = sealed(lambda checkpoint: BAD[how](checkpoint / "state" / "index.json"))
    judge(case(how, change, "index.json", argv=EXPORT), trained)


INDEX = {
    "tensors": (), "tensors.{}": (), "tensors.{}.dtype": ("F99", "I64"),
    "tensors.{}.shape": ([-64], [1 << 62, 1 << 62], [65], [True], []),
    "tensors.{}.chunks": ([],), "tensors.{}.chunks.0.offsets": ([-1], [1], [0, 0], [10**30]),
    "tensors.{}.chunks.0.sizes": ([-64], [65], [0], [64, 1]),
    "tensors.{}.chunks.0.file": ("../../../../../etc/passwd", "/etc/passwd", "/dev/zero"),
    "tensors.{}.chunks.0.key": ("nothing", ""),
}  # fmt: skip
"""Keys of the index of a checkpoint → invalid values of the right kind, besides those of other kinds."""
NORM = "model.model.norm.weight"
index_values = st.sampled_from(sorted(INDEX)).flatmap(
    lambda key: st.tuples(st.just(key), wrong() | st.sampled_from(INDEX[key] or (None,)))
)


@examples(45)
@given(index_values, st.sampled_from((EXPORT, CONVERT, RESUME)))
def test_wrong_value_in_an_index_is_refused(trained: Path, setting: tuple[str, Any], argv: list[str]) -> None:
    keys = tuple(NORM if part == "{}" else int(part) if part.isdigit() else part for part in setting[0].split("."))
    change = sealed(lambda checkpoint: put_in(checkpoint / "state" / "index.json", keys, setting[1]))
    judge(case(setting[0], change, "full", argv=argv), trained)


HEADER: dict[str, Callable[[dict[str, Any]], object]] = {
    "overlapping": lambda head: head[NORM].update(data_offsets=[o - 4 for o in head[NORM]["data_offsets"]]),
    "outside": lambda head: head[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256]),
    "of another type": lambda head: head[NORM].update(dtype="I32"),
    "of another shape": lambda head: head[NORM].update(shape=[8, 8]),
    "gone": lambda head: head.update({"other": head.pop(NORM)}),
}


def _removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _altered(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)


def states() -> Iterator[Case]:
    lost = sealed(lambda checkpoint: put_in(checkpoint / "state" / "index.json", ("tensors", NORM), spoil.GONE))
    for argv in (EXPORT, CONVERT):
        yield case("index: a weight is gone", lost, "checkpoint-1", NORM, argv=argv)
    for name, change in HEADER.items():
        of_state = lambda checkpoint, c=change: of_header(c)(next((checkpoint / "state").glob("*.safetensors")))  # noqa: E731
        argv = RESUME if name == "outside" else EXPORT
        yield case(f"state: a tensor is {name}", sealed(of_state), "state", argv=argv)


def _of_file(change: Spoil, name: str, checkpoint: Path) -> None:
    whole = name != "state" or change is _removed
    change(checkpoint / name if whole else next((checkpoint / name).glob("*.safetensors")))


def damaged_files() -> Iterator[Case]:
    names = ("state", "state/index.json", "model.safetensors", "config.json", "tokenizer.json")
    for (at, name), (turn, change) in product(enumerate(names), enumerate((_removed, _cut, _altered))):
        argv = (INFER, EXPORT, RESUME)[(at + turn) % 3]
        # What infer does not read, it does not check byte by byte.
        unread = argv is INFER and name.startswith("state") and change is _altered
        title = f"{name} is {change.__name__[1:]}"
        yield case(title, partial(_of_file, change, name), "full", argv=argv, expected="works" if unread else "refused")


def runs() -> Iterator[Case]:
    for target in ("checkpoint-9", "last-checkpoint", "../..", "/dev/zero"):

        def linked(folder: Path, target: str = target) -> None:
            (folder / "last-checkpoint").unlink(missing_ok=True)
            (folder / "last-checkpoint").symlink_to(target)

        argv = ["infer", "full/last-checkpoint", *GENERATE]
        yield case(f"last-checkpoint is a link to {target}", linked, "full", argv=argv, at="full", expected="either")
    late = "checkpoint-99999999999999999999999"
    renamed = lambda folder: (folder / "checkpoint-1").rename(folder / late)  # noqa: E731
    yield case("a checkpoint of a huge step", renamed, "full", argv=INFER, at="full", expected="either")
    altered = lambda file: put_in(file, ("seed",), 12345)  # noqa: E731
    yield case("an altered manifest", altered, "manifest.json", argv=INFER, at=f"{CHECKPOINT}/manifest.json")
    for argv, folder in ((INFER, "full"), (EXPORT, "full"), (CONVERT, "full"), (LORA, "lora"), (MERGE, "lora")):
        at = f"{folder}/checkpoint-1/manifest.json"
        yield case("no manifest", Path.unlink, folder, argv=argv, at=at)


@examples(12)
@given(
    st.sampled_from(("args.json", "config.yaml", "logging.jsonl", "report.html")),
    bad_file.filter(lambda how: "GiB" not in how),
    st.sampled_from((INFER, RESUME)),
)
def test_bad_file_of_a_run_is_handled_clearly(trained: Path, file: str, how: str, argv: list[str]) -> None:
    judge(case(f"{file} is {how}", BAD[how], "full", argv=argv, at=f"full/{file}", expected="either"), trained)


CONFIG = """peft_type r lora_alpha lora_dropout target_modules exclude_modules modules_to_save layers_to_transform
    layers_pattern rank_pattern alpha_pattern bias use_dora use_rslora fan_in_fan_out init_lora_weights task_type
    auto_mapping megatron_config layer_replication base_model_name_or_path loftq_config eva_config target_parameters
    trainable_token_indices use_qalora alora_invocation_tokens nothing_known runtime_config"""
"""Keys of adapter_config.json that libraries read."""
SLOW = "(([a-z_.0-9]+)+)+!"
"""A pattern that matches for ever."""
adapter_commands = st.sampled_from((ADAPTER, ADAPTER_ALONE, FURTHER, IMPORT))


@examples(50)
@given(st.sampled_from(CONFIG.split()), wrong(), adapter_commands)
def test_wrong_value_of_an_adapter_is_handled_clearly(trained: Path, key: str, value: Any, argv: list[str]) -> None:
    change = lambda file: spoil.edit(file, **{key: value})  # noqa: E731
    judge(case(key, change, "adapter", argv=argv, at=ADAPTER_CONFIG, expected="either"), trained)


@examples(24)
@given(
    st.tuples(st.just(ADAPTER_CONFIG), bad_file) | st.tuples(st.just(ADAPTER_MODEL), not_a_file),
    st.sampled_from((ADAPTER, ADAPTER_ALONE, FURTHER)),
)
def test_bad_file_of_an_adapter_is_refused(trained: Path, bad: tuple[str, str], argv: list[str]) -> None:
    judge(case(f"{bad}", BAD[bad[1]], "adapter", argv=argv, at=bad[0]), trained)


@pytest.mark.parametrize(
    ("key", "value"),
    [("target_modules", SLOW), ("modules_to_save", [SLOW]), ("rank_pattern", {SLOW: 8}), ("layers_pattern", SLOW)],
)
def test_pattern_that_matches_for_ever_is_refused(
    key: str, value: object, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift.models.adapter_file._SECONDS", 0.3)
    change = lambda file: spoil.edit(file, layers_to_transform=[0], **{key: value})  # noqa: E731
    judge(case(key, change, key, "adapter_config.json", argv=ADAPTER, at=ADAPTER_CONFIG), trained)


REFUSED: tuple[tuple[str, Any], ...] = (
    ("r", 0), ("r", "8"), ("r", 7), ("target_modules", ["nothing"]), ("lora_alpha", math.nan),
    ("peft_type", "PROMPT_TUNING"), ("megatron_config", {"a": 1}), ("use_dora", True),
)  # fmt: skip


def _first(all: dict[str, Any], part: str = "lora_A") -> str:
    return next(name for name in sorted(all) if part in name)


TENSORS: dict[str, Callable[[dict[str, Any]], object]] = {
    "one is missing": lambda all: all.pop(_first(all)) is None,
    "none": lambda _: {},
    "one too many": lambda all: all.update({_first(all).replace("layers.0", "layers.7"): all[_first(all)].clone()}),
    "of another rank": lambda all: all.update({_first(all): all[_first(all)][:3].clone()}),
    "of one dimension": lambda all: all.update({_first(all): all[_first(all)][0].clone()}),
    "not a number": lambda all: all[_first(all)][0].fill_(math.nan) is None,
    "infinite": lambda all: all[_first(all, "lora_B")][0].fill_(math.inf) is None,
    "whole numbers": lambda all: all.update({_first(all): all[_first(all)].long()}),
}


def _other_model(folder: Path) -> None:
    from swift_testing.subjects import write_model

    shutil.rmtree(folder / "model")
    write_model(folder / "model", hidden_size=32, num_hidden_layers=1)


def adapters() -> Iterator[Case]:
    for number, (key, value) in enumerate(REFUSED):
        change = lambda file, k=key, v=value: spoil.edit(file, **{k: v})  # noqa: E731
        argv = (ADAPTER, FURTHER)[number % 2]
        yield case(f"adapter must not have {key} {value!r}", change, "adapter", argv=argv, at=ADAPTER_CONFIG)
    for number, (name, change) in enumerate(TENSORS.items()):
        argv = (ADAPTER, ADAPTER_ALONE, FURTHER, IMPORT)[number % 4]
        yield case(f"adapter: {name}", of_tensors(change), "adapter", argv=argv, at=ADAPTER_MODEL)
    for argv in (ADAPTER, FURTHER):
        yield case("an adapter of another model", _other_model, "adapter", argv=argv, at=".")


def heads() -> Iterator[Case]:
    """Heads of adapters, whose size no other file declares."""

    def shaped(*shape: int) -> Spoil:
        def build(adapter: Path) -> None:
            import torch

            spoil.edit(adapter / "adapter_config.json", task_type="SEQ_CLS", modules_to_save=["score"])
            tensors = spoil.tensors_of(adapter / "adapter_model.safetensors")
            tensors["base_model.model.score.weight"] = torch.ones(shape)
            spoil.put_tensors(adapter / "adapter_model.safetensors", tensors)

        return build

    infer = ["infer", "adapter", "--prompt", "hello"]
    yield case("a head of two labels", shaped(2, 64), argv=infer, at="adapter", expected="works")
    for shape in ((), (0, 64), (2, 8)):
        yield case(f"a head of the shape {shape}", shaped(*shape), "score", argv=infer, at="adapter")


# ---------------------------------------------------------------- optimizer.pt, a pickle


def _code(file: Path) -> bytes:
    """Return a pickle that writes the canary when it is unpickled."""
    return f"cbuiltins\nopen\n(V{file.parent / CANARY}\nVw\ntR.".encode()


def _saved(content: Callable[[], Any]) -> Spoil:
    def make(file: Path) -> None:
        import torch

        torch.save(content(), file)

    return make


def _archive(data: Callable[[Path], bytes], *, packed: bool = False) -> Spoil:
    """Write an archive as torch.save does, with this as its pickle."""

    def make(file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", data(file))
            archive.writestr("archive/version", "3\n")

    return make


def _expanded() -> Any:
    import torch

    wide = torch.zeros(1).expand(1 << 40)
    slots = {"exp_avg": wide, "exp_avg_sq": wide, "step": torch.zeros(())}
    return {"state": {0: slots}, "param_groups": [{"params": [0], "lr": 0.1}]}


PICKLES: dict[str, tuple[Spoil, str]] = {
    "code": (lambda file: file.write_bytes(_code(file)), "not an archive as torch.save writes it"),
    "code in an archive": (_archive(_code), "cannot be read"),
    "a bomb": (_archive(lambda _: b"\x80\x02" + b"(" * (200 << 20) + b".", packed=True), "are compressed"),
    "a packed archive": (_archive(lambda _: b"\x80\x02].", packed=True), "are compressed"),
    "memory": (
        _archive(lambda _: b"\x80\x02cbuiltins\nbytearray\nL1000000000000L\n\x85R."),
        "more data than it stores",
    ),
    "nesting": (_archive(lambda _: b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."), "cannot be read"),
    "a tensor that is not stored": (_saved(_expanded), "is not stored in it"),
    "nothing": (lambda file: file.write_bytes(b""), "not an archive"),
    "bytes": (lambda file: file.write_bytes(bytes(range(256))), "not an archive"),
}
"""What optimizer.pt holds, and why it is refused."""
NO_STATE: tuple[Any, ...] = (
    [1],
    {"state": 7, "param_groups": 7},
    {"state": {0: 7}, "param_groups": [{"params": [0]}]},
    {"state": {}, "param_groups": [7]},
)


@pytest.mark.parametrize("name", PICKLES)
def test_hostile_pickle_is_refused_and_not_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from a file is unpickled: neither pickles nor archives of them reach Python's own unpickler."""
    for unsafe in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
        monkeypatch.setattr(unsafe, None)
    make, reason = PICKLES[name]
    file = tmp_path / "optimizer.pt"
    make(file)
    with pytest.raises(CheckpointError, match=reason) as refused:
        load_pickle(file, CheckpointError)
    assert "optimizer.pt" in refused.value.message
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("make", [PICKLES["code in an archive"][0], *(_saved(lambda s=s: s) for s in NO_STATE)])
def test_hostile_optimizer_is_refused(make: Spoil, trained: Path) -> None:
    def build(folder: Path) -> None:
        shutil.copytree(folder / "model", folder / "trainer")
        (folder / "trainer" / "trainer_state.json").write_text('{"global_step": 1, "max_steps": 1}')
        make(folder / "trainer" / "optimizer.pt")

    judge(case("optimizer.pt", build, "optimizer.pt", argv=TRAINER, at="."), trained)


@examples(12)
@given(
    st.sampled_from((("trainer_state.json", "global_step"), ("args.json", "seed"), ("args.json", "global_batch_size"))),
    st.sampled_from(("x", -1, 1.5, [1], 10**30, True)),
)
def test_wrong_value_of_a_trainer_is_handled_clearly(trained: Path, key: tuple[str, str], value: Any) -> None:
    def build(folder: Path) -> None:
        shutil.copytree(folder / "model", folder / "trainer")
        (folder / "trainer" / key[0]).write_text(json.dumps({key[1]: value}))

    refused = key[1] == "global_step"
    names = ("trainer_state.json",) if refused else ()
    expected: Expected = "refused" if refused else "either"
    judge(case(key[1], build, *names, argv=TRAINER, at=".", expected=expected), trained)


GROUPS: tuple[tuple[str, Any], ...] = (
    ("initial_lr", "x"), ("initial_lr", -1.0), ("betas", (0.9,)), ("betas", (math.nan, 0.9)), ("betas", {"a": 1}),
    ("eps", None), ("eps", -1.0), ("eps", True), ("weight_decay", "x"), ("weight_decay", -1.0),
)  # fmt: skip
"""Settings of a group of parameters that are invalid."""


def optimizers() -> Iterator[Case]:
    """AdamW's state as the Trainer leaves it, with an invalid number."""

    def holding(change: Callable[[dict[Any, Any]], object]) -> Spoil:
        def build(folder: Path) -> None:
            import torch

            assert run(["convert", "full", "--to", "trainer", "--out", "trainer"]) == 0
            file = folder / "trainer" / "optimizer.pt"
            state = torch.load(file, weights_only=True)
            change(state)
            torch.save(state, file)

        return build

    yield case("the Trainer's optimizer", holding(lambda _: None), argv=TRAINER, at=".", expected="works")
    for name, value in GROUPS:
        change = lambda state, n=name, v=value: state["param_groups"][0].update({n: v})  # noqa: E731
        shown = "beta" if name == "betas" else name.removeprefix("initial_")
        yield case(f"{name} is {value!r}", holding(change), "trainer", shown, argv=TRAINER, at=".")
    for slot in ("step", "exp_avg", "exp_avg_sq"):
        changes: dict[str, Callable[..., object]] = {
            "not there": lambda slots, s=slot: slots.pop(s),
            "NaN": lambda slots, s=slot: slots[s].fill_(math.nan),
            "complex": lambda slots, s=slot: slots.update({s: slots[s] * 1j}),
        }
        for what, spoilt in changes.items():
            change = lambda state, c=spoilt: c(state["state"][0])  # noqa: E731
            yield case(f"{slot} is {what}", holding(change), slot if what != "complex" else "", argv=TRAINER, at=".")


def numbers() -> Iterator[Case]:
    """Invalid numbers: of a weight, of its moments, of how often it was updated."""
    moments = f"optim.{NORM.removeprefix('model.')}"

    def holding(name: str, number: float) -> Spoil:
        def build(checkpoint: Path) -> None:
            entry = json.loads((checkpoint / "state" / "index.json").read_text())["tensors"][name]["chunks"][0]
            tensors = spoil.tensors_of(checkpoint / entry["file"])
            tensors[entry["key"]].fill_(number)
            spoil.put_tensors(checkpoint / entry["file"], tensors)

        return sealed(build)

    invalid = {
        f"{moments}.step": (1e30, math.nan, -math.inf, 0.5),
        f"{moments}.exp_avg": (math.inf, math.nan),
        f"{moments}.exp_avg_sq": (-1.0, math.inf, math.nan),
        NORM: (math.nan, math.inf),
    }
    low_bit = [*RESUME, "--optim.name", "adamw_4bit"]
    for index, argv in enumerate((CONVERT, RESUME, EXPORT, low_bit)):
        for name, values in invalid.items():
            for number in values[index % 2 :: 2] if argv is not EXPORT or name == NORM else ():
                change = holding(name, number)
                yield case(f"{name} is {number}, {argv[-1]}", change, "checkpoint-1", name, argv=argv)


CASES = [*states(), *damaged_files(), *runs(), *adapters(), *numbers(), *heads(), *optimizers()]


@pytest.mark.parametrize("case", sampled(CASES, every=8))
def test_a_checkpoint_is_handled_clearly(case: Case, trained: Path) -> None:
    judge(case, trained)
