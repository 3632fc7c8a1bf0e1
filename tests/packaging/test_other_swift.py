"""Another distribution installs the package `swift` too, as ms-swift and OpenStack's do: swift reports it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from environments import core_environment
from lone_environment import install
from test_wheels import swift

FILES = {
    "swift/__init__.py": "",
    "swift/cli/main.py": "def cli_main():\n    print('the other swift')\n",
    "swift/version.py": "__version__ = '4.6.0'\n",
    "swift/llm/__init__.py": "",
}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A wheel with files and the script of ms-swift's names."""
    files = {
        **FILES,
        "ms_swift-4.6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ms-swift\nVersion: 4.6.0\n",
        "ms_swift-4.6.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "ms_swift-4.6.0.dist-info/entry_points.txt": "[console_scripts]\nswift = swift.cli.main:cli_main\n",
    }
    files["ms_swift-4.6.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    wheel = tmp_path / "ms_swift-4.6.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def shell(command: str, environment: Path) -> None:
    """Run a command of a hint as typed, with uv on PATH and without an index."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {**os.environ, "PATH": path, "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "PYTHONPATH": ""}
    subprocess.run(command, shell=True, check=True, cwd=environment, env=offline)


def test_damage_by_another_swift_is_named_and_repaired(built: Path, other: Path, tmp_path: Path) -> None:
    environment = core_environment(built, tmp_path / "shared")
    install(environment, other)
    assert subprocess.check_output([environment / "bin" / "swift"], text=True) == "the other swift\n"
    python = [str(environment / "bin" / "python"), "-m", "swift", "sft"]
    refused = subprocess.run(python, capture_output=True, text=True, check=False, cwd=environment)
    assert refused.returncode == 1
    assert "ms-swift 4.6.0 has replaced files of swift-core: bin/swift, swift/__init__.py" in refused.stderr
    assert "Traceback" not in refused.stderr
    (wheel,) = built.glob("swift_core-*.whl")
    subprocess.run(["unzip", "-qo", wheel, "-d", next(environment.glob("lib/python*/site-packages"))], check=True)
    hidden = subprocess.run(python, capture_output=True, text=True, check=False, cwd=environment)
    assert hidden.returncode == 1
    assert "swift/llm.py" in hidden.stderr
    shell(re.search(r"To repair this one: (.*)", hidden.stderr)[1], environment)
    repaired = swift(environment, "--help")
    assert (repaired.returncode, repaired.stderr) == (0, "")


@pytest.mark.full
def test_harmless_neighbour_is_noted_and_reported(built: Path, other: Path, tmp_path: Path) -> None:
    """A distribution that has not replaced anything is noted by each command, and reported by `swift doctor`."""
    environment = core_environment(built, tmp_path / "shared")
    packages = next(environment.glob("lib/python*/site-packages"))
    info = packages / "python_swiftclient-4.10.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: python-swiftclient\nVersion: 4.10.0\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nswift = swiftclient.shell:main\n")
    own_script = re.search(r"^\S*bin/swift,.*$", (next(packages.glob("swift_core-*/RECORD"))).read_text(), re.M)
    (info / "RECORD").write_text(f"{own_script[0]}\n")
    noted = swift(environment, "plugins")
    assert noted.returncode == 0
    assert noted.stderr.startswith("Note: python-swiftclient 4.10.0 in this environment also installs files of swift.")
    findings = json.loads(swift(environment, "doctor", "--json").stdout)
    assert [each["verdict"] for each in findings if each["topic"] == "installation"] == ["note"]


@pytest.mark.full
def test_hint_of_wheels_can_be_typed(built: Path, tmp_path: Path) -> None:
    """The command that a missing plugin names installs it from the folder of the wheels."""
    environment = core_environment(built, tmp_path / "alone")
    missing = swift(environment, "convert")
    typed = re.search(r"Run: uv pip install --python (\S+) (.*)", missing.stderr)
    shell(f"{sys.executable} -m pip --python {typed[1]} install --quiet --no-index {typed[2]}", environment)
    assert "needs" in swift(environment, "convert").stderr
