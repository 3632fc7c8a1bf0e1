"""The first pass of an objective that compares all rows of a global batch: see `Objective.first_pass`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift.data.global_segments import GlobalSegments

if TYPE_CHECKING:
    from swift.contracts import Topology
    from swift.data.batch import Batch
    from swift.processes.comms import Comms


def is_whole(batch: Batch, topology: Topology) -> bool:
    """Return whether one micro-batch is the whole global batch; the same on all processes.

    Then the objective sees all rows at once, and no first pass is needed.
    """
    return topology.data_size == 1 and batch.most_micro_batches(1) == 1


def completed(batch: Batch, objective: Any, vectors: torch.Tensor | None, topology: Topology, comms: Comms) -> Batch:
    """Return the batch with the values that the objective makes of the vectors of all rows. Called on every process.

    `vectors` are those of this process's segments.
    """
    samples = GlobalSegments.of_slice(batch)
    mine = (np.zeros((0, 0)) if vectors is None else vectors.detach().cpu().double().numpy(), samples)
    # Processes that share a slice have the same vectors: the first of them speaks for all.
    slices = comms.gather(topology.data_rank)
    speaks = slices.index(topology.data_rank) == topology.world.rank
    heard = comms.gather(mine if speaks and len(batch.rows) else None)
    parts = {rank: part for rank, part in zip(slices, heard, strict=True) if part is not None}
    order = sorted(parts)
    everyone = torch.from_numpy(np.concatenate([parts[rank][0] for rank in order]))
    values = objective.from_first_pass(everyone, GlobalSegments.joined([parts[rank][1] for rank in order]))
    start = sum(len(parts[rank][0]) for rank in order if rank < topology.data_rank)
    here = slice(start, start + len(samples.counts))
    return batch.with_segment_values({name: value[here].cpu().float().numpy() for name, value in values.items()})
