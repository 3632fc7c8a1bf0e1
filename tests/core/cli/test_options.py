"""Options of the commands that do not train: every spelling, arguments anywhere, repeated flags, and mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from swift.cli.commands import TRAINING, commands, training_command
from swift.cli.config import ConfigOptions
from swift.cli.export import ExportCommandOptions, MergeLoraOptions
from swift.cli.options import flag_table, options_of, read_options
from swift.cli.plugins import PluginsOptions
from swift.config.options import Section
from swift.errors import UsageError
from swift_infer.commands.eval import EvalOptions
from swift_infer.commands.infer import InferOptions
from swift_infer.serving.options import ServeOptions
from swift_migrate.convert.command import ConvertOptions


def read(options: type[Section], line: str) -> dict[str, Any]:
    return dict(read_options("command", line.split(), options).options)


@pytest.mark.parametrize(
    ("options", "line", "meaning"),
    [
        (InferOptions, "m --max-new-tokens 5 --top_p=0.5", {"model": "m", "max_new_tokens": 5, "top_p": 0.5}),
        (InferOptions, "--model m --query a --prompt b", {"model": "m", "prompt": ("a", "b")}),
        (InferOptions, "--ckpt-dir m --infer-backend e", {"model": "m", "engine": "e"}),
        (InferOptions, "--temperature 1 m", {"model": "m", "temperature": 1.0}),
        (InferOptions, "--overwrite m", {"model": "m", "overwrite": True}),
        (InferOptions, "m --overwrite false", {"model": "m", "overwrite": False}),
        (InferOptions, "m --overwrite=true", {"model": "m", "overwrite": True}),
        (InferOptions, "m --dataset a b --dataset c", {"model": "m", "dataset": ("a", "b", "c")}),
        (InferOptions, "--dataset a m", {"model": "m", "dataset": ("a",)}),
        (InferOptions, "--dataset a b --model m", {"model": "m", "dataset": ("a", "b")}),
        (InferOptions, "--prompt a m --prompt b", {"model": "m", "prompt": ("a", "b")}),
        (InferOptions, "--prompt a --prompt b", {"model": None, "prompt": ("a", "b")}),
        (InferOptions, "m --columns.My-Text query", {"columns": {"My-Text": "query"}}),
        (InferOptions, "m --engine_options.max_num_seqs 64", {"engine_options": {"max_num_seqs": 64}}),
        (InferOptions, 'm --engine-options {"a":[1]}', {"engine_options": {"a": [1]}}),
        (EvalOptions, "m --num-fewshot 5 --limit 200 --chat_template", {"num_fewshot": 5, "chat_template": True}),
        (ExportCommandOptions, "run --no-verify", {"verify": "none", "to": "hf"}),
        (ExportCommandOptions, "run --no_verify false", {"verify": "transformers"}),
        (ExportCommandOptions, "run --verify false", {"verify": "none"}),
        (ExportCommandOptions, "--adapters run --quant-method fp8", {"checkpoint": "run", "quant": "fp8"}),
        (MergeLoraOptions, "--checkpoint run --output-dir o", {"to": "hf", "out": Path("o")}),
        (ConvertOptions, "c --out o --weights-only", {"checkpoint": Path("c"), "weights_only": True}),
        (InferOptions, "--adapters a", {"model": "a", "adapters": None}),
        (InferOptions, "--model m --adapters a", {"model": "m", "adapters": Path("a")}),
        (InferOptions, "m --infer_backend pt --stream true", {"engine": "transformers", "stream": True}),
        (InferOptions, "m --attn_impl sdpa", {"engine_options": {"attention": "sdpa"}}),
        (
            InferOptions,
            "m --vllm_gpu_memory_utilization 0.5 --tensor-parallel-size 2 --engine_options.a b",
            {"engine_options": {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 2, "a": "b"}},
        ),
        (InferOptions, "m --vllm_max_model_len 64 --result_jsonl r", {"max_length": 64, "result_path": Path("r")}),
        (InferOptions, "m --stop_words a [b --top_k 5 --max_batch_size 2", {"stop": ("a", "[b"), "top_k": 5}),
        (EvalOptions, "m --eval_limit 3 --temperature 0.5 --max_tokens 4", {"limit": 3, "max_new_tokens": 4}),
        (ExportCommandOptions, "--ckpt_dir run --max_shard_size 500MB", {"checkpoint": "run", "shard_size_gb": 0.5}),
        (ExportCommandOptions, "--model m --adapters a", {"checkpoint": "a", "model": "m"}),
        (ExportCommandOptions, "run --exist_ok true --hub_model_id a/b", {"exist_ok": True, "push": "a/b"}),
        (ServeOptions, "--adapters a --adapters b", {"model": "a", "adapters": ("b",)}),
        (ServeOptions, "--adapters law=a", {"model": "a", "name": "law", "adapters": ()}),
        (PluginsOptions, "--json --try fsdp", {"as_json": True, "tried": "fsdp", "nproc": 2}),
        (ConfigOptions, "--sample", {"sample": 1}),
        (ConfigOptions, "--sample 3", {"sample": 3}),
    ],
)
def test_flags_and_arguments_set_options(options: type[Section], line: str, meaning: dict[str, Any]) -> None:
    found = read(options, line)
    assert {key: found[key] for key in meaning} == meaning


@pytest.mark.parametrize(
    ("options", "line", "sentence"),
    [
        (InferOptions, "m --max_new_token 5", "Unknown flag --max_new_token. Did you mean '--max_new_tokens'?"),
        (InferOptions, "m --temperature hot", "--temperature must be a number, not 'hot'"),
        (InferOptions, "m --top-p 2", "--top-p must be at most 1"),
        (InferOptions, "m other", "Unexpected argument 'other'"),
        (InferOptions, "m --model other", "--model and MODEL contradict each other"),
        (InferOptions, "m --model a --ckpt_dir b", "--model and --ckpt_dir contradict each other"),
        (InferOptions, "m --seed", "--seed needs a value"),
        (InferOptions, "m --overwrite=perhaps", "--overwrite must be true or false"),
        (InferOptions, "m -t 5", "Unknown flag -t"),
        (EvalOptions, "m --metric f1", "--metric must be one of 'accuracy', 'cer', 'iou' or 'loss', not 'f1'"),
        (ExportCommandOptions, "run --no-verify --verify all", "--no-verify and --verify contradict each other"),
        (MergeLoraOptions, "run --to adapter", "--to must be one of 'hf', not 'adapter'"),
        (ConvertOptions, "c", "swift command needs --out"),
        (ServeOptions, "m --port 70000", "--port must be at most 65535"),
        (PluginsOptions, "fsdp", "new: action must be one of 'new', not 'fsdp'"),
        (PluginsOptions, "new a b c", "Unexpected argument 'c'"),
    ],
)
def test_option_error_names_flag_as_typed(options: type[Section], line: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(options, line)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    [
        ("infer", "m --num_beams 4", "--num_beams 4 is not supported: Beam search is not supported."),
        ("infer", "m --n 2", "swift sample MODEL --dataset FILE --num_return_sequences 8"),
        ("infer", "m --logprobs true", "Pass it in requests to a server"),
        ("infer", "m --device_map balanced", "--tensor_parallel_size 2"),
        ("chat", "m --load_in_4bit true", "--quant w4a16"),
        ("eval", "m --eval_dataset gsm8k", "Type --tasks gsm8k,arc_easy"),
        ("eval", "m --eval_backend OpenCompass", "lm-evaluation-harness"),
        ("export", "m --to_ollama true", "Type --to gguf"),
        ("export", "m --safe_serialization false", "never as pickles"),
        ("export", "m --merge_lora false", "Type --to adapter"),
        ("serve", "m --temperature 0.7", "--override-generation-config"),
    ],
)
def test_third_party_flags_that_change_results_are_refused(command: str, line: str, sentence: str) -> None:
    """Third-party flags that would change the result are refused with the flag to pass instead."""
    with pytest.raises(UsageError) as caught:
        read_options(command, line.split(), cast(type[Section], options_of(command)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("infer", "--merge_lora m --num_beams 1 --use_hf true --load_in_4bit false --device_map auto --n 1"),
        ("export", "--merge_lora true m --safe_serialization true --device_map auto --use_hf 1 --to_hf"),
        ("serve", "m --merge_lora true --use_hf true --log_interval 20"),
    ],
)
def test_third_party_flags_without_effect_are_noted(
    command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags of third-party programs that change nothing are noted one by one."""
    found = dict(read_options(command, line.split(), cast(type[Section], options_of(command))).options)
    assert str(found.get("checkpoint" if command == "export" else "model")) == "m"
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == line.count("--")
    assert all(note.startswith("Note: --") and " is not needed: " in note for note in notes)


def test_repeated_flag_uses_last_value_with_note(capsys: pytest.CaptureFixture[str]) -> None:
    """The last value of a repeated flag counts, and a note reports it."""
    found = read(InferOptions, "m --max_new_tokens 5 --seed 1 --max-new-tokens 6 --seed 1")
    assert (found["max_new_tokens"], found["seed"]) == (6, 1)
    printed = capsys.readouterr().err
    assert printed == "Note: --max-new-tokens is given twice, as '5' and '6'; the last one counts.\n"


def test_json_like_prompt_is_string() -> None:
    """A prompt that looks like JSON is a string; the error of an invalid mapping shows a valid one."""
    for prompt in ('["a", "b"]', '["is this JSON?', "[1"):
        assert read_options("infer", ["m", "--prompt", prompt], InferOptions).options.prompt == (prompt,)
    assert read_options("infer", ["m", "--dataset", '["a", "b"]'], InferOptions).options.dataset == ("a", "b")
    with pytest.raises(UsageError) as caught:
        read(InferOptions, "m --engine_options 3")
    assert caught.value.hint == """For example: '{"max_num_seqs": 64}'"""


def test_training_command_is_found_in_arguments() -> None:
    assert training_command(["dpo", "--model", "m"], "sft") == ("train", ["--objective", "dpo", "--model", "m"])
    assert training_command(["pt", "run.yaml"], "sft") == ("pt", ["run.yaml"])
    assert training_command(["--model", "m"], "sft") == ("sft", ["--model", "m"])


def test_value_like_a_flag_is_accepted() -> None:
    found = read_options("infer", ["m", "--prompt", "--help me", "--system=-x"], InferOptions).options
    assert found.prompt == ("--help me",)
    assert found.system == "-x"


def test_serve_passes_unknown_flags_unchanged() -> None:
    own = ["m", "--port", "1", "--max_model_len", "8"]
    others = ["--max-num-seqs=4", "--enable-x", "-tp", "2", "--lora-modules", "a=b", "c=d"]
    words = [*own[:3], *others, *own[3:]]
    typed = read_options("serve", words, ServeOptions, passes_on=True)
    assert typed.passed_on == tuple(others)
    assert (typed.options.model, typed.options.port, typed.options.max_length) == ("m", 1, 8)
    assert typed.positional == ()


def test_flags_are_unique_and_accept_both_spellings() -> None:
    for command in {name for name in commands() if options_of(name)} - set(TRAINING):
        table = flag_table(command, cast(type[Section], options_of(command)))
        declared = [*table.fields, *(flag for field in table.fields.values() for flag in field.flags)]
        assert len(set(declared)) == len(declared), command
        for flag in declared:
            assert "-" not in flag
            assert table.arity(table.name(f"--{flag.replace('_', '-')}")) is not None, (command, flag)


def test_missing_input_fails_without_importing_torch() -> None:
    """A missing input is refused without importing torch."""
    refused = {
        "export nowhere": "There is no checkpoint at nowhere",
        "convert nowhere --out new": "nowhere is not a folder",
        "convert nowhere --out new --to trainer": "--to needs a checkpoint of swift, and nowhere is not one",
    }
    script = (
        "import sys; from swift.cli.main import run; print([run(line.split()) for line in sys.argv[1:]], "
        "sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script, *refused], capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2, 2] []\n"
    assert [message for message in refused.values() if message not in done.stderr] == []
