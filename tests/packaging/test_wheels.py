"""The wheels, and `swift-core` installed alone: only what it declares is there, and none of the other packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import import_rules
import pytest

from swift_demo import write_model

PACKAGES = import_rules.ROOT / "packages"


def swift(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "swift"), *arguments]
    alone = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment, env=alone)


@pytest.mark.parametrize("package", sorted(PACKAGES.iterdir()), ids=lambda package: package.name)
def test_a_wheel_holds_every_file_of_its_package_and_the_licence(package: Path, built: Path) -> None:
    source = package / "src"
    (init,) = source.glob("*/__init__.py")
    (wheel,) = built.glob(f"{'swift_core' if package.name == 'core' else init.parent.name}-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {
        name for name in names if ".dist-info/" not in name
    }
    assert f"{init.parent.name}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_core_alone_lists_the_torch_backend_and_no_other(alone: Path) -> None:
    listed = swift(alone, "plugins")
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"\btorch\b.*swift-core", listed.stdout)
    assert "swift-backend" not in listed.stdout


def test_core_alone_names_kit_and_demo_install(alone: Path) -> None:
    for arguments, extra in (
        (("plugins", "--try", "torch"), "testing"),
        (("plugins", "new", "tuner", "mine"), "testing"),
        (("demo",), "demo"),
    ):
        asked = swift(alone, *arguments)
        assert asked.returncode in (2, 3)
        assert f'core[{extra}]"' in asked.stdout + asked.stderr
        assert "Traceback" not in asked.stderr


def test_every_entry_point_of_core_alone_can_be_loaded(alone: Path) -> None:
    program = (
        "from importlib.metadata import distribution\n"
        "for point in distribution('swift-core').entry_points:\n    point.load()\n"
        "import sys; assert 'pytest' not in sys.modules"
    )
    done = subprocess.run([alone / "bin" / "python", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_core_alone_trains_and_exports(alone: Path, tmp_path: Path) -> None:
    """Core alone trains adapters and exports them, without a report or a complaint that there is none."""
    write_model(tmp_path / "model")
    rows = [{"messages": [{"role": "user", "content": "Say yes"}, {"role": "assistant", "content": "yes"}]}] * 4
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = f"--model {tmp_path}/model --dataset {tmp_path}/rows.jsonl --max_steps 2 --export.to hf"
    done = swift(
        alone, "sft", *flags.split(), "--output_dir", str(tmp_path / "runs"), "--export.out", str(tmp_path / "hf")
    )
    assert done.returncode == 0, done.stderr
    assert "not installed" not in done.stdout + done.stderr
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    assert list(tmp_path.rglob("logging.jsonl"))
    assert not list(tmp_path.rglob("report.html"))
