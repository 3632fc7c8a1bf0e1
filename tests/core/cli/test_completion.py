"""Shell completion: each shell's own protocol, what is completed, and that answering imports nothing heavy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_help import HEAVY, SLOW

from swift.cli.completion import SCRIPTS, completions
from swift.cli.main import run

_BASH = """
COMP_WORDS=(swift {words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_swift swift
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
TYPED = {
    "bash": _BASH,
    "zsh": "words=(swift {words}); CURRENT=$#words; _swift",
    "fish": 'complete -C "swift {line}"',
}
"""Shell → what it does at a tab; `line` are the words without quotes."""
STUBS = {"zsh": "compdef() {}; _describe() { print -rl -- ${(P)2} }; _files() { print files }\n"}
"""zsh's own functions, which need a terminal."""


def tab(shell: str, words: str) -> list[str]:
    """Return what a shell completes after `swift WORDS`; without descriptions."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    typed = TYPED[shell].format(words=words, line=words.replace("''", ""))
    without_settings = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, without_settings, "-c", f"{STUBS.get(shell, '')}{SCRIPTS[shell]}\n{typed}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    separator = ":" if shell == "zsh" else "\t"
    return [line.partition(separator)[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shell_completes_commands_flags_and_values(shell: str) -> None:
    assert "serve" in tab(shell, "se")
    assert tab(shell, "sft --learning_r") == ["--learning_rate"]
    assert sorted(tab(shell, "sft --backend ''")) == sorted(value for value, _ in completions(["sft", "--backend", ""]))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shell_completes_files_where_swift_has_nothing(shell: str) -> None:
    assert [value for value, _ in completions(["sft", "--dataset", ""])] == []
    found = tab(shell, "sft --dataset /etc/host")
    assert found == {"bash": [""], "zsh": ["files"]}.get(shell) or "/etc/hosts" in found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dp"], {"dpo"}),
        (["--inst"], {"--install-completion"}),
        (["sft", "--learning-r"], {"--learning-rate"}),
        (["sft", "--lora_r"], {"--lora_rank"}),
        (["sft", "--optim.warmup_r"], {"--optim.warmup_ratio"}),
        (["sft", "--torch_dtype=x"], set()),
        (["sft", "--torch_dtype=b"], {"--torch_dtype=bfloat16"}),
        (["sft", "--torch_dtype", "=", "b"], {"bfloat16"}),
        (["sft", "--packing", "t"], {"true"}),
        (["sft", "--optim", "adamw_8"], {"adamw_8bit"}),
        (["config", "val"], {"validate"}),
        (["config", "show", "sft", "--lora_rank", ""], set()),
        (["plugins", "--j"], {"--json"}),
        (["no-such-command", "--f"], set()),
    ],
)
def test_completions_of_words(words: list[str], expected: set[str]) -> None:
    assert {value for value, _ in completions(words)} == expected


def test_completion_imports_nothing_heavy() -> None:
    program = "import sys; from swift.cli.main import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    for words in (["s"], ["sft", "--optim", ""], ["infer", "--m"]):
        done = subprocess.run(
            [sys.executable, "-c", program, "--complete", *words], capture_output=True, text=True, check=True
        )
        assert done.stdout
        assert not (HEAVY | SLOW) & set(done.stderr.split())


def test_install_writes_script_and_sources_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    (tmp_path / ".bashrc").write_text("alias l=ls")
    for _ in range(2):
        assert run(["--install-completion"]) == 0
    script = tmp_path / ".local/share/swift/completion.bash"
    assert script.read_text() == SCRIPTS["bash"]
    assert (tmp_path / ".bashrc").read_text() == f"alias l=ls\nsource '{script}'\n"
    assert run(["--install-completion", "fish"]) == 0
    assert (tmp_path / ".config/fish/completions/swift.fish").read_text() == SCRIPTS["fish"]
    capsys.readouterr()
    assert run(["--show-completion", "zsh"]) == 0
    assert capsys.readouterr().out == SCRIPTS["zsh"]
    assert run(["--install-completion", "tcsh"]) == 2
