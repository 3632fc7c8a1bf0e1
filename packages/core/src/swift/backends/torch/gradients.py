"""How gradients of several processes become one: they are added up, where DDP by itself averages.

Losses are divided by the weight of the global batch before the backward pass, so that nothing is left to divide.
This module has no `from __future__ import annotations`: DDP compares the annotations of a hook with types, not names.
"""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket


def add_up(_: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed
