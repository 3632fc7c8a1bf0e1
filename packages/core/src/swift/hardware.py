"""Accelerators with the figures of their data sheets. Importable without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceFacts:
    """One kind of accelerator."""

    name: str
    """As users type it: 'H100'."""
    gigabytes: float
    """Memory in units of 10⁹ bytes."""
    tflops: float
    """Dense bfloat16 with float32 accumulation."""
    memory_bandwidth: float
    """Bandwidth of its memory in GB/s."""
    link: float
    """Bandwidth to another device of the machine, in GB/s and one direction."""
    network: float
    """Bandwidth to another machine in GB/s, where each device has its own port, as is usual for it."""
    known_as: tuple[str, ...] = ()
    """Parts of the driver's name for it; empty where that is `name`."""
    per_machine: int = 8
    fp8: bool = False
    """Whether it multiplies in FP8 at twice the speed."""

    def match_length(self, driver_name: str) -> int:
        """Return how many letters of a driver's name match this device; 0 for another device."""
        parts = self.known_as or (self.name,)
        return max(len(part) if re.search(rf"\b{re.escape(part)}\b", driver_name) else 0 for part in parts)


DEVICES = (
    DeviceFacts("GB200", 192, 2500, 8000, 900, 50, ("GB200",), per_machine=4, fp8=True),
    DeviceFacts("B200", 180, 2250, 7700, 900, 50, fp8=True),
    DeviceFacts("H200", 141, 989, 4800, 450, 50, fp8=True),
    DeviceFacts("H100", 80, 989, 3350, 450, 50, ("H100 80GB HBM3",), fp8=True),
    DeviceFacts("H100-PCIe", 80, 756, 2000, 64, 25, ("H100 PCIe",), fp8=True),
    DeviceFacts("H800", 80, 989, 3350, 200, 50, fp8=True),
    DeviceFacts("H20", 96, 148, 4000, 450, 50, fp8=True),
    DeviceFacts("A100", 80, 312, 2039, 300, 25, ("A100-SXM4-80GB", "A100")),
    DeviceFacts("A100-40", 40, 312, 1555, 300, 25, ("A100-SXM4-40GB",)),
    DeviceFacts("A800", 80, 312, 2039, 200, 25),
    DeviceFacts("L40S", 48, 362, 864, 32, 12.5, fp8=True),
    DeviceFacts("A10", 24, 125, 600, 32, 3, ("A10", "A10G")),
    DeviceFacts("L4", 24, 121, 300, 32, 3, fp8=True),
    DeviceFacts("RTX4090", 24, 165, 1008, 32, 3, ("RTX 4090",), fp8=True),
    DeviceFacts("RTX3090", 24, 71, 936, 16, 3, ("RTX 3090",)),
)
"""From the data sheets of NVIDIA. Where a device has no links of its own, `link` is that of its PCI Express slot."""


def device_called(driver_name: str) -> DeviceFacts | None:
    """Return the device with this driver's name; None for an unknown one."""
    best = max(DEVICES, key=lambda device: device.match_length(driver_name))
    return best if best.match_length(driver_name) else None
