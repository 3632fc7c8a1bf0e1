"""Libraries underneath keep quiet: what they say in every run says nothing to a user."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from swift.models.quiet import quiet_libraries

SCRIPT = """
from pathlib import Path
from swift_demo.model import write_model
write_model(Path("tiny"), hidden=32, layers=1)
import deepspeed
deepspeed.get_accelerator()
"""


@pytest.mark.full
def test_saving_script_prints_no_library_output(tmp_path: Path) -> None:
    """A script that saves a model prints nothing of its libraries."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_other_warnings_of_deepspeed_are_kept() -> None:
    quiet_libraries()
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("DeepSpeed")
    logger.addHandler(handler)
    before, _ = logger.level, logger.setLevel(logging.WARNING)  # the backend, in this process, has set it higher
    try:
        logger.warning("Setting accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it.")
        logger.warning("overflow: the scale is halved")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert heard == ["overflow: the scale is halved"]
