"""TensorSlices cover what a flat range covers, and nothing else."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from swift.checkpoint import TensorSlices, flat_slices, part_slices
from swift.checkpoint.tensor_slices import region_slices


@pytest.mark.parametrize("shape", [(), (7,), (4, 5), (3, 2, 4), (2, 1, 3, 2)])
def test_flat_range_is_cut_into_correct_views(shape: tuple[int, ...]) -> None:
    """Every flat range is cut into views that name the right elements."""
    whole = torch.arange(float(math.prod(shape))).view(shape)
    flat = whole.reshape(-1)
    for start in range(flat.numel() + 1):
        for end in range(start, flat.numel() + 1):
            held = flat[start:end].clone()
            seen = torch.zeros(shape)
            for offset, view in flat_slices(shape, start, held):
                where = tuple(slice(o, o + n) for o, n in zip(offset, view.shape, strict=True))
                assert torch.equal(whole[where], view)
                assert view.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
                seen[where] += 1
            covered = seen.reshape(-1)
            assert bool((covered[start:end] == 1).all())
            assert int(covered.sum()) == end - start


def test_fused_parameter_shard_takes_only_held_elements() -> None:
    """A part of a fused parameter takes only the elements that are held."""
    fused = torch.arange(24.0)
    expert = fused[8:16].view(4, 2)
    seen = torch.full((4, 2), -1.0)
    for first, last in ((0, 11), (11, 24)):
        for offset, view in part_slices((4, 2), 8, first, fused[first:last]):
            seen[tuple(slice(o, o + n) for o, n in zip(offset, view.shape, strict=True))] = view
    assert torch.equal(seen, expert)
    assert part_slices((4, 2), 8, 16, fused[16:]) == []


def test_shard_outside_its_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds the shape"):
        TensorSlices((4, 4), [((2, 0), torch.zeros(3, 4))], dtype=torch.float32)
    with pytest.raises(ValueError, match="float64"):
        TensorSlices((4, 4), [((0, 0), torch.zeros(3, 4, dtype=torch.float64))], dtype=torch.float32)


@pytest.mark.parametrize(
    ("shape", "start", "whole"),
    [
        ((3, 8, 5), 0, (3, 2, 4, 5)),  # two matrices packed in one, stored as one
        ((4, 5), 60, (3, 2, 4, 5)),  # the second one of an expert
        ((8, 5), 40, (3, 2, 4, 5)),
        ((4, 5), 60, (3, 8, 5)),
        ((5, 4), 20, (3, 5, 4)),
        ((3, 8), 0, (3, 2, 4)),
        ((6, 4), 0, (6, 4)),
    ],
)
def test_rectangle_is_cut_into_correct_views(shape: tuple[int, ...], start: int, whole: tuple[int, ...]) -> None:
    """Rectangles that fill a parameter fill each tensor in it, every element once."""
    parameter = torch.arange(float(math.prod(whole))).view(whole)
    expected = parameter.reshape(-1)[start : start + math.prod(shape)].view(shape)
    seen = torch.full(shape, -1.0)
    for bounds in product(*([slice(0, size // 3), slice(size // 3, size)] for size in whole)):
        held = parameter[bounds].clone()
        for offset, view in region_slices(shape, start, whole, bounds, held):
            where = tuple(slice(o, o + n) for o, n in zip(offset, view.shape, strict=True))
            assert bool((seen[where] == -1).all())
            assert view.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
            seen[where] = view
    assert torch.equal(seen, expected)
