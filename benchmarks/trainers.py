"""Compare reward models, embeddings (decoders and encoders) and distillation with other trainers, step by step.

Both sides have the same model, rows in the same order, fp32, and the same optimizer, in separate processes
(sentence-transformers also in a separate environment, which `make setup` creates). The time of a step includes data,
step and logging. Both use the same batches, and their losses are compared. swift runs padding-free, its default, and
padded. Each uses one thread: with more, waiting threads would measure other load.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import ZipFile

from benchmarks.alternation import Turn, loss_difference, note_on_load, ratios, summary, turns
from benchmarks.commands import LEARNING_RATE, ROWS, TRAINING
from benchmarks.facts import Figure, write_lines
from benchmarks.inputs import CHATS, MODEL, WORK, chats, ensure
from benchmarks.peer import ONE_THREAD, ORDER

SENTENCES = Path(sys.prefix) / "sentences" / "bin" / "python"
"""Of the environment with sentence-transformers."""
REAL_ENCODER = Path(sys.prefix) / "real" / "all_minilm_l6_v2" / "model.zip"
"""The folder of all-MiniLM-L6-v2, from a package."""
PADDED, FLAT = "padded alike", "without padding"
LAYOUTS = {PADDED: ("--padding_free", "false"), FLAT: ("--padding_free", "true")}
STUDENT, TEACHER = MODEL.with_name(f"{MODEL.name}-student"), MODEL.with_name(f"{MODEL.name}-teacher")
BETA = 0.5
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Of student and teacher; it ends with the response, so that neither side learns anything behind it."""
LONGEST = 64
"""Tokens of a completion of the student's own."""
WHOLE, LIKELIEST = "whole vocabulary", "64 likeliest tokens"
TOP_K = {WHOLE: "0", LIKELIEST: "64"}
GIVEN, OWN = "the data's responses", "the student's own"
LAMBDA = {GIVEN: 0.0, OWN: 1.0}
"""Which part of the responses are completions of the student."""
SIDES = ((GIVEN, WHOLE, PADDED), (GIVEN, LIKELIEST, FLAT), (OWN, WHOLE, PADDED), (OWN, LIKELIEST, FLAT))
_CLOSE, _FIRST = 1e-4, 1e-5
"""Of losses of all steps, and of the first, relative: both sum in fp32, in another order."""

Result = tuple[list[Figure], dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """An objective, what both sides train on, and who the other side is."""

    objective: str
    arguments: tuple[str, ...]
    rows: int = ROWS
    """Of a step; of embeddings, so many are the documents that a query is compared with."""
    python: Path = Path(sys.executable)
    own_model: Path | None = None
    own_data: Path | None = None

    @property
    def model(self) -> Path:
        """Return the folder of the model with the head of the objective, or with none."""
        return self.own_model or MODEL.with_name(f"{MODEL.name}-{self.objective}")

    @property
    def data(self) -> Path:
        return self.own_data or WORK / f"{self.objective}.jsonl"

    def taken(
        self, layout: str, steps: int, *more: str, title: str = "", same_tokens: bool = True, **order: Any
    ) -> list[Turn]:
        """Return the steps of both sides; `order` holds further settings of the other one."""
        whole = {
            **{"module": "benchmarks.peer_trainers", "python": str(self.python), "objective": self.objective},
            **{"model": str(self.model), "data": str(self.data), "rows": self.rows, "learning_rate": LEARNING_RATE},
            **{"recompute": False, **order},
        }
        title = f"{title}, {layout}" if title else layout
        both = turns(
            f"{self.objective}-{title}".replace(",", "").replace(" ", "-").replace("'", ""), steps,
            "--objective", self.objective, *self.arguments, *LAYOUTS[layout], *more,
            "--data.shuffle", "false", "--per_device_train_batch_size", str(self.rows), observer="peer-in-turn",
            model=self.model, data=self.data, variables={ORDER: json.dumps(whole), **ONE_THREAD}, command="train",
        )  # fmt: skip
        if same_tokens and any(turn["swift"]["tokens"] != turn["other"]["tokens"] for turn in both):
            sys.exit(f"{self.objective}: the two did not train on the same tokens")
        print(f"  {self.objective}, {title}: done", flush=True)
        return both


REWARD = Comparison("rm", ())
EMBEDDING = Comparison(
    "embedding", ("--objective.temperature", "0.05", "--model.pooling", "mean"), rows=16, python=SENTENCES
)
ENCODER = replace(
    EMBEDDING,
    arguments=(*EMBEDDING.arguments, "--max_length", "256", "--truncation_strategy", "right"),
    own_model=WORK / "all-MiniLM-L6-v2",
    own_data=EMBEDDING.data,
)
"""The limit is the model's own, by which sentence-transformers truncates."""
DISTILLATION = Comparison(
    "gkd",
    ("--teacher_model", str(TEACHER), "--objective.beta", str(BETA), "--max_length", "1024"),
    own_model=STUDENT,
    own_data=CHATS,
)


def reward_models(quick: bool) -> Result:
    """TRL's RewardTrainer with its defaults, which recompute activations in the backward pass, and without that."""
    _make_inputs()
    steps = 15 if quick else 105
    runs = {"over TRL's, as it comes": {FLAT: REWARD.taken(FLAT, steps, recompute=True)}}
    runs["over TRL's, nothing recomputed"] = {layout: REWARD.taken(layout, steps) for layout in LAYOUTS}
    details = {
        "TRL": metadata.version("trl"),
        "steps": steps,
        "pairs_of_a_step": REWARD.rows,
        "arguments": [*TRAINING, "--objective", REWARD.objective, *REWARD.arguments],
        **{title: {layout: summary(run) for layout, run in each.items()} for title, each in runs.items()},
        "notes": [note_on_load()],
    }
    return [figure for title, each in runs.items() for figure in _figures(title, each)], details


def embeddings(quick: bool) -> Result:
    """Train a decoder with sentence-transformers' MultipleNegativesRankingLoss, its pooling and temperature."""
    _make_inputs()
    return _beside_sentence_transformers(EMBEDDING, quick)


def encoders(quick: bool) -> Result:
    """Train all-MiniLM-L6-v2, a pretrained encoder, in the same way."""
    _make_inputs()
    if not ENCODER.model.exists():
        with ZipFile(REAL_ENCODER) as archive:
            archive.extractall(ENCODER.model)
        config = ENCODER.model / "config.json"
        without = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
        config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | without), encoding="utf-8")
    return _beside_sentence_transformers(ENCODER, quick)


def _beside_sentence_transformers(compared: Comparison, quick: bool) -> Result:
    steps = 15 if quick else 105
    runs = {layout: compared.taken(layout, steps) for layout in LAYOUTS}
    ask = [str(SENTENCES), "-c", "from importlib import metadata; print(metadata.version('sentence-transformers'))"]
    details = {
        "sentence-transformers": subprocess.check_output(ask, text=True).strip(),
        "steps": steps,
        "queries_of_a_step": compared.rows,
        "arguments": [*TRAINING, "--objective", compared.objective, *compared.arguments],
        **{layout: summary(run) for layout, run in runs.items()},
        "notes": [note_on_load()],
    }
    first = max(loss_difference(run[:1]) for run in runs.values())
    apart = Figure("relative difference of the first loss over sentence-transformers'", first, unit="", at_most=_FIRST)
    return [*_figures("over sentence-transformers'", runs), apart], details


def _figures(title: str, runs: dict[str, list[Turn]]) -> list[Figure]:
    """Return the ratios of speed by both clocks, and the difference of the losses, of turns by layout."""
    figures = []
    for layout, run in runs.items():
        least = 1.3 if layout == FLAT else None
        figures += [
            Figure(f"tokens/s {title}, {layout}", median(ratios(run)), at_least=least),
            Figure(f"tokens per CPU second {title}, {layout}", median(ratios(run, "cpu")), at_least=least),
        ]
    apart = max(map(loss_difference, runs.values()))
    return [*figures, Figure(f"largest relative difference of the loss {title}", apart, unit="", at_most=_CLOSE)]


def distillation(quick: bool) -> Result:
    """TRL's GKDTrainer with the same student and teacher, over the whole vocabulary and over the likeliest tokens.

    On the data's responses both learn from the same tokens. Of the student's own completions (λ = 1) each side samples
    its own in the step: a model with random weights hardly ever ends one, so that the tokens are as many.
    """
    ensure()
    if not TEACHER.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.trainers", "distillation"], check=True)
    steps = 15 if quick else 25
    runs = {", ".join(side): _distilled(*side, steps) for side in SIDES}
    figures = []
    for title, run in runs.items():
        # No less than TRL's where both compute the same, and more where padding is left out.
        least = 1.3 if title.endswith(FLAT) else 1.0 if WHOLE in title else None
        for clock, unit in (("cpu", "CPU second"), ("seconds", "second")):
            figures.append(Figure(f"{title}: tokens per {unit} over TRL's", median(ratios(run, clock)), at_least=least))
    apart = max(loss_difference(run) for title, run in runs.items() if title.startswith(f"{GIVEN}, {WHOLE}"))
    figures.append(Figure(f"{WHOLE}: largest relative difference of the loss", apart, unit="", at_most=_CLOSE))
    details = {
        "TRL": metadata.version("trl"),
        **{"steps": steps, "rows_of_a_step": ROWS, "beta": BETA, "tokens_of_an_own_completion": LONGEST},
        **{title: summary(run) for title, run in runs.items()},
        "notes": [note_on_load()],
    }
    return figures, details


def _distilled(responses: str, vocabulary: str, layout: str, steps: int) -> list[Turn]:
    own = ("--max_completion_length", str(LONGEST)) if responses == OWN else ()
    argv = ("--lmbda", str(LAMBDA[responses]), *own, "--gkd_logits_topk", TOP_K[vocabulary])
    order = {"teacher": str(TEACHER), "lmbda": LAMBDA[responses], "beta": BETA, "longest": LONGEST}
    title = f"{responses}, {vocabulary}"
    return DISTILLATION.taken(layout, steps, *argv, title=title, same_tokens=responses == GIVEN, **order)


def _make_inputs() -> None:
    """Make the models and data of reward models and embeddings if they aren't there."""
    ensure()
    if not all(path.exists() for each in (REWARD, EMBEDDING) for path in (each.data, each.model)):
        subprocess.run([sys.executable, "-m", "benchmarks.trainers", "scoring"], check=True)


def make_scoring() -> None:
    """Write the models as others publish them, and rows of the benchmarks' chats."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    from swift.models.sentence_files import write_sentence_files

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    scored = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1)
    plain = AutoModel.from_pretrained(MODEL)
    for each, made in ((REWARD, scored), (EMBEDDING, plain)):
        made.save_pretrained(each.model)
        tokenizer.save_pretrained(each.model)
    write_sentence_files(EMBEDDING.model, size=plain.config.hidden_size, pooling="mean")
    conversations = chats()
    responses = [response for _, response in conversations]
    random.Random(2).shuffle(responses)
    pairs = (
        {"prompt": [question], "chosen": [response], "rejected": [other]}
        for (question, response), other in zip(conversations, responses, strict=True)
    )
    documents = (
        {"anchor": question["content"], "positive": response["content"]} for question, response in conversations
    )
    for each, rows in ((REWARD, pairs), (EMBEDDING, documents)):
        write_lines(each.data, rows)


def make_distillation() -> None:
    """Write student and teacher: the benchmarks' model, and one of its shape with sharper distributions."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = TEMPLATE
    student = AutoModelForCausalLM.from_pretrained(MODEL)
    torch.manual_seed(1)
    teacher = AutoModelForCausalLM.from_config(student.config)
    with torch.no_grad():
        for parameter in teacher.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    for folder, model in ((STUDENT, student), (TEACHER, teacher)):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    {"scoring": make_scoring, "distillation": make_distillation}[sys.argv[1]]()
