"""Who may import whom: the code keeps the rules, and the tool that says so notices when it does not."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import import_rules
import pytest


def write(root: Path, package: str, **modules: str) -> None:
    for module, source in {"__init__": "", **modules}.items():
        file = root / "packages" / package / "src" / package / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small workspace that keeps all rules."""
    monkeypatch.setattr(import_rules, "FLOORS", ("errors", "engine", "plugins", ""))
    monkeypatch.setattr(import_rules, "UPWARDS", {})
    write(
        tmp_path,
        "swift",
        errors="class SwiftError(Exception): ...",
        engine="import torch",
        plugins="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef run():\n    import torch\n",
    )
    write(tmp_path, "swift_backend_fsdp", plugin="import torch\nfrom swift.errors import SwiftError\n")
    write(tmp_path, "swift_backend_megatron", plugin="from swift import errors\n")
    return tmp_path


def test_the_repository_keeps_the_import_rules() -> None:
    assert import_rules.main() == 0


def test_lazy_and_type_checking_imports_break_nothing(workspace: Path) -> None:
    assert import_rules.main(workspace) == 0


@pytest.mark.parametrize(("extras", "broken"), [('kit = ["swift-backend-fsdp==1"]', 0), ("", 1)])
def test_packages_may_import_what_extras_bring(
    extras: str, broken: int, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_rules, "PUBLIC", ("swift.errors", "swift_backend_fsdp"))
    declares = f'[project]\ndependencies = ["swift-core==1"]\n[project.optional-dependencies]\n{extras}\n'
    (workspace / "packages" / "swift_backend_megatron" / "pyproject.toml").write_text(declares)
    write(workspace, "swift_backend_megatron", kit="import swift_backend_fsdp\n")
    assert import_rules.main(workspace) == broken


def test_extras_of_core_allow_no_import(workspace: Path) -> None:
    declares = '[project]\ndependencies = []\n[project.optional-dependencies]\nfsdp = ["swift-backend-fsdp==1"]\n'
    (workspace / "packages" / "swift" / "pyproject.toml").write_text(declares)
    write(workspace, "swift", engine="import swift_backend_fsdp\n")
    assert import_rules.main(workspace) == 1


PUBLIC_ONLY = "may import only the public modules of swift"
AT_ONCE = "torch is imported at once by"
FORBIDDEN = [
    ("swift", {"engine": "def choose():\n    import swift_backend_fsdp\n"}, "swift may not import swift_backend_fsdp"),
    (
        "swift_backend_megatron",
        {"plugin": "from swift_backend_fsdp.plugin import Fsdp\n"},
        "swift_backend_megatron may not import swift_backend_fsdp",
    ),
    ("swift_backend_fsdp", {"plugin": "import swift.engine"}, PUBLIC_ONLY),
    ("swift_backend_fsdp", {"plugin": "from swift.engine import run"}, PUBLIC_ONLY),
    ("swift_backend_fsdp", {"plugin": "from swift.errors import _private"}, PUBLIC_ONLY),
    ("swift", {"plugins": "import torch.nn"}, AT_ONCE),
    ("swift", {"plugins": "from . import engine"}, AT_ONCE),
    ("swift", {"plugins": "from swift.engine import x"}, AT_ONCE),
    (
        "swift",
        {"engine": "if TYPE_CHECKING:\n    from swift.plugins import run\n"},
        "swift.engine imports swift.plugins, and engine stands below plugins",
    ),
    ("swift", {"engine": "from swift.plugins import run"}, "imports that run back up: 1 (at most 3)"),
    (
        "swift",
        {"planner": "from swift.errors import SwiftError"},
        "say in FLOORS on which floor planner stands",
    ),
]


@pytest.mark.parametrize(("package", "modules", "message"), FORBIDDEN)
def test_forbidden_import_is_reported(
    package: str, modules: dict[str, str], message: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(workspace, package, **modules)
    assert import_rules.main(workspace) == 1
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("how", ["import swift.plugins", "from swift import plugins", "from . import plugins"])
def test_circular_imports_are_caught_in_functions(
    how: str, workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that import each other are caught even inside a function; it is the only broken rule."""
    monkeypatch.setattr(import_rules, "UPWARDS", {("engine", "plugins"): "for this test"})
    write(workspace, "swift", plugins="def run():\n    from swift import engine\n", engine=how)
    assert import_rules.main(workspace) == 1
    printed = capsys.readouterr().out
    assert "imports in a circle: swift.engine -> swift.plugins -> swift.engine" in printed
    assert "1 broken" in printed


def test_unneeded_exception_is_caught(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_rules, "UPWARDS", {("errors", "engine"): "once upon a time"})
    assert import_rules.main(workspace) == 1
    assert "take it out of UPWARDS" in capsys.readouterr().out


def test_public_modules_exist() -> None:
    missing = [module for module in import_rules.PUBLIC if find_spec(module) is None]
    assert missing == []


def test_light_modules_import_nothing_heavy() -> None:
    """Light modules load nothing heavy when they are really imported."""
    core = import_rules.ROOT / "packages/core/src/swift"
    names = [import_rules.module_name(file, core) for file in core.rglob("*.py")]
    light = sorted(name for name in names if any(import_rules.within(name, each) for each in import_rules.LIGHT))
    program = (
        f"import importlib, sys\nfor name in {light!r}:\n    importlib.import_module(name)\n"
        f"    heavy = sorted({set(import_rules.HEAVY)!r} & set(sys.modules))\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
