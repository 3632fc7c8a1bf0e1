"""Memory of a compiled block: what it keeps for its backward pass, where the compiler computes again what is cheap.

torch's own partitioner decides that, on the graph of the block, before any code is made. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map


def kept_bytes(block: torch.nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Return the bytes of all that one pass through a compiled block keeps, its weights' copies included.

    What is given to it is counted if a gradient is asked for it: the states, which the block before leaves there.
    """
    graphs: list[torch.fx.GraphModule] = []

    def taken(gm: torch.fx.GraphModule, example_inputs: Any) -> torch.fx.GraphModule:
        graphs.append(gm)
        return gm

    def passed(weights: Any, given: Any, rest: Any) -> Any:
        return functional_call(block, weights, given, rest)

    given, rest = tree_map(_begun, (tuple(inputs), dict(named)))
    compiled = aot_function(
        passed,
        fw_compiler=taken,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    weights = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    output = compiled(weights, given, rest)
    results = sum(isinstance(each, torch.Tensor) for each in tree_leaves(output))
    (graph,) = graphs
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    sizes: dict[int, int] = {}
    for node in end.args[0][results:]:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) and node.op == "call_function" else None
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    states = [each for each in tree_leaves((given, rest)) if isinstance(each, torch.Tensor) and each.requires_grad]
    return sum(sizes.values()) + sum(each.untyped_storage().nbytes() for each in states)


def _begun(value: Any) -> Any:
    """Return an input as a leaf of its own, which asks for a gradient where it did."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
