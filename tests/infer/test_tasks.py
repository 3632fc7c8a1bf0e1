"""`swift eval --tasks`: lm-evaluation-harness through swift's engines, compared with the harness's own model."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import write_jsonl

from swift.cli.main import run
from swift_testing.subjects import write_model

CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: right
metric_list:
  - metric: acc
  - metric: acc_norm
"""
TEXTS = """
task: tiny_texts
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: byte_perplexity
"""
WRITING = """
task: tiny_writing
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs:
  until: ["Z", "1", "]", "H", "z", "k", "5"]
  max_gen_toks: 150
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module", autouse=True)
def harness() -> Iterator[None]:
    """Leave nothing of the packages that `make setup` puts aside, and `swift eval` finds, to the tests after these."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks, with data beside it."""
    folder = tmp_path_factory.mktemp("tasks")
    draw = random.Random(0)

    def words(count: int) -> str:
        return " ".join("".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(count))

    rows: list[dict[str, Any]] = [
        {
            "question": words(draw.randint(1, 12)),
            "choices": [words(draw.randint(1, 4)) for _ in range(3)],
            "right": draw.randrange(3),
            # Some are longer than the model sees.
            "text": words(130 if number % 5 == 0 else 6),
        }
        for number in range(10)
    ]
    data = write_jsonl(folder / "data.jsonl", rows)
    for name, text in {"choice": CHOICE, "texts": TEXTS, "writing": WRITING}.items():
        (folder / f"{name}.yaml").write_text(text.format(data=data))
    return folder


@pytest.mark.full
def test_scores_are_those_of_the_harness_s_own_model(
    model: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "samples.jsonl"
    names = ["tiny_choice", "tiny_texts", "tiny_writing"]
    flags = ["--tasks", ",".join(names), "--tasks_dir", str(tasks), "--result_path", str(result)]
    assert run(["eval", str(model), *flags]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])

    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    # As long as the harness's model of vLLM would have windows: engines are asked for a token more than a text has.
    own = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=1, max_length=510)
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    expected: Any = simple_evaluate(model=own, tasks=names, task_manager=manager, log_samples=True)
    for task, metric in (("tiny_choice", "acc"), ("tiny_choice", "acc_norm"), ("tiny_texts", "byte_perplexity")):
        assert found[task][metric] == pytest.approx(expected["results"][task][f"{metric},none"], rel=1e-5)
    samples = [json.loads(line) for line in result.read_text().splitlines()]
    written = {sample["doc_id"]: sample["resps"][0][0] for sample in samples if sample["task"] == "tiny_writing"}
    own_texts = {sample["doc_id"]: sample["resps"][0][0] for sample in expected["samples"]["tiny_writing"]}
    assert written == own_texts
    assert len({len(text) for text in written.values()}) > 1
    choices = {sample["doc_id"]: sample["resps"] for sample in samples if sample["task"] == "tiny_choice"}
    for sample in expected["samples"]["tiny_choice"]:
        for ours, theirs in zip(choices[sample["doc_id"]], sample["resps"], strict=True):
            assert ours[0][0] == pytest.approx(theirs[0][0], rel=1e-4)
            assert ours[0][1] == theirs[0][1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--tasks", "tiny_choise", "--tasks_dir", "TASKS"], "Did you mean 'tiny_choice'?"),
        (["--tasks", "tiny_choice", "--tasks_dir", "nowhere"], "The folder nowhere of --tasks_dir does not exist"),
        (["--tasks", "tiny_choice", "--dataset", "x.jsonl"], "cannot be used together"),
    ],
)
def test_mistakes_with_tasks_are_one_sentence(
    model: Path, tasks: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    assert run(["eval", str(model), *[str(tasks) if flag == "TASKS" else flag for flag in flags]]) == 2
    assert sentence in capsys.readouterr().err


def test_without_the_harness_the_extra_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("swift_infer.harness.SET_ASIDE", Path("nowhere"))
    assert run(["eval", str(model), "--tasks", "arc_easy"]) == 2
    assert 'core[eval]"' in capsys.readouterr().err


@pytest.mark.full
def test_what_the_model_would_say_is_called_greedy(model: Path) -> None:
    from swift.contracts import Sampling
    from swift_infer.chat_engine import find_model, open_local
    from swift_infer.harness_model import HarnessModel
    from swift_infer.options import ModelOptions

    options = ModelOptions(model=str(model))
    chat_engine = open_local(find_model(options, say=lambda _: None), options, say=lambda _: None)
    asked = HarnessModel(chat_engine, longest=512, say=lambda _: None)
    context = [5, 90, 33, 12]
    ((_, said),) = chat_engine.engine.generate([context], Sampling(max_new_tokens=6))
    other = [*said.token_ids[:-1], (said.token_ids[-1] + 1) % 256]
    likely, unlikely = asked._loglikelihood_tokens([(None, context, said.token_ids), (None, context, other)])
    assert likely == (pytest.approx(sum(said.logprobs), abs=1e-4), True)
    assert unlikely[1] is False
    assert unlikely[0] < likely[0]
