"""`make setup`: what it installs is pinned by hash, and what it says when it can't is one clear sentence."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pip_settings
import pytest
import setup
from packaging.requirements import Requirement


def test_every_pin_has_a_hash_and_no_address() -> None:
    for pins in setup.PINS.glob("*.txt"):
        lines = "\n".join(line for line in pins.read_text().splitlines() if not line.startswith("#"))
        hashed = re.compile(r"[a-z0-9_.-]+==[^ ]+ .*--hash=sha256:", re.DOTALL)
        assert [entry for entry in re.split(r"\n(?=\S)", lines) if not hashed.match(entry)] == [], pins
        assert not re.search(r"://|@|^-|/", lines, re.MULTILINE), pins


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_no_package_is_pinned_twice(python: str) -> None:
    """pip refuses a file that pins two versions of a package for the same Python."""
    machine = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    for pins in setup.PINS.glob("*.txt"):
        lines = re.findall(r"^(\S+==[^\\\n]+)", pins.read_text(), re.MULTILINE)
        wanted = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate(machine)]
        twice = [name for name, count in Counter(each.name for each in wanted).items() if count > 1]
        assert not twice, f"{pins.name}: {twice}"


def test_the_pins_of_torch_for_cpu_are_of_the_same_version() -> None:
    (version,) = re.findall(r"^torch==([^ ]+)", (setup.PINS / "torch.txt").read_text(), re.MULTILINE)
    for line in (setup.PINS / "torch-cpu.sha256").read_text().splitlines():
        assert re.fullmatch(rf"[0-9a-f]{{64}}  torch-{re.escape(version)}\+cpu-[\w.-]+\.whl", line)


def test_an_older_python_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "OLDEST", (99, 0))
    assert setup.main() == 2
    assert "or newer" in capsys.readouterr().err


def test_an_older_python_can_read_the_script() -> None:
    ast.parse(Path(setup.__file__).read_text(), feature_version=(3, 7))


def test_the_fingerprint_changes_with_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "PINS", tmp_path / "requirements")
    monkeypatch.setattr(setup, "__file__", str(tmp_path / "setup.py"))
    (tmp_path / "requirements").mkdir()
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "requirements" / "dev.txt").write_text("a==1")
    before = setup.fingerprint()
    assert setup.fingerprint() == before
    (tmp_path / "requirements" / "dev.txt").write_text("a==2")
    assert setup.fingerprint() != before


def test_partial_environment_is_built_once_per_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that one command needs is made once for its pins, which `.venv` does not have yet."""
    installed = tmp_path / "dev.txt"
    made: list[str] = []

    def make(folder: Path, pins: Path) -> None:
        folder.mkdir(exist_ok=True)
        made.append(pins.read_text())

    compiled = "click==8.1 \\\n    --hash=sha256:a\nray==1 \\\n    --hash=sha256:b\n"
    done = subprocess.CompletedProcess([], 0, compiled)
    monkeypatch.setattr(setup, "PINS", tmp_path)
    monkeypatch.setattr(setup, "install_inside", make)
    monkeypatch.setattr(pip_settings, "for_uv", dict)
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: done)
    for pins in ("click==8.1", "click==8.1", "click==8.0"):
        installed.write_text(pins + " \\\n    --hash=sha256:a\n")
        monkeypatch.setattr(setup, "fingerprint", installed.read_text)
        setup.once(tmp_path / "clusters", ["ray"], inside=True)
    assert made == ["ray==1 \\\n    --hash=sha256:b\n", compiled]
    done.returncode = 1
    with pytest.raises(setup.SetupError, match="cannot resolve skypilot"):
        setup.resolved(["skypilot"], None)


def test_cpu_wheel_with_wrong_hash_is_refused(tmp_path: Path) -> None:
    """A CPU wheel under a pinned name with other contents is refused."""
    name = (setup.PINS / "torch-cpu.sha256").read_text().split()[1]
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(setup.SetupError, match="is not the file that"):
        setup.check_hash(tmp_path / name)


def test_unpinned_cpu_wheel_is_installed_with_warning(tmp_path: Path) -> None:
    (tmp_path / "torch-1.0+cpu-cp311-cp311-linux_riscv64.whl").write_bytes(b"wheel")
    message = setup.check_hash(tmp_path / "torch-1.0+cpu-cp311-cp311-linux_riscv64.whl")
    assert "no hash of torch-1.0+cpu" in message


def test_installed_packages_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages are compiled once, even where Python is set not to."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "venv" / "bin" / "python")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    setup.uv_install({"UV_OFFLINE": "1"}, "--no-deps", str(_wheel_of_one_module(tmp_path)))
    (compiled,) = (tmp_path / "venv").rglob("one_module.*.pyc")
    assert compiled.parent.parent.name == "site-packages"


def test_unoptimized_python_is_replaced_by_system_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without optimisations gives way to a complete one of the system."""
    other = tmp_path / "python{}.{}".format(*sys.version_info[:2])
    arguments = {"CONFIG_ARGS": "'--prefix=/somewhere'"}
    monkeypatch.setattr(setup.sysconfig, "get_config_var", arguments.get)
    assert setup.quick_python(tmp_path) == sys.executable  # there is none

    other.write_text("#!/bin/sh\nexit 1\n")  # as it ends where venv or the headers are not installed
    other.chmod(0o755)
    assert setup.quick_python(tmp_path) == sys.executable

    other.write_text("#!/bin/sh\nexit 0\n")
    assert setup.quick_python(tmp_path) == str(other)
    arguments["CONFIG_ARGS"] += " '--enable-optimizations'"
    assert setup.quick_python(tmp_path) == sys.executable


def test_the_makefile_lets_python_keep_bytecode(tmp_path: Path) -> None:
    written = tmp_path / "makefile"
    written.write_text(f"include {setup.ROOT / 'Makefile'}\nprobe:\n\t@echo kept=$$PYTHONDONTWRITEBYTECODE\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment = {**outside, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["make", "-f", str(written), "probe"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "kept="


def _wheel_of_one_module(folder: Path) -> Path:
    path = folder / "one_module-1.0-py3-none-any.whl"
    info = "one_module-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("one_module.py", "VALUE = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: one-module\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"one_module.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_pip_settings_become_those_of_uv() -> None:
    listing = "\n".join(
        [
            "global.index-url='https://mirror.example/simple'",
            "global.extra-index-url='https://a.example https://b.example'",
            "global.find-links='/old'",
            "install.no-cache-dir='true'",
            "download.find-links='/unrelated'",
            r":env:.find-links='/wheels\n/more'",
        ]
    )
    assert pip_settings.translate(listing) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example https://b.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
    }
