"""`make setup`: what it installs is pinned by hash, and what it says when it can't is one clear sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pip_settings
import pytest
import setup

PINS = sorted(setup.PINS.glob("*.txt"))


@pytest.mark.parametrize("pins", PINS, ids=lambda file: file.name)
def test_every_pin_has_a_hash_and_no_address(pins: Path) -> None:
    lines = [line for line in pins.read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines))
    assert [entry for entry in entries if not re.match(r"[a-z0-9_.-]+==[^ ]+ .*--hash=sha256:", entry, re.DOTALL)] == []
    assert not re.search(r"://|@|^-|/", "\n".join(lines), re.MULTILINE)


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


def test_a_cpu_wheel_under_a_pinned_name_with_other_contents_is_refused(tmp_path: Path) -> None:
    name = (setup.PINS / "torch-cpu.sha256").read_text().split()[1]
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(setup.SetupError, match="is not the file that"):
        setup.check_hash(tmp_path / name)


def test_a_cpu_wheel_whose_hash_nobody_pinned_is_taken_aloud(tmp_path: Path) -> None:
    (tmp_path / "torch-1.0+cpu-cp311-cp311-linux_riscv64.whl").write_bytes(b"wheel")
    said = setup.check_hash(tmp_path / "torch-1.0+cpu-cp311-cp311-linux_riscv64.whl")
    assert "no hash of torch-1.0+cpu" in said


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
