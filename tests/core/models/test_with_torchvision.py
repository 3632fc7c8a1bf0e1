"""What needs torchvision, or is otherwise where it is installed: it has an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = Path(sys.prefix) / "vision" / "bin" / "python"
"""Of an environment that has all of this one, and torchvision."""
TESTS = HERE.parents[1]
FILES = (
    TESTS / "engines" / "test_image_architectures.py",
    TESTS / "core" / "train" / "test_images_with_torchvision.py",
)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_architectures_and_training_with_torchvision() -> None:
    """The tests that wait for torchvision pass in its environment, whose torch does not match it."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "torchvision", "-m", "", *FILES]
    answer = subprocess.run(command, env=outer, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]
    assert "skipped" not in answer.stdout, answer.stdout[-2000:]
