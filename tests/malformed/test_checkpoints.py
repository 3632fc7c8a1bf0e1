"""Checkpoints, runs and adapters with files that are damaged, hostile or do not belong together."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import spoil
from draws import drawn, wrong
from judge import CANARY, Case, judge, sampled

from swift.checkpoint.checksums import hash_file
from swift.checkpoint.manifest import _checksum
from swift.cli.main import run

TRAIN = [
    "sft",
    "--model",
    "model",
    "--dataset",
    "data.jsonl",
    "--backend.device",
    "cpu",
    "--data.workers",
    "1",
    "--report_to",
    "jsonl",
]
ASKED = ["--prompt", "hello", "--max_new_tokens", "2"]
INFER = ["infer", "full", *ASKED]
EXPORT = ["export", "full", "--out", "out", "--verify", "none"]
CONVERT = ["convert", "full", "--to", "trainer", "--out", "out"]
RESUME = [
    *TRAIN,
    "--tuner.kind",
    "full",
    "--max_steps",
    "2",
    "--resume_from_checkpoint",
    "full/checkpoint-1",
    "--checkpoint.save_last",
    "false",
]
LORA = ["infer", "lora", *ASKED]
MERGE = ["merge-lora", "lora", "--out", "out", "--no-verify"]
ADAPTER = ["infer", "model", "--adapters", "adapter", *ASKED]
ADAPTER_ALONE = ["infer", "adapter", *ASKED]
FURTHER = [*TRAIN, "--adapters", "adapter", "--max_steps", "1", "--checkpoint.save_last", "false"]
IMPORT = ["convert", "adapter", "--model", "model", "--out", "out"]

Spoil = Callable[[Path], object]
Expected = Literal["refused", "works", "either"]
RUNS = ("*.lock", "output", "output/*", "full/*", "lora/*")
"""What a run that is refused after its folder was claimed leaves."""


@pytest.fixture(scope="session")
def trained(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with two runs of one step: `full` and `lora`, and the folder of an adapter alone."""
    folder = tmp_path_factory.mktemp("trained") / "template"
    shutil.copytree(template, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        for kind in ("full", "lora"):
            argv = [
                *TRAIN,
                "--tuner.kind",
                kind,
                "--max_steps",
                "1",
                "--output_dir",
                "runs",
                "--logging.run_name",
                kind,
            ]
            assert run(argv) == 0
            (folder / "runs" / "model" / kind).rename(folder / kind)
    shutil.rmtree(folder / "runs")
    (folder / "adapter").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / "lora" / "checkpoint-1" / name, folder / "adapter" / name)
    return folder


def case(name: str, change: Spoil, *names: str, argv: Sequence[str], at: str, expected: Expected = "refused") -> Case:
    """A case that changes one file or folder."""

    def build(folder: Path) -> Sequence[str]:
        change(folder / at)
        return argv

    return Case(f"{name} ({argv[0]} {at})", build, expected, names, leaves=RUNS if argv[0] == "sft" else ())


def sealed(change: Spoil) -> Spoil:
    """Changes a checkpoint, and makes its manifest vouch for what it holds then."""

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


def in_manifest(key: str, value: Any) -> Spoil:
    def build(checkpoint: Path) -> None:
        file = checkpoint / "manifest.json"
        spoil.set_in(file, key, value)
        manifest = json.loads(file.read_text())
        del manifest["checksum"]
        file.write_text(json.dumps({**manifest, "checksum": _checksum(manifest)}))

    return build


MANIFEST: dict[str, list[Any]] = {
    "format": [0, -1, "1", None, 1.5, True, [1], 10**30, 99],
    "step": [-1, "1", None, 1.5, True, [1], 10**30, {}],
    "rows_per_step": [-1, "1", None, 1.5, [1], 10**30],
    "seed": ["x", None, 1.5, [1]],
    "model_fingerprint": [7, None, [1], "nothing"],
    "data_fingerprint": [7, None, [1]],
    "backend": [7, None, [1]],
    "config": [7, None, [1], "x", {}, {"model": 7}, {"model": []}],
    "config.model": [7, None, [1], {}, {"path": 7}, {"path": "../nothing"}, {"path": "/etc"}, {"unknown": 1}],
    "config.model.path": [7, None, "", "a\0b", "x" * 100_000, "/dev/zero", ".."],
    "config.model.random_weights": ["x", 7],
    "config.model.chat_template": [7, "/dev/zero", "/nothing", "."],
    "config.data": [7, None, [1], {"system": 7}, {"max_length": -1}],
    "config.tuner": [7, [1], {"kind": "x"}, {"rank": -1}],
    "config.optim": [7, [1], {"lr": "x"}, {"beta1": 7}],
    "config.train": [7, [1], {"epochs": -1}],
    "schedule": [7, None, [1], {"total_steps": "x"}, {"total_steps": -1}, {"total_steps": 10**30}, {"peak": "x"}],
    "metrics": [7, None, [1], {"loss": "x"}],
    "facts": [
        7,
        None,
        [1],
        {"progress": 7},
        {"progress": {"best": 7}},
        {"progress": {"best": {"value": "x"}}},
        {"progress": {"epoch": "x"}},
        {"progress": {"epoch": math.nan}},
        {"scaler": 7},
        {"scaler": {"scale": "x"}},
    ],
    "plugins": [7, None, [1], {"a": 7}],
    "versions": [7, None, [1], {"a": 7}],
    "files": [
        7,
        None,
        [1],
        {},
        {"state/index.json": 7},
        {"x": {"size": "x"}},
        {"x": {"size": -1, "xxh3_128": "x"}},
        {"../../etc/passwd": {"size": 1, "xxh3_128": "x"}},
        {"/etc/passwd": {"size": 1, "xxh3_128": "x"}},
        {"/dev/zero": {"size": 1, "xxh3_128": "x"}},
        {"": {"size": 1, "xxh3_128": "x"}},
    ],
    "adapter": [7, [1], "x", {}, {"peft_type": "LORA", "r": "x"}, {"peft_type": "PROMPT_TUNING"}],
}
CLEAR = frozenset({"format", "step", "rows_per_step", "files", "facts", "schedule", "config.data", "config.tuner"})
"""Keys of which no other value is taken."""


def manifests() -> Iterator[Case]:
    commands = (INFER, EXPORT, CONVERT, RESUME)
    for number, (key, values) in enumerate(MANIFEST.items()):
        for offset, value in enumerate(drawn(key, values, 4 if key in CLEAR else 2)):
            argv = commands[(number + offset) % 4]
            accepted = (key == "config.data" and value is None) or key not in CLEAR
            yield case(
                f"manifest: {key} is {value!r:.40}",
                in_manifest(key, value),
                "checkpoint-1" if not accepted else "",
                argv=argv,
                at="full/checkpoint-1",
                expected="either" if accepted else "refused",
            )
    for key in ("format", "step", "seed", "model_fingerprint", "config", "files", "rows_per_step", "backend"):

        def dropped(checkpoint: Path, key: str = key) -> None:
            spoil.drop_in(checkpoint / "manifest.json", key)
            sealed(lambda _: None)(checkpoint)

        for argv in drawn(key, (INFER, EXPORT), 1):
            yield case(f"manifest without {key}", dropped, "full", argv=argv, at="full/checkpoint-1")
    for what, change in {**spoil.NOT_A_FILE, **spoil.NOT_AN_OBJECT}.items():
        for argv in drawn(what, (INFER, EXPORT, RESUME), 1):
            yield case(f"manifest is {what}", change, "full", argv=argv, at="full/checkpoint-1/manifest.json")
    for argv, run_folder in ((INFER, "full"), (EXPORT, "full"), (CONVERT, "full"), (LORA, "lora"), (MERGE, "lora")):
        at = f"{run_folder}/checkpoint-1/manifest.json"
        yield case("manifest is not there", lambda file: file.unlink(), run_folder, argv=argv, at=at)
        named = [word.replace(run_folder, f"{run_folder}/checkpoint-1") for word in argv]
        yield case(
            "manifest of a checkpoint is not there", lambda file: file.unlink(), "checkpoint-1", argv=named, at=at
        )


INDEX: dict[str, list[Any]] = {
    "tensors": [7, None, [1], {}, {"x": 7}, {"x": {}}],
    "tensors.{}": [7, None, [1], {}],
    "tensors.{}.dtype": [7, None, "F99", ["F32"], "I64"],
    "tensors.{}.shape": [7, None, ["x"], [-64], [1 << 62, 1 << 62], [65], [True], [[64]], []],
    "tensors.{}.chunks": [7, None, [], [7], [{}]],
    "tensors.{}.chunks.0.offsets": [7, None, ["x"], [-1], [1], [0, 0], [10**30]],
    "tensors.{}.chunks.0.sizes": [7, None, ["x"], [-64], [65], [0], [64, 1]],
    "tensors.{}.chunks.0.file": [
        7,
        None,
        "../../../../../etc/passwd",
        "/etc/passwd",
        "/dev/zero",
        "nothing",
        "a\0b",
        "",
    ],
    "tensors.{}.chunks.0.key": [7, None, "nothing", ""],
}
NORM = "model.model.norm.weight"


def _index(key: str, value: Any) -> Spoil:
    def build(checkpoint: Path) -> None:
        file = checkpoint / "state" / "index.json"
        content = json.loads(file.read_text())
        place: Any = content
        *parents, leaf = [NORM if part == "{}" else part for part in key.split(".")]
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[leaf] = value
        file.write_text(json.dumps(content))

    return sealed(build)


def states() -> Iterator[Case]:
    commands = (EXPORT, CONVERT, RESUME)
    at = "full/checkpoint-1"
    for number, (key, values) in enumerate(INDEX.items()):
        for offset, value in enumerate(drawn(key, values, 4)):
            empty = key == "tensors" and value == {}
            argv = commands[(number + offset) % 3]
            yield case(
                f"index: {key} is {value!r:.40}",
                _index(key, value),
                "full",
                argv=argv,
                at=at,
                expected="either" if empty else "refused",
            )

    def lost(checkpoint: Path) -> None:
        file = checkpoint / "state" / "index.json"
        content = json.loads(file.read_text())
        del content["tensors"][NORM]
        file.write_text(json.dumps(content))

    for argv in (EXPORT, CONVERT):
        yield case(f"index: a weight is gone for {argv[0]}", sealed(lost), "checkpoint-1", NORM, argv=argv, at=at)
    for what, change in {**spoil.NOT_A_FILE, **spoil.NOT_AN_OBJECT}.items():

        def spoilt(checkpoint: Path, change: Spoil = change) -> None:
            change(checkpoint / "state" / "index.json")

        yield case(f"index is {what}", spoilt, "index.json", argv=EXPORT, at=at)
        if what in spoil.NOT_AN_OBJECT:
            yield case(f"index is {what}, and vouched for", sealed(spoilt), "index.json", argv=EXPORT, at=at)

    def header(change: Callable[[dict[str, Any]], object]) -> Spoil:
        def build(checkpoint: Path) -> None:
            file = next((checkpoint / "state").glob("*.safetensors"))
            head, data = spoil.header_of(file)
            changed = change(head)
            spoil.put_header(file, changed if changed is not None else head, data)

        return sealed(build)

    heads: dict[str, Callable[[dict[str, Any]], object]] = {
        "overlapping": lambda head: head[NORM].update(data_offsets=[o - 4 for o in head[NORM]["data_offsets"]]),
        "outside": lambda head: head[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256]),
        "of another type": lambda head: head[NORM].update(dtype="I32"),
        "of another shape": lambda head: head[NORM].update(shape=[8, 8]),
        "gone": lambda head: head.update({"other": head.pop(NORM)}),
        "a list": lambda _: [1],
        "bytes": lambda _: b"\xff" * 50,
    }
    for name, change in heads.items():
        for argv in drawn(name, (EXPORT, RESUME), 1):
            yield case(f"state: a tensor is {name}", header(change), "state", argv=argv, at=at)
    for name in ("state", "state/index.json", "model.safetensors", "config.json", "tokenizer.json"):
        for argv in (INFER, EXPORT, RESUME):

            def removed(checkpoint: Path, name: str = name) -> None:
                path = checkpoint / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()

            yield case(f"{name} is gone", removed, "full", argv=argv, at=at)

            def cut(checkpoint: Path, name: str = name) -> None:
                file = checkpoint / name if name != "state" else next((checkpoint / name).glob("*.safetensors"))
                file.write_bytes(file.read_bytes()[:-9])

            yield case(f"{name} is cut off", cut, "full", argv=argv, at=at)

            def altered(checkpoint: Path, name: str = name) -> None:
                file = checkpoint / name if name != "state" else next((checkpoint / name).glob("*.safetensors"))
                content = bytearray(file.read_bytes())
                content[-9] ^= 1
                file.write_bytes(content)

            # What infer does not read, it does not check byte by byte.
            unread = argv is INFER and name.startswith("state")
            expected: Expected = "works" if unread else "refused"
            yield case(f"{name} is altered", altered, "full", argv=argv, at=at, expected=expected)


def runs() -> Iterator[Case]:
    links: dict[str, str] = {
        "nothing": "checkpoint-9",
        "itself": "last-checkpoint",
        "the run": ".",
        "elsewhere": "../..",
        "a device": "/dev/zero",
        "a file": "args.json",
    }
    for name, target in links.items():

        def linked(run_folder: Path, target: str = target) -> None:
            (run_folder / "last-checkpoint").unlink(missing_ok=True)
            (run_folder / "last-checkpoint").symlink_to(target)

        for argv in drawn(name, (INFER, EXPORT, [*INFER[:1], "full/last-checkpoint", *INFER[2:]]), 1):
            yield case(
                f"last-checkpoint is a link to {name}: {argv[1]}",
                linked,
                "full",
                argv=argv,
                at="full",
                expected="either",
            )
    for file in ("args.json", "config.yaml", "logging.jsonl", "report.html"):
        for what, change in drawn(file, {**spoil.NOT_A_FILE, **spoil.NOT_AN_OBJECT}.items(), 5):
            if "GiB" in what:
                continue
            for argv in drawn(what, (INFER, RESUME), 1):
                yield case(f"{file} is {what}", change, "full", argv=argv, at=f"full/{file}", expected="either")

    def renamed(run_folder: Path) -> None:
        (run_folder / "checkpoint-1").rename(run_folder / "checkpoint-99999999999999999999999")

    yield case("a checkpoint of a step beyond reason", renamed, "full", argv=INFER, at="full", expected="either")


CONFIG = """peft_type r lora_alpha lora_dropout target_modules exclude_modules modules_to_save layers_to_transform
    layers_pattern rank_pattern alpha_pattern bias use_dora use_rslora fan_in_fan_out init_lora_weights task_type
    auto_mapping megatron_config layer_replication base_model_name_or_path loftq_config eva_config target_parameters
    trainable_token_indices use_qalora alora_invocation_tokens nothing_known runtime_config"""
"""Keys of adapter_config.json that libraries read."""
NEVER_ENDS = "a pattern that never ends"
SLOW = "(([a-z_.0-9]+)+)+!"


def adapters() -> Iterator[Case]:
    commands = (ADAPTER, ADAPTER_ALONE, FURTHER, IMPORT)
    for number, key in enumerate(CONFIG.split()):
        for offset, value in enumerate(wrong(key, 2)):
            argv = commands[(number + offset) % 4]
            change = lambda file, k=key, v=value: spoil.edit(file, **{k: v})  # noqa: E731
            yield case(
                f"adapter: {key} is {value!r:.40}",
                change,
                "adapter",
                argv=argv,
                at="adapter/adapter_config.json",
                expected="either",
            )
    for key, value in (
        ("r", 0),
        ("r", "8"),
        ("r", 7),
        ("target_modules", ["nothing"]),
        ("lora_alpha", math.nan),
        ("peft_type", "PROMPT_TUNING"),
        ("megatron_config", {"a": 1}),
        ("use_dora", True),
    ):
        for argv in drawn(key, (ADAPTER, FURTHER), 1):
            change = lambda file, k=key, v=value: spoil.edit(file, **{k: v})  # noqa: E731
            yield case(
                f"adapter must not have {key} {value!r}: {argv[0]}",
                change,
                "adapter",
                argv=argv,
                at="adapter/adapter_config.json",
            )
    for what, change in {**spoil.NOT_A_FILE, **spoil.NOT_AN_OBJECT}.items():
        for argv in drawn(what, (ADAPTER, ADAPTER_ALONE, FURTHER), 1):
            yield case(f"adapter_config.json is {what}", change, "adapter", argv=argv, at="adapter/adapter_config.json")
    for what, change in spoil.NOT_A_FILE.items():
        for argv in drawn(what, (ADAPTER, FURTHER), 1):
            yield case(
                f"adapter_model.safetensors is {what}",
                change,
                "adapter",
                argv=argv,
                at="adapter/adapter_model.safetensors",
            )
    slow: dict[str, Any] = {
        "target_modules": SLOW,
        "exclude_modules": SLOW,
        "modules_to_save": [SLOW],
        "rank_pattern": {SLOW: 8},
        "alpha_pattern": {SLOW: 8},
        "layers_pattern": SLOW,
    }
    for key, value in slow.items():
        change = lambda file, k=key, v=value: spoil.edit(file, layers_to_transform=[0], **{k: v})  # noqa: E731
        yield case(
            f"{NEVER_ENDS}: {key}",
            change,
            key,
            "adapter_config.json",
            argv=ADAPTER,
            at="adapter/adapter_config.json",
        )

    def weights(change: Callable[[dict[str, Any]], object]) -> Spoil:
        def build(file: Path) -> None:
            tensors = spoil.tensors_of(file)
            changed = change(tensors)
            spoil.put_tensors(file, changed if isinstance(changed, dict) else tensors)

        return build

    def first(all: dict[str, Any], part: str = "lora_A") -> str:
        return next(name for name in sorted(all) if part in name)

    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "one is missing": lambda all: all.pop(first(all)) is None,
        "all of one kind are missing": lambda all: {name: each for name, each in all.items() if "lora_A" in name},
        "none": lambda _: {},
        "one too many": lambda all: all.update({first(all).replace("layers.0", "layers.7"): all[first(all)].clone()}),
        "something else": lambda all: all.update({"other.weight": all[first(all)].clone()}),
        "of another rank": lambda all: all.update({first(all): all[first(all)][:3].clone()}),
        "of another width": lambda all: all.update({first(all): all[first(all)][:, :3].clone()}),
        "of one dimension": lambda all: all.update({first(all): all[first(all)][0].clone()}),
        "not a number": lambda all: all[first(all)][0].fill_(math.nan) is None,
        "infinite": lambda all: all[first(all, "lora_B")][0].fill_(math.inf) is None,
        "whole numbers": lambda all: all.update({first(all): all[first(all)].long()}),
    }
    for name, change in changes.items():
        for argv in drawn(name, (ADAPTER, ADAPTER_ALONE, FURTHER, IMPORT), 2):
            yield case(
                f"adapter: {name}: {argv[1]}",
                weights(change),
                "adapter",
                argv=argv,
                at="adapter/adapter_model.safetensors",
                # What convert leaves out, it says.
                expected="either" if argv is IMPORT and name in ("one too many", "something else") else "refused",
            )

    def other_model(folder: Path) -> None:
        from swift.testing.subjects import write_model

        shutil.rmtree(folder / "model")
        write_model(folder / "model", hidden_size=32, num_hidden_layers=1)

    for argv in (ADAPTER, FURTHER):
        yield case("an adapter of another model", other_model, "adapter", argv=argv, at=".")


def pickles() -> Iterator[Case]:
    """optimizer.pt beside weights, as the Trainer leaves it."""
    argv = ["convert", "trainer", "--model", "model", "--out", "out"]

    def beside(make: Callable[[Path], object]) -> Spoil:
        def build(folder: Path) -> None:
            shutil.copytree(folder / "model", folder / "trainer")
            (folder / "trainer" / "trainer_state.json").write_text('{"global_step": 1, "max_steps": 1}')
            make(folder / "trainer" / "optimizer.pt")

        return build

    def saved(content: Any) -> Callable[[Path], object]:
        def make(file: Path) -> None:
            import torch

            torch.save(content() if callable(content) else content, file)

        return make

    def code(file: Path) -> None:
        file.write_bytes(f"cbuiltins\nopen\n(V{file.parent.parent / CANARY}\nVw\ntR.".encode())

    def archived(data: Callable[[Path], bytes], *, packed: bool = False) -> Callable[[Path], object]:
        def make(file: Path) -> None:
            import zipfile

            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
                archive.writestr("archive/data.pkl", data(file))
                archive.writestr("archive/version", "3\n")

        return make

    def expanded() -> Any:
        import torch

        wide = torch.zeros(1).expand(1 << 40)
        return {
            "state": {0: {"exp_avg": wide, "exp_avg_sq": wide, "step": torch.zeros(())}},
            "param_groups": [{"params": [0], "lr": 0.1}],
        }

    makers: dict[str, Callable[[Path], object]] = {
        "runs code": code,
        "runs code in an archive": archived(
            lambda file: f"cbuiltins\nopen\n(V{file.parent.parent / CANARY}\nVw\ntR.".encode()
        ),
        "is a bomb": archived(lambda _: b"\x80\x02" + b"(" * (200 << 20) + b".", packed=True),
        "wants memory": archived(lambda _: b"\x80\x02cbuiltins\nbytearray\nL1000000000000L\n\x85R."),
        "is nested without end": archived(lambda _: b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."),
        "holds a tensor that is not stored": saved(expanded),
        "is a list": saved([1]),
        "is a number": saved(7),
        "holds other types": saved({"state": 7, "param_groups": 7}),
        "holds states that are none": saved({"state": {0: 7}, "param_groups": [{"params": [0]}]}),
        "holds groups that are none": saved({"state": {}, "param_groups": [7]}),
        "is empty": lambda file: file.write_bytes(b""),
        "is bytes": lambda file: file.write_bytes(bytes(range(256))),
        **spoil.NOT_A_FILE,
    }
    for name, make in makers.items():
        missing = name in ("a link to nothing", "a link to itself")
        yield case(
            f"optimizer.pt {name}",
            beside(make),
            "optimizer.pt",
            argv=argv,
            at=".",
            expected="either" if missing else "refused",
        )
    steps: list[Any] = ["x", -1, 1.5, [1], 10**30, True]
    for value in steps:

        def told(folder: Path, value: Any = value) -> None:
            shutil.copytree(folder / "model", folder / "trainer")
            (folder / "trainer" / "trainer_state.json").write_text(json.dumps({"global_step": value}))

        yield case(f"trainer_state.json: global_step is {value!r:.40}", told, "trainer_state.json", argv=argv, at=".")
    for key in ("seed", "global_batch_size", "model"):
        for value in drawn(key, ("x", -1, [1], 10**30), 2):

            def beside_it(folder: Path, key: str = key, value: Any = value) -> None:
                shutil.copytree(folder / "model", folder / "trainer")
                (folder / "trainer" / "args.json").write_text(json.dumps({key: value}))

            yield case(f"args.json: {key} is {value!r:.40}", beside_it, argv=argv, at=".", expected="either")


def optimizers() -> Iterator[Case]:
    """AdamW's state as the Trainer leaves it, where a number of it is none."""

    def holding(change: Callable[[dict[Any, Any]], object]) -> Spoil:
        def build(folder: Path) -> None:
            import torch

            assert run(["convert", "full", "--to", "trainer", "--out", "trainer"]) == 0
            file = folder / "trainer" / "optimizer.pt"
            state = torch.load(file, weights_only=True)
            change(state)
            torch.save(state, file)

        return build

    argv = ["convert", "trainer", "--model", "model", "--out", "out"]
    yield case("the Trainer's optimizer", holding(lambda _: None), argv=argv, at=".", expected="works")
    settings: dict[str, list[Any]] = {
        "initial_lr": ["x", None, -1.0, math.nan, 10**30],
        "betas": ["x", (0.9,), (2.0, 0.9), (math.nan, 0.9), {"a": 1}],
        "eps": [None, [1], -1.0, math.nan, True],
        "weight_decay": ["x", math.inf, -1.0],
    }
    for name, values in settings.items():
        for value in drawn(name, values, 2):
            change = lambda state, n=name, v=value: state["param_groups"][0].update({n: v})  # noqa: E731
            shown = "beta" if name == "betas" else name.removeprefix("initial_")
            yield case(f"{name} is {value!r}", holding(change), "trainer", shown, argv=argv, at=".")
    for slot in ("step", "exp_avg", "exp_avg_sq"):
        changes: dict[str, Callable[[dict[str, Any]], object]] = {
            "not there": lambda slots, s=slot: slots.pop(s),  # type: ignore[misc]
            "NaN": lambda slots, s=slot: slots[s].fill_(math.nan),  # type: ignore[misc]
            "complex": lambda slots, s=slot: slots.update({s: slots[s] * 1j}),  # type: ignore[misc]
        }
        for what, spoilt in changes.items():
            change = lambda state, c=spoilt: c(state["state"][0])  # noqa: E731
            yield case(f"{slot} is {what}", holding(change), slot if what != "complex" else "", argv=argv, at=".")


def numbered(cases: Sequence[Case]) -> list[Case]:
    """Gives cases of the same name, which take different commands, names of their own."""
    return [replace(each, name=f"{number}: {each.name}") for number, each in enumerate(cases)]


def numbers() -> Iterator[Case]:
    """Numbers from which nothing can go on: of a weight, of its moments, of how often it was updated."""
    moments = f"optim.{NORM.removeprefix('model.')}"

    def holding(name: str, number: float) -> Spoil:
        def build(checkpoint: Path) -> None:
            entry = json.loads((checkpoint / "state" / "index.json").read_text())["tensors"][name]["chunks"][0]
            tensors = spoil.tensors_of(checkpoint / entry["file"])
            tensors[entry["key"]].fill_(number)
            spoil.put_tensors(checkpoint / entry["file"], tensors)

        return sealed(build)

    unsound = {
        f"{moments}.step": (1e30, math.nan, math.inf, -math.inf, -1.0, 0.5),
        f"{moments}.exp_avg": (math.inf, math.nan),
        f"{moments}.exp_avg_sq": (-1.0, math.inf, math.nan),
        NORM: (math.nan, math.inf),
    }
    low_bit = [*RESUME, "--optim.name", "adamw_4bit"]
    for argv in (CONVERT, RESUME, EXPORT, low_bit):
        for name, values in unsound.items():
            for number in drawn(f"{argv} {name}", values, 1) if argv is not EXPORT or name == NORM else ():
                change = holding(name, number)
                yield case(f"{name} is {number}", change, "checkpoint-1", name, argv=argv, at="full/checkpoint-1")


def heads() -> Iterator[Case]:
    """Heads of adapters, of which a folder says no other size."""

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
    for shape in ((), (64,), (0, 64), (2, 8)):
        yield case(f"a head of the shape {shape}", shaped(*shape), "score", argv=infer, at="adapter")


CASES = numbered([*manifests(), *states(), *runs(), *adapters(), *pickles(), *numbers(), *heads(), *optimizers()])


@pytest.mark.parametrize("case", sampled(CASES, every=12))
def test_a_checkpoint_is_answered_clearly(case: Case, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if NEVER_ENDS in case.name:
        monkeypatch.setattr("swift.models.adapter_file._SECONDS", 1.0)
    judge(case, trained)
