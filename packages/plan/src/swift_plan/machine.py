"""The devices of this machine, found without torch."""

from __future__ import annotations

import os
import shutil
import subprocess

from swift.errors import UsageError
from swift.hardware import DeviceFacts, device_called
from swift_plan.cluster import CPU, Cluster

PROGRAM = 0.45
"""Gigabytes that a process on the CPU takes before it has a model: Python, torch and transformers."""


def this_machine(processes: int, machines: int) -> Cluster:
    """Return what so many processes on each of so many machines like this one run on."""
    name = _gpus()
    if name is None:
        return Cluster(_cpu(processes), machines, processes)
    device = device_called(name)
    if device is None:
        raise UsageError(
            f"Unknown device {name!r}: its speed is not known.",
            hint="Choose backend and layout yourself, or describe the device: swift plan MODEL --gpus 8xmine.json",
        )
    return Cluster(device, machines, processes)


def _gpus() -> str | None:
    """Return the name of the first visible GPU; None where there is none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
        return names[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _cpu(processes: int) -> DeviceFacts:
    """Return what one process has of this machine's processors and memory; its speed is a guess that ranks layouts."""
    import psutil

    share = psutil.virtual_memory().available / 1e9 / processes - PROGRAM
    cores = max(1.0, (os.cpu_count() or 1) / processes)
    return DeviceFacts(CPU, max(0.1, share), 0.05 * cores, 10, 4, 1, per_machine=processes)
