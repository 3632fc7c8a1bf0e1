"""`swift infer | chat | eval` on a model that has learned a few answers by heart."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny_runs import Trained, run_training, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.cli.main import run
from swift_infer.chat import COMMANDS

ANSWERS = {"colour?": "blue", "number?": "forty-two", "animal?": "otter", "a longer question?": "a dog"}
ROWS = [{"query": question, "response": answer} for question, answer in ANSWERS.items()]
BY_HEART = {
    "train.max_steps": 60,
    "optim.lr": 2e-2,
    "optim.weight_decay": 0.0,
    "tuner.rank": 16,
    "tuner.dropout": 0.0,
    "checkpoint.save_last": True,
}


@pytest.fixture(scope="module")
def adapters(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run that trained adapters."""
    return run_training(tied, tmp_path_factory.mktemp("lora"), ROWS, {**BY_HEART, "tuner.kind": "lora"})


@pytest.fixture(scope="module")
def weights(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run that trained all weights, and ended with an export."""
    changes = {**BY_HEART, "optim.lr": 5e-3, "export.to": "hf", "data.system": "Be brief."}
    return run_training(tied, tmp_path_factory.mktemp("full"), ROWS, changes)


def greedy(model: Any, folder: Path, question: str) -> str:
    """What transformers makes of the question, alone and without padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = torch.tensor([tokenizer(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").input_ids])
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=24,
        eos_token_id=tokenizer.eos_token_id,
    )
    return str(tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True))


def test_completions_match_merged_transformers_model(
    adapters: Trained, tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, adapters.folder / "checkpoint-60").merge_and_unload().eval()
    questions = [*ANSWERS, "something that was never asked?", "?"]
    result = tmp_path / "answers.jsonl"
    asked = [flag for question in questions for flag in ("--prompt", question)]
    assert run(["infer", str(adapters.folder), *asked, "--max_new_tokens", "24", "--result_path", str(result)]) == 0
    told = [json.loads(line)["messages"] for line in result.read_text().splitlines()]
    assert [messages[0]["content"] for messages in told] == questions
    assert [messages[1]["content"] for messages in told] == [greedy(merged, tied, each) for each in questions]
    assert [messages[1]["content"] for messages in told[:4]] == list(ANSWERS.values())
    assert capsys.readouterr().out == ""


def test_every_run_output_can_be_used_for_inference(
    adapters: Trained, weights: Trained, tied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = adapters.folder / "checkpoint-60"
    places = [
        [str(adapters.folder)],
        [str(checkpoint)],
        [str(adapters.folder / "last-checkpoint")],
        ["--model", str(tied), "--adapters", str(checkpoint)],
        [str(weights.folder)],
        [str(weights.folder / "checkpoint-60")],
        [str(weights.folder / "export-hf"), "--system", "Be brief."],
    ]
    for place in places:
        assert run(["infer", *place, "--prompt", "colour?", "--max_new_tokens", "9"]) == 0
        assert capsys.readouterr().out == "blue\n", place


def test_adapter_folder_finds_its_model(adapters: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "adapter"
    assert run(["export", str(adapters.folder), "--to", "adapter", "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["infer", str(out), "--prompt", "animal?", "--max_new_tokens", "9"]) == 0
    assert capsys.readouterr().out == "otter\n"


def test_a_memorised_data_set_scores_full_marks(
    adapters: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"query": "number?", "response": "forty-three"}
    data = write_jsonl(tmp_path / "questions.jsonl", [*ROWS, wrong])
    result = tmp_path / "answers.jsonl"
    flags = ["--max_new_tokens", "24", "--result_path", str(result), "--batch_size", "2"]
    assert run(["eval", str(adapters.folder), "--dataset", f"{data}#4", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {"accuracy": 1.0, "right": 4, "questions": 4}
    assert run(["eval", str(adapters.folder), "--dataset", str(data), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.8
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    assert [line["right"] for line in lines] == [True, True, True, True, False]
    assert (lines[-1]["response"], lines[-1]["expected"]) == ("forty-two", "forty-three")


def test_dataset_loss_matches_training_evaluation(
    weights: Trained, tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss of a data set is that of an evaluation in training."""
    data = write_jsonl(tmp_path / "questions.jsonl", [{"query": "colour?", "response": "red"}, *ROWS])
    assert run(["eval", str(weights.folder), "--dataset", str(data), "--metric", "loss", "--batch_size", "2"]) == 0
    scores = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    changes = {**BY_HEART, "optim.lr": 5e-3, "data.system": "Be brief.", "train.eval_batch": 5}
    trained = run_training(tied, tmp_path, ROWS, changes, validation=rows)
    assert scores["loss"] == pytest.approx(trained.lines[60]["eval_loss"], rel=1e-4)
    assert scores["token_acc"] == pytest.approx(trained.lines[60]["eval_token_acc"])


def test_piped_conversation_ignores_chat_commands(
    adapters: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation is piped through and commands are not for the model."""
    saved = tmp_path / "talk.jsonl"
    typed = ["/help", "colour?", f"/save {saved}", "/clear", "", "/save x", "/clera", "animal?", "quit", "number?"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    assert run(["chat", str(adapters.folder), "--max_new_tokens", "24"]) == 0
    listed = [f"  {command:<13} {text}" for command, text in COMMANDS.items()]
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["blue", "otter"]
    assert [line for line in printed.err.splitlines() if line] == [
        *listed,
        f"Appended to {saved}.",
        "Conversation cleared.",
        "The conversation is empty.",
        "Unknown command /clera. Nothing was sent to the model.",
        *listed,
    ]
    said = [{"role": "user", "content": "colour?"}, {"role": "assistant", "content": "blue"}]
    assert json.loads(saved.read_text()) == {"messages": said}


def test_a_system_message_is_given_in_the_conversation(
    weights: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "talk.jsonl"
    typed = ["/system", "/system Be brief.", "/system", "colour?", "/etc/hosts", f"/save {saved}"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    assert run(["chat", str(weights.folder / "export-hf"), "--max_new_tokens", "9"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "blue"
    assert [line for line in printed.err.splitlines() if line][-3:] == [
        "System message set. The conversation starts over.",
        "System message: Be brief.",
        f"Appended to {saved}.",
    ]
    messages = json.loads(saved.read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert messages[3] == {"role": "user", "content": "/etc/hosts"}  # a path is no command


def test_questions_without_flags_come_from_the_keyboard(
    adapters: Trained, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("number?\n"))
    assert run(["infer", str(adapters.folder), "--max_new_tokens", "24"]) == 0
    assert capsys.readouterr().out == "forty-two\n"


def test_samples_depend_on_seed(adapters: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    def drawn(seed: int) -> str:
        flags = ["--prompt", "tell me?", "--max_new_tokens", "24", "--temperature", "2.0", "--seed", str(seed)]
        assert run(["infer", str(adapters.folder), *flags]) == 0
        return capsys.readouterr().out

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize("typed", ["chat no/such/folder", "infer no/such/folder", "eval no/such/folder --dataset d"])
def test_missing_folder_is_refused_before_imports(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def importing(_options: object) -> None:
        raise AssertionError("torch is imported first")

    for module in ("infer", "eval"):
        monkeypatch.setattr(f"swift_infer.commands.{module}.quiet_libraries", importing)
    assert run(typed.split()) == 2
    assert "Folder no/such/folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["infer", "nowhere", "--prompt", "a"], "nowhere"),
        (["infer"], "needs a model"),
        (["eval", "MODEL"], "needs --dataset or --tasks"),
        (["eval", "MODEL", "--dataset", "nowhere.jsonl"], "nowhere.jsonl"),
        (["eval", "MODEL", "--dataset", "unanswered.jsonl"], "None of the 1 rows has an expected answer"),
        (["infer", "MODEL", "--dataset", "unanswered.jsonl", "--prompt", "a"], "cannot be used together"),
        (
            ["infer", "MODEL", "--prompt", "a", "--result_path", "no/where.jsonl"],
            "The folder no of --result_path does not exist",
        ),
        (["infer", "MODEL", "--prompt", "a", "--columns", "{"], "--columns must be a JSON object"),
        (["infer", "MODEL", "--prompt", "a", "--torch_dtype", "float3"], "Did you mean 'float32'?"),
        (["infer", "MODEL", "--prompt", "a", "--device", "cuda"], "--device cuda needs a GPU"),
        (["infer", "MODEL", "--prompt", "a", "--device", "gpu"], "Invalid device 'gpu'"),
        (["infer", "MODEL", "--prompt", "a", "--adapters", "EMPTY"], "adapter_config.json is missing"),
    ],
)
def test_mistakes_are_one_sentence(
    tied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    sentence: str,
) -> None:
    if "cuda" in args and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "unanswered.jsonl", [{"messages": [{"role": "user", "content": "Hello?"}]}])
    (tmp_path / "EMPTY").mkdir()
    assert run([str(tied) if arg == "MODEL" else arg for arg in args]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
