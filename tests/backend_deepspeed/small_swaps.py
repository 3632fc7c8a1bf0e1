"""Imported before processes are forked: DeepSpeed swaps pieces of 4 KiB too, where it keeps those below 1 MiB."""

from deepspeed.runtime.swap_tensor import optimizer_utils

optimizer_utils.MIN_AIO_BYTES = 4096
