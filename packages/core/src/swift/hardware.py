"""Devices that models are trained on, as their makers' data sheets describe them. Importable without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceFacts:
    """One kind of accelerator."""

    name: str
    """As people type it: 'H100'."""
    gigabytes: float
    """Of memory, in units of 10⁹ bytes, as they are sold."""
    tflops: float
    """Dense bfloat16 with float32 accumulation."""
    memory_bandwidth: float
    """GB/s of its own memory."""
    link: float
    """GB/s that it sends to another one of its machine, in one direction."""
    network: float
    """GB/s that it sends to another machine where each device has a port of its own, as is usual for it."""
    known_as: tuple[str, ...] = ()
    """Parts of the name that its driver tells; none where that is `name` itself."""
    per_machine: int = 8
    fp8: bool = False
    """Whether it multiplies in 8 bits at twice the speed."""

    def likeness(self, told: str) -> int:
        """Return how many letters of a driver's name say that it is this device; 0 where it is another one."""
        parts = self.known_as or (self.name,)
        return max(len(part) if re.search(rf"\b{re.escape(part)}\b", told) else 0 for part in parts)


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


def device_called(told: str) -> DeviceFacts | None:
    """Return the device whose driver tells this name; None for an unknown one."""
    most = max(DEVICES, key=lambda device: device.likeness(told))
    return most if most.likeness(told) else None
