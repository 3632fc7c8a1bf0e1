"""The devices that a plan is made for: `8xH100`, `16x8xH100`, or a file that describes one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from swift.errors import UsageError, did_you_mean
from swift.hardware import DEVICES, DeviceFacts
from swift.untrusted import check_unicode, read_json_object

_NUMBERS = ("gigabytes", "tflops", "memory_bandwidth", "link", "network")
_EXAMPLE = {"name": "T4", "gigabytes": 16, "tflops": 65, "memory_bandwidth": 320, "link": 16, "network": 3}
CPU = "CPU"
RESERVED = 1.2e9
"""Bytes that the driver, its context and collectives take of each GPU before a program has made a tensor."""


@dataclass(frozen=True)
class Cluster:
    """So many equal machines with so many equal devices each."""

    device: DeviceFacts
    machines: int
    per_machine: int
    host_gigabytes: float = 2000.0
    """Memory of one machine, for what is kept outside of the devices."""

    @property
    def devices(self) -> int:
        """Return how many devices there are."""
        return self.machines * self.per_machine

    @property
    def capacity(self) -> float:
        """Return the bytes of one device that a program can have."""
        return self.device.gigabytes * 1e9 - (0.0 if self.device.name == CPU else RESERVED)

    @property
    def host_capacity(self) -> float:
        """Return the bytes of a machine's memory that the process of one device can have."""
        return 0.9 * self.host_gigabytes * 1e9 / self.per_machine

    def __str__(self) -> str:
        """Return it as it is typed, machines shown where there are several."""
        own = f"{self.per_machine}x{self.device.name}"
        return own if self.machines == 1 else f"{self.machines}x{own}"

    def bandwidth(self, ways: int, stride: int) -> float:
        """Return the bytes a second that a device sends in a group of every `stride`th process.

        A ring around the group passes through its slowest link: the network as soon as the group leaves a machine.
        What leaves a machine does so through as many ports as the group has members there.
        """
        if ways * stride <= self.per_machine:
            return self.device.link * 1e9
        members = max(1, self.per_machine // stride)
        return min(self.device.link, self.device.network * members) * 1e9

    def port(self, ways: int, stride: int, *, to_all: bool) -> float:
        """Return the bytes a second that a device sends to its neighbour in such a group, or to all others of it.

        What leaves a machine goes through the device's own port. Of what is sent to all, a part stays within.
        """
        if ways * stride <= self.per_machine:
            return self.device.link * 1e9
        inside = max(1, self.per_machine // stride) - 1 if to_all else 0
        if inside == 0:
            return self.device.network * 1e9
        # Both ways are taken at once.
        outside = ways - 1 - inside
        return min(self.device.network * (ways - 1) / outside, self.device.link * (ways - 1) / inside) * 1e9


def cluster(typed: str) -> Cluster:
    """Return the cluster of a value of `--gpus`; raise `UsageError` if it is invalid."""
    found = re.fullmatch(r"(?:(\d+)x)?(?:(\d+)x)?([^x].*|x[^\d].*)", typed.strip())
    if found is None or not found[3]:
        raise UsageError(
            f"Invalid value {typed!r} for --gpus.", hint="Use --gpus 8xH100, or --gpus 4x8xH100 (machines × devices)."
        )
    first, second, name = found[1], found[2], found[3]
    device = _device(name)
    counts = [int(each) for each in (first, second) if each]
    if not all(1 <= count <= 1 << 20 for count in counts):
        raise UsageError(f"--gpus {typed}: the number of devices must be from 1 to {1 << 20:,}.")
    if len(counts) == 2:
        return Cluster(device, counts[0], counts[1])
    count = counts[0] if counts else 1
    if count <= device.per_machine:
        return Cluster(device, 1, count)
    machines, rest = divmod(count, device.per_machine)
    if rest:
        raise UsageError(
            f"--gpus {typed}: {count} is not a multiple of the {device.per_machine} devices of a machine.",
            hint=f"Use a multiple, or --gpus MACHINESxDEVICESx{name}.",
        )
    return Cluster(device, machines, device.per_machine)


def _device(name: str) -> DeviceFacts:
    if name.endswith(".json"):
        return described(Path(name))
    known = {device.name.lower(): device for device in DEVICES}
    found = known.get(name.lower().replace("_", "-"))
    if found is not None:
        return found
    names = [device.name for device in DEVICES]
    raise UsageError(
        f"Unknown device {name!r}.{did_you_mean(name, names)}",
        hint=f"Known devices: {', '.join(names)}.\n"
        f"Describe others in a file: --gpus 8xmine.json, with {json.dumps(_EXAMPLE)}",
    )


def described(file: Path) -> DeviceFacts:
    """Return the device that a file of the user's describes."""
    if not file.is_file():
        raise UsageError(f"File not found: {file}", hint=f"Create it with, for example, {json.dumps(_EXAMPLE)}")
    content: dict[str, Any] = read_json_object(file, UsageError)
    known = {field.name for field in fields(DeviceFacts)} - {"known_as"}
    for key in content:
        if key not in known:
            raise UsageError(f"{file}: unknown key {key!r}.{did_you_mean(key, known)}", hint=_keys(known))
    for key in _NUMBERS:
        value = content.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise UsageError(f"{file}: {key} must be a number above 0, not {value!r}.", hint=_keys(known))
    per_machine = content.get("per_machine", 8)
    if not isinstance(per_machine, int) or isinstance(per_machine, bool) or per_machine < 1:
        raise UsageError(f"{file}: per_machine must be a whole number from 1, not {per_machine!r}.", hint=_keys(known))
    numbers = {key: float(content[key]) for key in _NUMBERS}
    name = str(content.get("name", file.stem))
    check_unicode(name, f"{file}: name", UsageError)
    return DeviceFacts(name, **numbers, known_as=(), per_machine=per_machine, fp8=content.get("fp8") is True)


def _keys(known: set[str]) -> str:
    return f"Valid keys: {', '.join(sorted(known))}. For example: {json.dumps(_EXAMPLE)}"
