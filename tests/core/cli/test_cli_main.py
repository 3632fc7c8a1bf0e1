"""The `swift` command: fast help, exit codes, and errors without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift.cli import doctor
from swift.cli import main as cli
from swift.cli.commands import commands
from swift.errors import PluginError, TrainingError, UsageError
from swift.plugins.load import load_engine


def test_overview_lists_all_commands_and_imports_little() -> None:
    """The overview names every command and imports next to nothing."""
    script = "import sys; from swift.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for command_name in commands().values():
        assert f"  {command_name.name} " in done.stdout
        assert command_name.summary in done.stdout
    heavy = {"torch", "transformers", "pydantic", "typer", "rich", "pluggy", "yaml", "numpy"}
    assert not heavy & {name.partition(".")[0] for name in done.stderr.split()}


@pytest.fixture
def wide_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return the help of a command on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def help_of(*args: str) -> str:
        assert cli.run([*args, "--help", "all"]) == 0
        return capsys.readouterr().out

    return help_of


def test_train_help_groups_fields_with_defaults_and_aliases(wide_help: Callable[..., str]) -> None:
    """Help of a training command shows fields in groups with defaults and aliases."""
    text = wide_help("rlhf", "--rlhf_type", "kto")
    for group in ("model", "data", "tuner", "objective", "optim", "parallel", "train", "checkpoint", "backend"):
        assert f"\n{group}  " in text
    assert "--optim.warmup_ratio" in text
    assert "0.05" in text
    assert "--per_device_train_batch_size" in text
    assert "--objective.desirable_weight" in text  # kto's own
    assert "--backend.device" in text  # the torch backend's own


@pytest.mark.usefixtures("without_infer")
@pytest.mark.parametrize("command_name", ["infer", "chat", "eval", "serve", "deploy"])
def test_missing_inference_names_install(command_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command of swift-infer says how to install it."""
    assert cli.run([command_name, "m"]) == 2
    assert 'core[infer]"' in capsys.readouterr().err
    with pytest.raises(PluginError, match="not installed") as caught:
        load_engine("transformers")
    assert 'core[infer]"' in str(caught.value)


def test_help_with_backend_shows_its_options(wide_help: Callable[..., str]) -> None:
    text = wide_help("sft", "--parallel_method", "megatron")
    assert "--backend.use_distributed_optimizer" in text
    assert "--backend.bucket_mb" not in text  # the torch backend's


def test_help_for_missing_backend_names_install(without_megatron: None, wide_help: Callable[..., str]) -> None:
    """Help for a missing backend shows how to install it."""
    assert 'core[megatron]"' in wide_help("sft", "--parallel_method", "megatron")


@pytest.mark.usefixtures("without_megatron", "without_vllm", "without_rl")
@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["trian"], 2, "Did you mean 'train'?"),
        (["plan"], 2, "swift plan qwen3-8b --gpus 8xH100"),
        (["ppo", "--model", "m", "--dataset", "d"], 3, 'core[rl]"'),
        (["rlhf", "--rlhf_type", "gkd", "--model", "m", "--dataset", "d"], 3, 'core[rl]"'),
        (["rlhf", "--rlhf_type", "dop"], 2, "'dpo'?"),
        (["rollout"], 2, 'core[rl]"'),
        (["web-ui"], 2, "swift ui"),
        (["dpo"], 2, "swift train needs --model"),
        (["reranker"], 2, "swift train needs --model"),
        (["seq_cls", "--model", "m", "--dataset", "d"], 2, "The number of labels is not configured"),
        (["grpo", "--model", "m", "--dataset", "d"], 3, 'core[rl]"'),
        (["rm"], 2, "swift train needs --model"),
        (["serve"], 2, "swift serve needs a model"),
        (["sft"], 2, "swift sft needs --model"),
        (["sft", "--modle", "m"], 2, "Did you mean '--model'?"),
        (["sft", "--model", "m", "--dataset", "d", "--backend", "megatron"], 3, 'core[megatron]"'),
        (["export"], 2, "swift export needs RUN_OR_CHECKPOINT, the folder of a run"),
        (["export", "x", "--dtype", "fp8"], 2, "--dtype must be one of"),
        (["export", "x", "--to", "vllm"], 3, 'core[vllm]"'),
        (["plugins", "--chek"], 2, "Did you mean '--check'?"),
        (["config", "shwo"], 2, "Did you mean 'show'?"),
    ],
)
def test_user_error_prints_one_message_and_exit_code(
    args: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's mistake ends with one message and the right code."""
    assert cli.run(args) == code
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


def test_command_exits_with_code_without_traceback() -> None:
    """The command itself ends with that code and without a traceback."""
    command = [sys.executable, "-m", "swift", "sft", "--modle", "m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Unknown flag --modle.")
    assert "Traceback" not in done.stderr


def test_traceback_variable_raises_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFT_TRACEBACK", "1")
    with pytest.raises(UsageError, match="swift sft needs --model"):
        cli.run(["sft"])


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("swift ")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of `swift.cli.launch.launch`, which trains nothing here."""
    import swift.cli.launch

    calls: list[Any] = []
    monkeypatch.setattr(swift.cli.launch, "launch", lambda parsed, argv: calls.append((parsed, argv)) or 0)
    return calls


def test_train_command_passes_run_and_argv_to_launcher(launched: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A training command passes the run and its argv to the launcher."""
    args = ["rlhf", "--model", "m", "--dataset", "d", "--nproc", "2"]
    assert cli.run(args) == 0
    ((parsed, argv),) = launched
    assert argv == args
    assert parsed.nproc == 2
    assert "Note: The objective is dpo" in capsys.readouterr().err


def test_notes_are_printed_by_one_rank(
    launched: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert cli.run(["rlhf", "--model", "m", "--dataset", "d"]) == 0
    assert capsys.readouterr().err == ""


def test_failed_run_exits_1_and_interrupt_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that fails exits with 1 and an interrupted one with 130."""

    def raising(error: BaseException) -> Callable[[Any, Any], int]:
        def launch(_parsed: Any, _argv: Any) -> int:
            raise error

        return launch

    import swift.cli.launch

    args = ["sft", "--model", "m", "--dataset", "d"]
    failure = TrainingError("The loss is not finite at step 3.", hint="Resume from checkpoint-2.")
    monkeypatch.setattr(swift.cli.launch, "launch", raising(failure))
    assert cli.run(args) == 1
    assert capsys.readouterr().err == "Error: The loss is not finite at step 3.\nResume from checkpoint-2.\n"
    monkeypatch.setattr(swift.cli.launch, "launch", raising(KeyboardInterrupt()))
    assert cli.run(args) == 130


def test_export_and_merge_lora_reach_the_exporter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    stand_in = types.ModuleType("swift.export.run")
    (folder := tmp_path / "run" / "checkpoint-1").mkdir(parents=True)
    (folder / "manifest.json").touch()
    monkeypatch.chdir(tmp_path)
    stand_in.export_checkpoint = lambda path, **rest: calls.append((str(path), rest))  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, "swift.export.run", stand_in)
    assert cli.run(["export", "run", "--to", "adapter", "--out", "there", "--exist-ok", "--no-verify"]) == 0
    assert cli.run(["merge-lora", "--adapters", "run", "--output_dir", "merged", "--torch_dtype", "bfloat16"]) == 0
    (path, exported), (merged_path, merged) = calls
    assert (path, exported["to"], str(exported["options"].out)) == ("run", "adapter", "there")
    assert exported["options"].exist_ok
    assert exported["options"].verify == "none"
    assert (merged_path, merged["to"], merged["options"].dtype) == ("run", "hf", "bfloat16")


def test_doctor_names_kinds_in_the_plural() -> None:
    printed = "\n".join(finding.what for finding in doctor._plugins())
    assert "vocabularies: " in printed
    assert "vocabularys" not in printed


def test_doctor_reports_versions_devices_plugins_and_space(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    topics = {finding["topic"] for finding in findings}
    assert topics == {"versions", "devices", "kernels", "serving", "plugins", "hub", "disk"}
    told = [finding["what"] for finding in findings]
    assert any(line.startswith("torch ") for line in told)
    assert any("torch" in line.partition("backends: ")[2] for line in told)
    assert any(line.startswith("vllm") for line in told)
    assert any("offline (HF_HUB_OFFLINE)" in line for line in told)
    lacking = [finding for finding in findings if "is not installed" in finding["what"]]
    assert all("pip install" in finding["fix"] for finding in lacking)
