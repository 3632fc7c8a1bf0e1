"""The example of a third party's task: language models that return scores, trained, exported and asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import import_rules
import pytest
import torch
import wheels
from commands import typed
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.contracts import TOKEN_SCORES
from swift_infer.serving.options import ServeOptions
from swift_infer.serving.request import serve_request
from swift_testing.subjects import write_jsonl, write_model

EXAMPLE = import_rules.ROOT / "examples" / "third-party-judge"
ROWS = [{"question": f"{n} + {n}?", "response": str(2 * n if n % 2 else n), "right": n % 2} for n in range(1, 13)]


def swift(work: Path, line: str) -> list[str]:
    done = typed(line.split(), work)
    assert done.code == 0, done.output
    return done.output.splitlines()


def scores(work: Path, model: str) -> list[float]:
    lines = swift(work, f"infer {model} --dataset unjudged.jsonl")
    return [json.loads(line)["score"] for line in lines if line.startswith("{")]


@pytest.mark.full
def test_third_party_task_is_trained_exported_and_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run and export return the same scores without --task_type, and the prompt for servers gives them too."""
    wheels.build(EXAMPLE, tmp_path)
    (wheel,) = tmp_path.glob("swift_judge-*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    asked = [{name: row[name] for name in ("question", "response")} for row in ROWS]
    write_jsonl(tmp_path / "unjudged.jsonl", asked)

    swift(
        tmp_path,
        "judge --objective.yes y --objective.no n --model model --dataset rows.jsonl --train_type full "
        "--lr 1e-2 --max_steps 5 --global_batch_size 12 --report_to none --output_dir runs --run_name judged",
    )
    swift(tmp_path, "export runs/model/judged --to hf --out exported")
    found = scores(tmp_path, "exported")
    assert found == pytest.approx(scores(tmp_path, "runs/model/judged"), abs=1e-4)

    generated = swift(tmp_path, "infer exported --task_type causal_lm --prompt Hi --max_new_tokens 2")
    assert not any("score" in line for line in generated)
    wrong = typed(["infer", "exported", "--dataset", "rows.jsonl", "--task_type", "sft"], tmp_path)
    assert "does not make a language model return scores" in wrong.output

    request = serve_request(ServeOptions(model=str(tmp_path / "exported")), tasks=(TOKEN_SCORES,), say=print)
    assert (request.task, request.decision_tokens) == (TOKEN_SCORES, ("y", "n"))
    assert request.chat_template is not None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32).eval()
    yes, no = tokenizer.convert_tokens_to_ids(["y", "n"])
    template = request.chat_template.read_text()
    for row, score in zip(ROWS, found, strict=True):
        pair = [{"role": "query", "content": row["question"]}, {"role": "document", "content": row["response"]}]
        text = tokenizer.apply_chat_template(pair, chat_template=template, tokenize=False)
        with torch.no_grad():
            logits = model(**tokenizer(text, add_special_tokens=False, return_tensors="pt")).logits[0, -1]
        assert float(logits[yes] - logits[no]) == pytest.approx(score, abs=1e-3)
