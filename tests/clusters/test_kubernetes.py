"""Examples for Kubernetes, read by the models that the projects publish of their own resources."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import import_rules
import yaml

EXAMPLES = import_rules.ROOT / "examples" / "kubernetes"
PYTHON = Path(import_rules.ROOT / ".venv/clusters/bin/python")
READ = """
import json, sys
from kubeflow_trainer_api import models
print(json.dumps(models.TrainerV1alpha1TrainJob.from_dict(json.loads(sys.argv[1])).to_dict(), default=str))
"""


def test_the_train_job_is_one_to_kubeflows_own_models() -> None:
    job = yaml.safe_load((EXAMPLES / "trainjob.yaml").read_text())
    done = subprocess.run([PYTHON, "-c", READ, json.dumps(job)], capture_output=True, text=True, check=True)
    assert _missing(job, json.loads(done.stdout)) == []


def _missing(given: Any, read: Any, path: str = "") -> list[str]:
    """Return what was not understood, or as something else."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [each for key, value in given.items() for each in _missing(value, read.get(key), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [each for one, other in zip(given, read, strict=True) for each in _missing(one, other, path)]
    return [] if given == read else [path]
