"""`swift sample`: best-of-n and rejection sampling into rows, which are the same after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import run_training, write_jsonl

from swift.cli.main import run
from swift_infer import ResumeFile
from swift_rl.sample.choice import Choice
from swift_rl.sample.completions import SampledCompletion, SampledPrompt
from swift_rl.sample.options import SampleOptions

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"Say {word}."}], "subject": word} for word in "abcdef"
]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sample(model: Path, folder: Path, *more: str, reward: str = "length") -> int:
    """Sample four completions of at most eight tokens for each of six prompts; the reward prefers short ones."""
    data = folder / "prompts.jsonl"
    write_jsonl(data, ROWS)
    words = ["sample", str(model), "--dataset", str(data), "--num_return_sequences", "4", "--max_new_tokens", "8"]
    rewards = [
        "--reward_funcs",
        reward,
        "--keep_truncated",
        "true",
        "--stop",
        *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM",
    ]
    return run([*words, *rewards, "--result_path", str(folder / "rows.jsonl"), *more])


class Killed(KeyboardInterrupt):
    """Nothing catches it, as nothing catches SIGKILL."""


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the files of completions and scores be written to so often, and end the command with the next time."""
    written, write = [0], ResumeFile.write

    def counting(self: ResumeFile, *arguments: Any) -> None:
        written[0] += 1
        if written[0] > after:
            raise Killed
        write(self, *arguments)

    monkeypatch.setattr(ResumeFile, "write", counting)


def test_a_sample_that_was_interrupted_goes_on_to_the_same_rows(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    whole.mkdir()
    ended.mkdir()
    assert sample(tied, whole) == 0
    for after in (9, 24 - 9 + 7):  # while completions are sampled, and while they are scored
        with monkeypatch.context() as patched:
            dying(patched, after)
            assert sample(tied, ended) == 130
        assert not (ended / "rows.jsonl").exists()
    assert sample(tied, ended) == 0
    assert "already has 24 of 24 responses" in capsys.readouterr().err
    assert (ended / "rows.jsonl").read_bytes() == (whole / "rows.jsonl").read_bytes()
    sampled, chosen = lines(whole / "rows.completions.jsonl"), lines(whole / "rows.jsonl")
    assert len({json.dumps(each["messages"]) for each in sampled}) > 6
    for place, row in enumerate(chosen):
        sizes = [len(each["completion_ids"]) for each in sampled[4 * place : 4 * place + 4]]
        best = sampled[4 * place + sizes.index(min(sizes))]
        assert row["messages"] == best["messages"]
        assert row["reward"] == row["rewards"]["length"] == -min(sizes) / 8
        assert row["subject"] == ROWS[place]["subject"]


def test_new_rewards_reuse_stored_completions(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample(tied, tmp_path) == 0
    completions = (tmp_path / "rows.completions.jsonl").read_bytes()
    monkeypatch.setattr("swift_infer.chat_engine.open_local", None)  # no model is loaded again
    more = ["--reward_options", '{"target_length": {"tokens": 8}}', "--rows", "kto", "--reward_threshold", "-0.5"]
    assert sample(tied, tmp_path, *more, reward="target_length") == 0
    rows = lines(tmp_path / "rows.jsonl")
    assert [row["label"] for row in rows] == [
        len(each["completion_ids"]) > 4 for each in map(json.loads, completions.splitlines())
    ]
    assert (tmp_path / "rows.completions.jsonl").read_bytes() == completions
    part = ["--result_path", str(tmp_path / "part.jsonl"), "--cache_files", str(tmp_path / "rows.completions.jsonl")]
    assert sample(tied, tmp_path, "--engine", "no", *part, "--data_range", "1", "3") == 0
    assert [row["subject"] for row in lines(tmp_path / "part.jsonl")] == ["c", "d"]


def test_rows_are_trained_on(tied: Path, tmp_path: Path) -> None:
    assert sample(tied, tmp_path, "--rows", "dpo", "--n_best_to_keep", "2") == 0
    pairs = lines(tmp_path / "rows.jsonl")
    assert pairs
    assert all(row["reward"] > row["rejected_reward"] for row in pairs)
    sft = run_training(tied, tmp_path / "sft", pairs, {"train.max_steps": 1, "train.global_batch": len(pairs)})
    dpo = run_training(
        tied,
        tmp_path / "dpo",
        pairs,
        {"objective.name": "dpo", "train.max_steps": 1, "train.global_batch": len(pairs)},
    )
    assert sft.losses[0] == pytest.approx(5.5, abs=0.6)  # ln 264
    assert dpo.losses[0] == pytest.approx(0.6931, abs=1e-3)


def prompt(*rewards: float | None, cut: int = 0) -> SampledPrompt:
    completions = [
        SampledCompletion(f"completion {value}", rewards={"right": value}, failed=["right"] if value is None else [])
        for value in rewards
    ]
    for completion in completions[:cut]:
        completion.finish_reason = "length"
    return SampledPrompt([{"role": "user", "content": "?"}], {}, "row 1", completions)


def chosen(given: SampledPrompt, **options: Any) -> list[Any]:
    choice = Choice(SampleOptions(dataset=("x",), reward_funcs=("right",), **options), {"right": 1.0})
    return [(row["reward"], row.get("rejected_reward", row.get("label"))) for row in choice.rows(given)]


def left_out(given: SampledPrompt, **options: Any) -> int:
    """How many completions were no candidates because they were cut off."""
    choice = Choice(SampleOptions(dataset=("x",), reward_funcs=("right",), **options), {"right": 1.0})
    choice.rows(given)
    return choice.tally.cut_off


def test_thresholds_decide_what_is_kept() -> None:
    assert chosen(prompt(1, 3, 2), n_best_to_keep=2) == [(3, None), (2, None)]
    assert chosen(prompt(-3, -2)) == [(-2, None)]  # best of n, whatever the best is
    assert chosen(prompt(1, 3, 2), reward_threshold=2, n_best_to_keep=9) == [(3, None)]
    assert chosen(prompt(1, 3, 2), thresholds={"right": 3}) == []
    assert chosen(prompt(3, 3, 1), n_best_to_keep=9) == [(3, None), (1, None)]  # alike: once
    assert chosen(prompt(3, 2, cut=1)) == [(2, None)]
    assert chosen(prompt(3, 2, cut=1), keep_truncated=True) == [(3, None)]
    assert left_out(prompt(3, 2, cut=1)) == 1
    assert left_out(prompt(3, 2, cut=1), keep_truncated=True) == left_out(prompt(3, 2, cut=1), reward_threshold=3) == 0
    assert chosen(prompt(None, 2)) == [(2, None)]
    assert chosen(prompt(1, 1, 0, 0), easy_query_threshold=0.4) == []
    assert chosen(prompt(1, 1, 0, 0), easy_query_threshold=0.5) == [(1, None)]


def test_pairs_have_chosen_and_rejected() -> None:
    assert chosen(prompt(1, 3, 2), rows="dpo", n_best_to_keep=9) == [(3, 1), (2, 1)]
    assert chosen(prompt(1, 1), rows="dpo") == []
    assert chosen(prompt(3, 0, None, cut=1), rows="dpo") == []  # what is left is the worst itself
    assert chosen(prompt(1, 0, None), rows="kto") == [(1, True), (0, False)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m", "--dataset", "d.jsonl", "--result_path", "r.jsonl", "--rows", "dpo"], "--reward_funcs NAME"),
        (["m", "--result_path", "r.jsonl"], "--dataset FILE"),
        (["m", "--dataset", "d.jsonl"], "--result_path best.jsonl"),
        (["m", "--dataset", "d.jsonl", "--sampler_type", "distill", "--result_path", "r"], "--engine http://HOST"),
        (["m", "--dataset", "d.jsonl", "--cache_files", "c.jsonl", "--result_path", "r"], "--engine no"),
        (["m", "--dataset", "d.jsonl", "--data_range", "3", "3", "--result_path", "r"], "--data_range 0 4"),
        (
            ["m", "--dataset", "d", "--prm_threshold", "0", "--orm_model", "length", "--output_file", "r"],
            "reward_model",
        ),
    ],
)
def test_unsupported_sampling_names_flag(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sample", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
