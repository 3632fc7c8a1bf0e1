"""Memory that is seen: blocks that malloc takes from the system, and gives back, one by one."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_IS_MAPPED = 2
"""A bit of the word before a block: it is the system's own, and no part of the heap."""


def show_blocks(threshold: int) -> None:
    """From now on, this process's blocks of so many bytes go back to the system at once, and come from nowhere else.

    What was freed before would be taken again without being seen, so all of it is taken, and kept.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc_trim(0)
    libc.mallopt(_M_MMAP_THRESHOLD, threshold)
    mapped = False
    while not mapped:
        block = libc.malloc(ctypes.c_size_t(threshold))
        mapped = bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & _IS_MAPPED)
