"""Runs of distillation: what a step learns from, who generates, resumed runs, and refused settings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
import torch
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.errors import ConfigError
from swift_rl.rounds.files import read_round

ROWS = conversations(12)
ALPHA, BETA = 0.2, 0.3


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says something else than the student, and is surer of it."""
    folder = write_model(tmp_path_factory.mktemp("teacher") / "teacher")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(7)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def distilled(student: Path, out: Path, teacher: Path, **changes: Any) -> Trained:
    """A run of `gkd` whose completions are short."""
    settings = {
        "objective.name": "gkd", "objective.teacher_model": str(teacher), "objective.max_completion_length": 6,
        "objective.gkd_logits_topk": 16, "train.max_steps": 4, "train.global_batch": 4, "optim.eps": 1e-6,
    }  # fmt: skip
    return run_training(student, out, ROWS, {**settings, **changes})


def by_hand(student: Path, teacher: Path, texts: list[tuple[list[int], int]]) -> tuple[float, float]:
    """Loss and gradient norm over the whole vocabulary, by plain models and the formula: of texts, each learned from a
    token on."""
    ours, theirs = (AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (student, teacher))
    loss, count = torch.zeros(()), 0
    for text, start in texts:
        ids = torch.tensor([text])
        said = ours(ids).logits[0, start - 1 : -1].log_softmax(-1)
        with torch.no_grad():
            taught = theirs(ids).logits[0, start - 1 : -1].log_softmax(-1)
        mixture = (BETA * taught.exp() + (1 - BETA) * said.exp()).log()
        apart = BETA * taught.exp() * (taught - mixture) + (1 - BETA) * said.exp() * (said - mixture)
        loss = loss + apart.sum() - ALPHA * said.gather(-1, ids[0, start:, None]).sum()
        count += len(text) - start
    (loss / count).backward()
    squares = [parameter.grad.square().sum() for parameter in ours.parameters() if parameter.grad is not None]
    return float(loss.detach() / count), float(torch.stack(squares).sum().sqrt())


def answers_of_the_data(student: Path, rows: list[dict[str, Any]]) -> list[tuple[list[int], int]]:
    """Rows up to the end of their completions, and where these begin; what follows the turn is not learned."""
    tokenizer = AutoTokenizer.from_pretrained(student)
    texts = []
    for row in rows:
        start = len(tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"])
        ids = tokenizer.apply_chat_template(row["messages"])["input_ids"]
        texts.append((ids[: ids.index(tokenizer.eos_token_id, start) + 1], start))
    return texts


def likeliest_completions(teacher: Path, rows: list[dict[str, Any]], longest: int) -> list[tuple[list[int], int]]:
    """The same of completions that the teacher itself writes, by `generate` of transformers."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    texts = []
    for row in rows:
        asked = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True, return_tensors="pt")
        written = model.generate(**asked, do_sample=False, max_new_tokens=longest)
        texts.append((written[0].tolist(), asked["input_ids"].shape[1]))
    return texts


def cross_entropy(student: Path, texts: list[tuple[list[int], int]]) -> float:
    """What transformers itself calls the loss of these texts, where each token counts alike."""
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32)
    total, count = 0.0, 0
    for text, start in texts:
        ids = torch.tensor([text])
        labels = ids.clone()
        labels[:, :start] = -100
        with torch.no_grad():
            total += float(model(ids, labels=labels).loss) * (len(text) - start)
        count += len(text) - start
    return total / count


@pytest.mark.parametrize("as_role", [False, True], ids=["in an engine", "as a model of the run"])
def test_gkd_dataset_step_matches_plain_models(tied: Path, teacher: Path, tmp_path: Path, as_role: bool) -> None:
    """A step on the data has the loss and the gradient of plain models."""
    changes = {"objective.lmbda": 0.0, "objective.beta": BETA, "objective.sft_alpha": ALPHA, "train.max_steps": 1}
    changes |= {"objective.gkd_logits_topk": 0, "objective.teacher_as_role": as_role}
    run = distilled(tied, tmp_path, teacher, **changes)
    loss, norm = by_hand(tied, teacher, answers_of_the_data(tied, ROWS[:4]))
    assert run.losses == pytest.approx([loss], rel=1e-5)
    assert run.grad_norms == pytest.approx([norm], rel=1e-4)
    assert run.lines[1]["teacher_mass"] == pytest.approx(1, abs=1e-5)
    assert not (run.folder / "rollouts").exists()


@pytest.mark.full
def test_gkd_teacher_step_matches_plain_models(tied: Path, teacher: Path, tmp_path: Path) -> None:
    """A step on the teacher's completions has the loss of plain models on what transformers generates."""
    changes = {"objective.lmbda": 0.0, "objective.seq_kd": True, "objective.beta": BETA, "objective.sft_alpha": ALPHA}
    changes |= {"objective.gkd_logits_topk": 0, "objective.top_k": 1}  # the likeliest token, always
    run = distilled(tied, tmp_path, teacher, **changes, **{"train.max_steps": 1, "train.global_batch": len(ROWS)})
    texts = likeliest_completions(teacher, ROWS, longest=6)
    made = read_round(run.folder / "rollouts", 0)
    assert made is not None
    completions = [completion.token_ids.tolist() for completion in made.completions]
    assert sorted(completions) == sorted(ids[start:] for ids, start in texts)
    loss, norm = by_hand(tied, teacher, texts)
    assert run.losses == pytest.approx([loss], rel=1e-5)
    assert run.grad_norms == pytest.approx([norm], rel=1e-4)
    assert run.lines[1]["cross_entropy"] == pytest.approx(cross_entropy(tied, texts), rel=1e-5)


def test_seed_chooses_generator_and_completions_are_stored(tied: Path, teacher: Path, tmp_path: Path) -> None:
    """The seed decides who generates, and every completion is stored."""
    run = distilled(tied, tmp_path, teacher, **{"objective.lmbda": 0.5, "train.max_steps": 6, "train.seed": 3})
    by_student = [run.lines[step]["on_policy"] == 1.0 for step in range(1, 7)]
    assert set(by_student) == {True, False}
    for number, own in enumerate(by_student):
        assert (read_round(run.folder / "rollouts", number) is not None) == own
    lengths = [run.lines[step]["completion_length"] for step in range(1, 7)]
    assert all(length <= 6 for length, own in zip(lengths, by_student, strict=True) if own)
    assert all(length > 6 for length, own in zip(lengths, by_student, strict=True) if not own)


def test_unsupported_gkd_input_is_refused_before_loading(tied: Path, teacher: Path, tmp_path: Path) -> None:
    """What cannot be learned is refused before a model is loaded."""
    other = write_model(tmp_path / "other")
    file = other / "tokenizer.json"
    told = json.loads(file.read_text())
    words = told["model"]["vocab"]
    first, second = list(words)[40:42]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(told))
    tokenizer = AutoTokenizer.from_pretrained(other)
    size = len(tokenizer)
    assert tokenizer.add_tokens(["quokka"]) == 1
    tokenizer.save_pretrained(other)
    of = rf"\({size + 1} tokens\) and the student \({size} tokens\) differ in 2 ids"
    with pytest.raises(ConfigError, match=of):
        distilled(tied, tmp_path / "vocabulary", other)
    with pytest.raises(ConfigError, match="No teacher is configured"):
        distilled(tied, tmp_path / "none", teacher, **{"objective.teacher_model": None})
    with pytest.raises(ConfigError, match="divergence_temperature needs the whole vocabulary"):
        distilled(tied, tmp_path / "warm", teacher, **{"objective.divergence_temperature": 2.0})
    role = {"objective.teacher_as_role": True}
    with pytest.raises(ConfigError, match="seq_kd cannot be combined with teacher_as_role"):
        distilled(tied, tmp_path / "writes", teacher, **role, **{"objective.seq_kd": True, "objective.lmbda": 0.0})
    with pytest.raises(ConfigError, match="teacher_batch_size has no effect with teacher_as_role"):
        distilled(tied, tmp_path / "engine", teacher, **role, **{"objective.teacher_batch_size": 2})
    with pytest.raises(ConfigError, match="exceeds the model's"):
        distilled(tied, tmp_path / "long", teacher, **{"objective.max_completion_length": 4096})


@pytest.mark.full
@pytest.mark.parametrize("changes", [{"objective.lmbda": 1.0}, {"objective.lmbda": 0.0, "objective.seq_kd": True}])
def test_gkd_resumes_mid_round_bit_for_bit(tied: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """A run is resumed in the middle of a round to the same bits."""
    changes = {**changes, "objective.steps_per_generation": 2, "train.max_steps": 6, "checkpoint.save_steps": 3}
    whole = distilled(tied, tmp_path, teacher, **changes)
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-3"), "logging.run_name": "resumed"}
    rest = distilled(tied, tmp_path, teacher, **changes, **resume)
    figures = ("loss", "grad_norm", "kl", "on_policy", "completion_length")
    for step in (4, 5, 6):
        assert [rest.lines[step][name] for name in figures] == [whole.lines[step][name] for name in figures]


# --- on every backend -----------------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "torch": (2, {}),
    "fsdp cp 2": (2, {"backend.name": "fsdp", "parallel.cp": 2}),
    "zero 3": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron tp 2 pp 2": (4, {"backend.name": "megatron", "parallel.tp": 2, "parallel.pp": 2}),
}
MIXED = {
    "objective.lmbda": 0.5, "objective.steps_per_generation": 2, "train.max_steps": 6, "train.micro_batch": 2,
    "train.seed": 0,
}  # fmt: skip
SAVED_AT = 3
"""In the middle of the second round, whose completions are the student's."""


@pytest.fixture(scope="module")
def alone(tied: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    out = tmp_path_factory.mktemp("alone")
    run = distilled(tied, out, teacher, **MIXED, **{"checkpoint.save_steps": SAVED_AT})
    assert [run.lines[step]["on_policy"] for step in (1, 3, 5)] == [0.0, 1.0, 1.0]
    return run


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gkd_layouts_match_and_resume_mid_round(
    tied: Path, teacher: Path, alone: Trained, tmp_path: Path, layout: str
) -> None:
    """Every layout learns the same and goes on in the middle of a round."""
    processes, schedule = LAYOUTS[layout]
    resume = {"checkpoint.resume": str(alone.folder / f"checkpoint-{SAVED_AT}")}
    held = {"objective.teacher_as_role": layout != "torch"}  # and sharded as the student is
    jobs = [
        partial(distilled, tied, tmp_path / "plan", teacher, **{**MIXED, **schedule, **held}),
        partial(distilled, tied, tmp_path / "rest", teacher, **{**MIXED, **schedule, **resume}),
    ]
    whole, rest = (succeeded(each)[0] for each in on_processes(processes, *jobs))
    assert whole.losses == pytest.approx(alone.losses, rel=1e-4, abs=1e-6)
    assert whole.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4, abs=1e-6)
    assert rest.losses == pytest.approx(alone.losses[SAVED_AT:], rel=1e-4, abs=1e-6)
    assert rest.grad_norms == pytest.approx(alone.grad_norms[SAVED_AT:], rel=1e-4, abs=1e-6)
    assert not list((rest.folder / "rollouts").glob("round-000001*")), "the completions were sampled again"
