"""What Megatron itself saved becomes the checkpoint that swift saved at the same step, bit for bit."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import megatron_imported  # noqa: F401
import megatron_saves
import pytest
import torch
from against_torch import MOE
from processes import on_processes, succeeded
from tiers import tiered

from swift.checkpoint import open_checkpoint
from swift.checkpoint.save import save_checkpoint
from swift.errors import CheckpointError
from swift.parsing import config_from_mapping
from swift.train.prepare import open_job
from swift_backend_megatron import megatron_runtime
from swift_migrate.convert.run import convert_checkpoint
from swift_migrate.convert.write import convert_to
from swift_testing.subjects import conversations, write_model

TIED = {"tie_word_embeddings": True}
SAVED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tensors": ("Qwen3", {}, {"parallel.tp": 2}),
    "interleaved": (
        "Llama",
        {"num_hidden_layers": 4, "tie_word_embeddings": True},
        {"parallel.pp": 2, "parallel.vpp": 2},
    ),
    "experts, sharded, in bfloat16": ("Qwen3Moe", MOE, {"parallel.ep": 2, "model.dtype": "bfloat16"}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a plan, with the model, Megatron's checkpoint and swift's; each is made once."""

    @cache
    def folder_of(name: str) -> Path:
        own = tmp_path_factory.mktemp("native")
        architecture, shape, plan = SAVED[name]
        model = write_model(own / "model", architecture=architecture, **shape)
        settings = {
            "model.path": str(model), "model.dtype": "float32", "tuner.kind": "full", "backend.name": "megatron",
            "train.global_batch": 4, "train.max_steps": 3, "optim.lr": 1e-3, "logging.output": str(own),
            "logging.run_name": "run", "logging.report_to": [], **plan,
        }  # fmt: skip
        (own / "settings.json").write_text(json.dumps(settings))
        succeeded(on_processes(2, partial(megatron_saves.train_and_save, own))[0])
        return own

    return folder_of


@pytest.mark.parametrize("name", tiered(SAVED, ["tensors"]))
def test_what_megatron_saved_is_what_swift_saved(saved: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    own = saved(name)

    def differences() -> list[str]:
        said: list[str] = []
        converted = convert_checkpoint(
            own, model=str(own / "model"), out=tmp_path / "out", adapter_config=None, say=said.append
        )
        assert any("Megatron's torch_dist checkpoint, step 3" in line for line in said)
        ours = open_checkpoint(converted)
        theirs = open_checkpoint(own / "model" / "run" / "checkpoint-3")
        assert set(ours.names()) == set(theirs.names())
        return [each for each in ours.names() if not torch.equal(ours.read(each), theirs.read(each))]

    (answers,) = on_processes(1, differences)
    assert succeeded(answers) == [[]]


LOADED: dict[str, dict[str, Any]] = {
    "tensors": {"parallel.dp_shard": 2},
    "interleaved": {"parallel.pp": 2},
    "experts, sharded, in bfloat16": {"parallel.ep": 2, "model.dtype": "bfloat16"},
}
"""Other layouts than those that saved, with the distributed optimizer."""


@pytest.mark.parametrize("name", tiered(LOADED, ["tensors"]))
def test_megatron_loads_what_is_written_for_it(saved: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    own = saved(name)
    checkpoint = own / "model" / "run" / "checkpoint-3"
    settings = json.loads((own / "settings.json").read_text())
    plan = {key: value for key, value in settings.items() if not key.startswith("parallel.")}
    plan |= {"logging.run_name": "loads", "logging.output": str(tmp_path), **LOADED[name]}
    out = tmp_path / "native"

    def write() -> list[str]:
        said: list[str] = []
        convert_to(checkpoint, to="megatron", out=out, say=said.append)
        return said

    def load() -> int:
        with open_job(config_from_mapping(plan), rows=conversations(13)) as job:
            with megatron_runtime.active():
                job.state.step = megatron_saves.load(job.state, out / "iter_0000003")
            save_checkpoint(
                tmp_path / "again", job.state.step,
                fill=lambda writer: job.hooks.swift_save_checkpoint(job.run, job.state, writer),
                manifest=job.manifest.model_copy(update={"step": job.state.step}), is_main=job.is_main,
            ).wait()  # fmt: skip
            return job.state.step

    assert succeeded(on_processes(1, write)[0])
    assert succeeded(on_processes(2, load)[0]) == [3, 3]
    ours, theirs = open_checkpoint(checkpoint), open_checkpoint(tmp_path / "again" / "checkpoint-3")
    assert set(ours.names()) == set(theirs.names())
    assert [each for each in ours.names() if not torch.equal(ours.read(each), theirs.read(each))] == []


def test_an_adapter_is_to_be_merged_first(tmp_path: Path) -> None:
    from swift_backend_megatron.native_writer import write_native

    class Adapted:
        adapter: ClassVar[dict[str, Any]] = {"peft_type": "LORA"}

    with pytest.raises(CheckpointError, match="holds an adapter") as caught:
        write_native(Adapted(), tmp_path)  # type: ignore[arg-type]
    assert "swift export" in (caught.value.hint or "")


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    from swift_backend_megatron.native import open_native

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "was run"),))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises((CheckpointError, AttributeError)):
        open_native(tmp_path)
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("../other/__0_0.distcp", "leads out of"), ("/etc/passwd", "leads out of"), (5, "not 5"), ("fifo", "fifo")],
)
def test_tensors_are_stored_in_folder_files(tmp_path: Path, place: object, complaint: str) -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    from swift_backend_megatron.native import open_native

    os.mkfifo(tmp_path / "fifo")
    lying: Any = _StorageInfo(place, 0, 8)  # type: ignore[arg-type]  # as a file may say
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={MetadataIndex("a"): lying})))
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(CheckpointError, match=complaint):
        open_native(tmp_path)


@pytest.mark.parametrize("table", [None, [], {"a": 5}])
def test_a_table_of_contents_of_another_kind_is_named(tmp_path: Path, table: object) -> None:
    from swift_backend_megatron.native import open_native

    (tmp_path / ".metadata").write_bytes(pickle.dumps(table))
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"\.metadata is no table of contents"):
        open_native(tmp_path)


def test_another_model_is_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", architecture="Llama", num_hidden_layers=3)

    folder = saved("tensors")

    def convert() -> None:
        convert_checkpoint(folder, model=str(other), out=tmp_path / "out", adapter_config=None, say=lambda _: None)

    ((answer,),) = on_processes(1, convert)
    assert isinstance(answer, CheckpointError), answer
    assert "--model" in (answer.hint or "")


class ByName:
    """What Python 3.11.0 to 3.11.3 makes of a member of an enumeration, when it pickles it."""

    def __init__(self, kind: type, name: str) -> None:
        self.reduced = (getattr, (kind, name))

    def __reduce__(self) -> Any:
        return self.reduced


def test_format_enum_pickled_by_older_python_is_read() -> None:
    """A format is read that an older Python saved by its name and no other attribute."""
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    from swift_backend_megatron import native

    plain = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    kinds = [(_MEM_FORMAT_ENCODING, plain.name), (Path, "touch")]
    found, other = (native._Unpickler(io.BytesIO(pickle.dumps(ByName(*each)))).load() for each in kinds)
    assert found is plain
    assert isinstance(other, native._Ignored)
