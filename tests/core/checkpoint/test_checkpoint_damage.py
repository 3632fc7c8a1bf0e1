"""A checkpoint that is damaged, half-written or of another run is refused; the one before it stays as it was."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import MANIFEST, on_processes

from swift.checkpoint import find_checkpoint, open_checkpoint, save_checkpoint
from swift.checkpoint.folders import clean_stale, link, prune
from swift.checkpoint.load import check_resume
from swift.checkpoint.save import wait_for_saves
from swift.errors import CheckpointError


def save(
    run: Path, step: int, *, rank: int = 0, meanwhile: Callable[[Path], None] | None = None, **options: Any
) -> Path:
    """`meanwhile` is done on every process, with the folder that is not whole yet."""
    # Several tensors, so that every process of two has some to write.
    tensors = {f"model.{name}": torch.full((64, 32), float(step)) for name in "abcd"}

    def fill(writer: Any) -> None:
        writer.tensors(tensors)
        if meanwhile is not None:
            meanwhile(run / f"checkpoint-{step}.tmp")

    pending = save_checkpoint(run, step, fill=fill, manifest=MANIFEST, is_main=rank == 0, **options)
    return pending.wait()


def assert_whole(run: Path, step: int) -> None:
    """The last checkpoint is that of `step`, whole, and nothing half-written is beside it."""
    assert find_checkpoint(run) == (run / f"checkpoint-{step}").resolve()
    assert (run / "last-checkpoint").resolve() == (run / f"checkpoint-{step}").resolve()
    assert torch.equal(open_checkpoint(run / "last-checkpoint").read("model.c"), torch.full((64, 32), float(step)))
    assert list(run.glob("*.tmp")) == []


def shard(folder: Path) -> Path:
    return folder / "state" / "00000.safetensors"


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def test_one_flipped_bit_is_found_on_every_process(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    flip_a_bit(shard(folder))

    def work(_: int) -> str:
        with pytest.raises(CheckpointError, match="was altered") as caught:
            open_checkpoint(folder)
        return caught.value.message

    for message in on_processes(2, work):
        assert "state/00000.safetensors" in message


def test_a_truncated_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    whole = shard(folder).read_bytes()
    shard(folder).write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=rf"00000\.safetensors has {len(whole) - 100} bytes instead of"):
        open_checkpoint(folder)
    shard(folder).unlink()
    with pytest.raises(CheckpointError, match=r"00000\.safetensors is missing"):
        open_checkpoint(folder)


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / "manifest.json"
    value = json.loads(path.read_text())
    value["step"] = 4
    path.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="was altered"):
        open_checkpoint(path.parent)
    path.write_text('{"format": 1, "st')
    with pytest.raises(CheckpointError, match="malformed JSON"):
        open_checkpoint(path.parent)


def test_newer_format_suggests_upgrade(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / "manifest.json"
    path.write_text(json.dumps({"format": 2, "anything": "else"}))
    with pytest.raises(CheckpointError, match="format 2; this swift reads formats up to 1") as caught:
        open_checkpoint(path.parent)
    assert "packages/core" in str(caught.value)


@pytest.mark.parametrize("size", [1, 2])
def test_kill_during_save_keeps_previous_checkpoint(tmp_path: Path, size: int) -> None:
    """A process killed while saving leaves the previous checkpoint whole."""
    save(tmp_path, 1)
    victim = size - 1

    def work(rank: int) -> None:
        def die(_: Path) -> None:
            if rank == victim:
                os._exit(9)

        # The others hear of it instead of waiting for ever.
        with pytest.raises(RuntimeError):
            save(tmp_path, 2, rank=rank, meanwhile=die)

    on_processes(size, work, dying=victim)
    assert (tmp_path / "checkpoint-2.tmp").is_dir()
    assert find_checkpoint(tmp_path) == (tmp_path / "checkpoint-1").resolve()
    clean_stale(tmp_path)
    assert_whole(tmp_path, 1)
    save(tmp_path, 2)
    assert_whole(tmp_path, 2)


def test_full_disk_on_one_rank_keeps_previous_checkpoint(tmp_path: Path) -> None:
    """A full disk on one process is an error on all and the previous checkpoint stays."""
    save(tmp_path, 1)

    def work(rank: int) -> str:
        def fill_the_disk(folder: Path) -> None:
            if rank == 0:
                (folder / "state" / "00001.safetensors").symlink_to("/dev/full")

        with pytest.raises(CheckpointError) as caught:
            save(tmp_path, 2, rank=rank, meanwhile=fill_the_disk)
        return str(caught.value)

    for message in on_processes(2, work):
        assert "Checkpoint 2 could not be written" in message
        assert "the disk is full" in message
        assert "Free some space" in message
    assert_whole(tmp_path, 1)


def test_a_failed_background_save_is_reported_by_the_next_one(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def fill(writer: Any) -> None:
        writer.tensors({"model.c": torch.zeros(64, 64)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def work(_: int) -> None:
        pending = save_checkpoint(tmp_path, 2, fill=fill, manifest=MANIFEST, is_main=True, asynchronous=True)
        with pytest.raises(CheckpointError, match="larger than this system allows"):
            save(tmp_path, 3)
        with pytest.raises(CheckpointError, match="larger than this system allows"):
            pending.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        save(tmp_path, 3, asynchronous=True)
        wait_for_saves(tmp_path)

    on_processes(1, work)
    assert_whole(tmp_path, 3)


def test_unwritable_path_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not be written to .*file/run: Not a directory"):
        save(tmp_path / "file" / "run", 1)


def test_a_step_that_is_reached_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    folder = save(tmp_path, 2, extra=lambda stored: (stored.folder / "second").write_text(""))
    assert (folder / "second").is_file()
    assert_whole(tmp_path, 2)


def test_run_folder_resolves_to_last_checkpoint(tmp_path: Path) -> None:
    """A run folder means its last checkpoint and last means the newest run."""
    first, second = tmp_path / "model" / "v0", tmp_path / "model" / "v1"
    save(first, 5)
    save(first, 10)
    save(second, 2)
    os.utime(first / "checkpoint-10" / "manifest.json", (1, 1))
    os.utime(first / "checkpoint-5" / "manifest.json", (1, 1))
    assert find_checkpoint(first) == (first / "checkpoint-10").resolve()
    assert find_checkpoint(str(first / "checkpoint-5")) == (first / "checkpoint-5").resolve()
    assert find_checkpoint("last", output=tmp_path) == (second / "checkpoint-2").resolve()
    # Going back to an earlier step makes that one the last.
    link(first, "last-checkpoint", 5)
    assert find_checkpoint(first) == (first / "checkpoint-5").resolve()


def test_a_wrong_path_gets_the_checkpoints_that_there_are(tmp_path: Path) -> None:
    save(tmp_path, 5)
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*checkpoint-50") as caught:
        find_checkpoint(tmp_path / "checkpoint-50")
    assert "checkpoint-5" in (caught.value.hint or "")
    with pytest.raises(CheckpointError, match="No run under"):
        find_checkpoint("last", output=tmp_path / "nothing")


def test_old_checkpoints_go_but_never_the_best_or_the_last(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 10):
        save(tmp_path, step)
    assert prune(tmp_path, keep=2, best_step=2) == [tmp_path / "checkpoint-1", tmp_path / "checkpoint-3"]
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (2, 4, 10)}
    link(tmp_path, "last-checkpoint", 2)
    assert prune(tmp_path, keep=1) == [tmp_path / "checkpoint-4"]
    assert (tmp_path / "checkpoint-2").is_dir()


def test_changed_settings_on_resume_are_named() -> None:
    adapter = {"r": 8, "lora_alpha": 16, "target_modules": {"q_proj", "v_proj"}}
    before = {"r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}
    changes = {"config": {"model": {"path": "old-model"}}, "adapter": before}
    saved = MANIFEST.model_copy(update=changes).model_dump()
    same: dict[str, Any] = {"model_fingerprint": "m", "data_fingerprint": "d", "seed": 1, "adapter": adapter}
    check_resume(saved, **same)
    for change, said in (
        ({"model_fingerprint": "x"}, r"the model \(it was old-model\)"),
        ({"data_fingerprint": "x"}, "the data"),
        ({"seed": 2}, r"the seed \(it was 1, now 2\)"),
        ({"adapter": {**adapter, "target_modules": ["q_proj"]}}, "the adapter's target_modules"),
        ({"adapter": {**adapter, "r": 16}}, r"the adapter's r \(it was 8, now 16\)"),
        ({"adapter": None}, r"the tuner \(it was an adapter\)"),
    ):
        with pytest.raises(CheckpointError, match=said):
            check_resume(saved, **{**same, **change})
