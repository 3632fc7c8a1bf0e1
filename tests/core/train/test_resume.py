"""A resumed run makes the very steps that an uninterrupted one makes."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from safetensors.torch import load_file, save_file
from tiny_runs import Trained, conversations, pairs, run_training, verdicts, write_jsonl, write_model

from swift.errors import CheckpointError, ConfigError

SAME = 1e-6
ROWS = conversations(26)
HELD_OUT = conversations(5, seed=7)
SHUFFLED = {
    "data.shuffle": True,
    "train.max_steps": 10,
    "train.global_batch": 4,
    "train.micro_batch": 2,
    "checkpoint.save_steps": 5,
    "checkpoint.save_last": True,
    "train.eval_steps": 2,
}
LORA = {"tuner.kind": "lora", "optim.lr": 1e-2, "optim.schedule": "wsd", "optim.decay_ratio": 0.5}


def resumed(trained: Trained, changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings that go on from step 5 of a run, in a folder of its own."""
    return {**changes, "checkpoint.resume": str(trained.folder / "checkpoint-5"), "logging.run_name": "resumed", **more}


def check_same(whole: Trained, rest: Trained) -> None:
    later = {step: line for step, line in whole.lines.items() if step > 5}
    assert list(rest.lines) == list(later) == [6, 7, 8, 9, 10]
    for key in ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss"):
        ours, theirs = ([line.get(key, 0.0) for line in lines.values()] for lines in (rest.lines, later))
        assert ours == pytest.approx(theirs, rel=SAME), key


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="full"),
        pytest.param({"checkpoint.asynchronous": True}, id="full, saved in the background"),
        pytest.param({**LORA}, id="lora with dropout"),
        pytest.param({"optim.name": "adafactor"}, id="adafactor"),
        pytest.param({"model.dtype": "float16"}, id="float16"),
    ],
)
def test_a_resumed_run_makes_the_same_steps_on_the_same_samples(
    tied: Path, tmp_path: Path, recorder: list[str], changes: dict[str, Any]
) -> None:
    settings = {**SHUFFLED, **changes, "logging.report_to": recorder}
    whole = run_training(tied, tmp_path, ROWS, settings, validation=HELD_OUT)
    rest = run_training(tied, tmp_path, ROWS, resumed(whole, settings), validation=HELD_OUT)
    check_same(whole, rest)
    assert rest.summary.last_checkpoint == rest.folder / "checkpoint-10"
    taken = whole.samples()
    assert rest.samples() == {step: taken[step] for step in range(5, 10)}


@pytest.mark.parametrize(
    ("objective", "rows", "tuner"),
    [("dpo", pairs(14), {}), ("kto", verdicts(14), LORA)],
    ids=["dpo full", "kto lora"],
)
def test_resumed_reference_is_initial_model(
    tied: Path, tmp_path: Path, objective: str, rows: list[Any], tuner: dict[str, Any]
) -> None:
    """The reference of a resumed run is the model before the first step."""
    settings = {**SHUFFLED, **tuner, "objective.name": objective, "data.cache": str(tmp_path / "cache")}
    whole = run_training(tied, tmp_path, rows, settings, validation=rows[:3])
    # Without the scores that the first run kept, they have to be made again, from the same model.
    for scores in (tmp_path / "cache").glob("reference-*"):
        scores.unlink()
    check_same(whole, run_training(tied, tmp_path, rows, resumed(whole, settings), validation=rows[:3]))


def test_a_run_goes_on_with_two_processes_and_then_with_one(tied: Path, tmp_path: Path, recorder: list[str]) -> None:
    settings = {**SHUFFLED, **LORA, "checkpoint.save_steps": 3, "logging.report_to": recorder}
    whole = run_training(tied, tmp_path, ROWS, settings, validation=HELD_OUT)

    def leg(start: int, end: int) -> Callable[[], Trained]:
        """Goes on from where the leg before it ended; all run to the end, so that they have the same schedule."""
        before = tmp_path / tied.name / f"leg-{start}" / f"checkpoint-{start}" if start else None
        own = {"logging.run_name": f"leg-{end}", "checkpoint.resume": before and str(before)}
        return lambda: run_training(tied, tmp_path, ROWS, {**settings, **own}, validation=HELD_OUT)

    first = leg(0, 3)()
    (answers,) = on_processes(2, leg(3, 6))
    second = succeeded(answers)[0]
    third = leg(6, 10)()
    for part, start, processes in ((first, 0, 1), (second, 3, 2), (third, 6, 1)):
        for key in ("loss", "grad_norm"):
            expected = {step: line[key] for step, line in whole.lines.items() if step > start}
            assert {step: line[key] for step, line in part.lines.items()} == pytest.approx(expected, rel=SAME)
        taken = whole.samples()
        assert part.samples(processes) == {step: taken[step] for step in range(start, 10)}


def test_a_streamed_run_goes_on_where_it_was(tied: Path, tmp_path: Path, recorder: list[str]) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", ROWS)
    settings = {**SHUFFLED, "data.train": [str(data)], "data.streaming": True, "logging.report_to": recorder}
    whole = run_training(tied, tmp_path, None, settings, validation=HELD_OUT)
    rest = run_training(tied, tmp_path, None, resumed(whole, settings), validation=HELD_OUT)
    check_same(whole, rest)
    assert rest.samples() == {step: samples for step, samples in whole.samples().items() if step >= 5}


def test_patience_and_the_best_step_are_carried_over(tied: Path, tmp_path: Path) -> None:
    # Learning rate 1 ruins the model, so that the first evaluation stays the best.
    settings = {
        **SHUFFLED,
        "optim.lr": 1.0,
        "optim.warmup_steps": 3,
        "train.eval_steps": 1,
        "train.early_stopping": 5,
        "checkpoint.save_steps": 1,
    }
    whole = run_training(tied, tmp_path, ROWS, settings, validation=HELD_OUT)
    assert whole.summary.status == "completed"
    assert 5 < whole.summary.steps < 10
    rest = run_training(tied, tmp_path, ROWS, resumed(whole, settings), validation=HELD_OUT)
    assert rest.summary.steps == whole.summary.steps


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train.seed": 9}, "the seed (it was 42, now 9)"),
        ({"data.max_length": 60}, "the data or how it is encoded"),
        ({"tuner.kind": "lora"}, "the tuner (it was full fine-tuning)"),
        ({"data.packing": True}, "data.packing (it was False, now True)"),
        ({"data.shuffle": False}, "data.shuffle (it was True, now False)"),
        ({"train.global_batch": 8}, "train.global_batch (it was 4, now 8)"),
    ],
)
def test_changed_settings_on_resume_are_reported(
    tied: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    settings = {**SHUFFLED, "train.max_steps": 6, "checkpoint.model_weights": False}
    whole = run_training(tied, tmp_path, ROWS, settings)
    with pytest.raises(CheckpointError) as caught:
        run_training(tied, tmp_path, ROWS, resumed(whole, settings, **changes))
    assert "belongs to another run" in caught.value.message
    assert sentence in caught.value.message
    assert not (tmp_path / tied.name / "resumed").exists()


def test_changed_model_or_data_on_resume_is_reported(tied: Path, tmp_path: Path) -> None:
    settings = {**SHUFFLED, "train.max_steps": 6, "checkpoint.model_weights": False}
    whole = run_training(tied, tmp_path, ROWS, settings)
    other = write_model(tmp_path / "other", seed=5, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"the model \(it was .*tied"):
        run_training(other, tmp_path, ROWS, resumed(whole, settings))
    with pytest.raises(CheckpointError, match="the data or how it is encoded"):
        run_training(tied, tmp_path, ROWS[1:], resumed(whole, settings))


def test_a_run_that_was_cut_short_goes_on_in_its_own_folder(tied: Path, tmp_path: Path) -> None:
    settings = {**SHUFFLED, "logging.run_name": "short"}
    short = run_training(tied, tmp_path, ROWS, settings)
    # As if it had been killed after step 10 and before that was saved.
    shutil.rmtree(short.folder / "checkpoint-10")
    (short.folder / "last-checkpoint").unlink()
    again = run_training(tied, tmp_path, ROWS, {**settings, "checkpoint.resume": str(short.folder)})
    assert again.summary.last_checkpoint == short.folder / "checkpoint-10"
    assert [folder.name for folder in (tmp_path / tied.name).iterdir()] == ["short"]
    assert list(again.lines) == list(range(1, 11))
    assert (short.folder / "last-checkpoint").resolve() == short.folder / "checkpoint-10"


def test_resuming_earlier_checkpoint_keeps_later_ones(tied: Path, tmp_path: Path) -> None:
    """Going back to an earlier checkpoint leaves the later ones alone."""
    settings = {**SHUFFLED, "logging.run_name": "first"}
    first = run_training(tied, tmp_path, ROWS, settings)
    weights = (first.folder / "checkpoint-10" / "model.safetensors").read_bytes()
    changes = {"checkpoint.resume": str(first.folder / "checkpoint-5"), "optim.lr": 3e-3}
    branch = run_training(tied, tmp_path, ROWS, {**settings, **changes, "logging.run_name": "branch"})
    assert branch.summary.last_checkpoint == branch.folder / "checkpoint-10"
    assert (first.folder / "checkpoint-10" / "model.safetensors").read_bytes() == weights
    assert list(first.lines) == list(range(1, 11))


def test_a_run_at_its_end_is_not_resumed_but_can_be_lengthened(tied: Path, tmp_path: Path) -> None:
    whole = run_training(tied, tmp_path, ROWS, SHUFFLED)
    end = {**SHUFFLED, "checkpoint.resume": str(whole.folder), "logging.run_name": "longer"}
    with pytest.raises(ConfigError, match="all 10 steps are made"):
        run_training(tied, tmp_path, ROWS, end)
    run_training(tied, tmp_path, ROWS, {**end, "train.max_steps": 12})
    assert list(whole.lines) == list(range(1, 13))


def test_the_scale_of_float16_gradients_is_carried_over(tmp_path: Path) -> None:
    steep = write_model(tmp_path / "steep")
    weights = load_file(steep / "model.safetensors")
    weights["lm_head.weight"] *= 20
    save_file(weights, steep / "model.safetensors", metadata={"format": "pt"})
    settings = {**SHUFFLED, "model.dtype": "float16", "checkpoint.model_weights": False}
    whole = run_training(steep, tmp_path, ROWS, settings)
    skipped = [step for step, line in whole.lines.items() if line.get("skipped")]
    assert min(skipped, default=9) <= 5, "the scale never had to come down"
    rest = run_training(steep, tmp_path, ROWS, resumed(whole, settings))
    assert [step for step, line in rest.lines.items() if line.get("skipped")] == [step for step in skipped if step > 5]
    later = {step: loss for step, loss in zip(whole.lines, whole.losses, strict=True) if step > 5}
    assert rest.losses == pytest.approx(list(later.values()), rel=SAME)


def test_damaged_checkpoint_suggests_newest_valid_one(tied: Path, tmp_path: Path) -> None:
    """A damaged checkpoint offers the newest one before it that is whole."""
    whole = run_training(tied, tmp_path, ROWS, {**SHUFFLED, "checkpoint.save_steps": 2, "train.max_steps": 6})
    state = "state/00000.safetensors"
    content = bytearray((whole.folder / "checkpoint-6" / state).read_bytes())
    content[-7] ^= 1
    (whole.folder / "checkpoint-6" / state).write_bytes(bytes(content))
    (whole.folder / "checkpoint-4" / state).unlink()

    def refusal(step: int) -> CheckpointError:
        settings = resumed(whole, SHUFFLED, **{"checkpoint.resume": str(whole.folder / f"checkpoint-{step}")})
        with pytest.raises(CheckpointError) as refused:
            run_training(tied, tmp_path, ROWS, settings)
        return refused.value

    assert f"checkpoint-6 is damaged: {state} was altered" in refusal(6).message
    assert refusal(6).hint == f"Resume from the previous one: --resume_from_checkpoint {whole.folder / 'checkpoint-2'}"
    assert f"checkpoint-4 is incomplete: {state} is missing" in refusal(4).message
    (whole.folder / "checkpoint-2" / "manifest.json").write_text("{")
    assert "manifest.json: malformed JSON" in refusal(2).message
    assert f"There is no earlier one in {whole.folder}" in (refusal(2).hint or "")


def test_a_save_that_fails_is_a_failure_of_training(tied: Path, tmp_path: Path) -> None:
    settings = {**SHUFFLED, "checkpoint.save_steps": 2, "train.max_steps": 6}
    whole = run_training(tied, tmp_path, ROWS, settings)
    largest = max(path.stat().st_size for path in (whole.folder / "checkpoint-2").rglob("*"))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, limit[1]))
    try:
        with pytest.raises(CheckpointError, match=r"Checkpoint 2 could not be written to .*larger than") as failed:
            run_training(tied, tmp_path, ROWS, {**settings, "logging.run_name": "failed"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert failed.value.exit_code == 1
    assert not list((whole.folder.parent / "failed").glob("checkpoint-*"))


def test_a_run_is_continued_in_another_output_where_one_is_named(tied: Path, tmp_path: Path) -> None:
    first = run_training(tied, tmp_path / "first", ROWS, {**SHUFFLED, "train.max_steps": 6})
    rest = run_training(tied, tmp_path / "second", ROWS, resumed(first, SHUFFLED))
    assert rest.summary.last_checkpoint == tmp_path / "second" / tied.name / "resumed" / "checkpoint-10"
    assert not (first.folder / "checkpoint-10").exists()
