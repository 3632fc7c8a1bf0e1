"""The example for clouds, read by SkyPilot itself, and what it sets on each machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import import_rules
import pytest

EXAMPLE = import_rules.ROOT / "examples" / "sky.yaml"
PYTHON = Path(sys.prefix) / "clouds" / "bin" / "python"
READ = """
import json, sys
import sky
from sky.skylet import constants
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps({
    "name": task.name,
    "machines": task.num_nodes,
    "accelerators": resources.accelerators,
    "mounts": {path: [storage.name, storage.mode.value] for path, storage in task.storage_mounts.items()},
    "setup": task.setup,
    "run": task.run,
    "variables": [value for name, value in vars(constants).items() if name.startswith("SKYPILOT_")],
}, default=str))
"""


def read(file: Path, home: Path) -> Any:
    variables = {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([PYTHON, "-c", READ, str(file)], env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_sky_reads_the_example_as_it_is_meant(tmp_path: Path) -> None:
    task = read(EXAMPLE, tmp_path)
    assert (task["name"], task["machines"], task["accelerators"]) == ("swift-sft", 2, {"H100": 8})
    assert task["mounts"] == {"/data": ["swift-data", "MOUNT"]}
    assert task["setup"].strip() == "pip install swift-core"
    asked = set(re.findall(r"\$(SKYPILOT_\w+)", task["run"]))
    assert len(asked) == 4
    assert asked <= {*task["variables"]}


def test_sky_would_refuse_a_field_that_it_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(EXAMPLE.read_text().replace("num_nodes", "machines"))
    with pytest.raises(subprocess.CalledProcessError) as raised:
        read(wrong, tmp_path)
    assert "machines" in raised.value.stderr
