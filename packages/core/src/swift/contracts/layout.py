"""How processes share the work of a run, and what each of them keeps and sends: for plans, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from swift.errors import UnsupportedLayout

if TYPE_CHECKING:
    from swift.config.sections import ParallelSection


@dataclass(frozen=True)
class ProcessLayout:
    """Sizes of the parallel dimensions in force: world = dp × pp × cp × ulysses × tp, where dp = replicate × shard.

    Experts' weights lie otherwise: world = edp × pp × ep × etp.

    - `replicate`: Groups of data parallel processes that each keep all of the state.
    - `shard`: Data parallel processes of one such group.
    """

    replicate: int = 1
    shard: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ulysses: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False

    @classmethod
    def of(cls, parallel: ParallelSection, world: int, *, replicas: int | None = None) -> ProcessLayout:
        """Return the layout of so many processes; an unset `dp_shard` fills the remainder.

        `replicas` is a backend's own default for `dp_replicate`. Raise `UnsupportedLayout` where the sizes do not
        multiply to `world`.
        """
        layout = cls(
            parallel.dp_replicate or replicas or 1, parallel.dp_shard or 1, parallel.tp, parallel.pp, parallel.vpp,
            parallel.cp, parallel.ulysses, parallel.ep, parallel.etp, parallel.sequence_parallel,
        )  # fmt: skip
        if parallel.dp_shard is None:
            layout = replace(layout, shard=max(1, world // layout.world))
        if layout.world == world:
            return layout
        sizes = {
            "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ulysses": layout.ulysses,
            "dp_replicate": layout.replicate, "dp_shard": layout.shard,
        }  # fmt: skip
        product = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "dp_shard 1"
        instead = ", or leave --parallel.dp_shard out." if parallel.dp_shard else " or a multiple of it."
        raise UnsupportedLayout(
            f"The layout {product} needs {layout.world} processes, but {world} were started.",
            hint=f"Start with --nproc {layout.world}{instead}",
        )

    @property
    def data(self) -> int:
        """Into how many slices a global batch is cut."""
        return self.replicate * self.shard

    @property
    def sequence(self) -> int:
        """How many processes share the tokens of a sample."""
        return self.cp * self.ulysses

    @property
    def world(self) -> int:
        """How many processes there are."""
        return self.data * self.sequence * self.tp * self.pp

    @property
    def expert_data(self) -> int:
        """How many processes keep the same experts."""
        return self.world // (self.pp * self.ep * self.etp)

    def named(self, *always: str) -> dict[str, int]:
        """Return the sizes above 1, and those that are always shown, as the `parallel` section calls them."""
        sizes = {
            "dp_replicate": self.replicate, "dp_shard": self.shard, "pp": self.pp, "vpp": self.vpp, "cp": self.cp,
            "ulysses": self.ulysses, "tp": self.tp, "ep": self.ep, "etp": self.etp,
        }  # fmt: skip
        return {name: size for name, size in sizes.items() if size > 1 or name in always}


@dataclass(frozen=True)
class LocalWeights:
    """The weights that one process computes with, where tensor, pipeline and expert parallelism alone have cut them.

    Counted in values. Of the processes, that with the most.

    - `trained`: That the optimizer updates, experts among them.
    - `trained_experts`: Those of `trained` that belong to experts which tokens are dealt out to.
    - `block`: Of the largest layer.
    - `ends`: Embedding and head, as far as this process has them.
    - `compute_bytes`: Bytes of a value in the precision of the arithmetic.
    - `frozen_bytes`: Bytes of a value that is not trained, as it is stored: the mean, where some are quantized.
    - `scale_bytes`: Bytes of scales of quantized weights, counted in `frozen_bytes`, which backends leave whole.
    - `gathered_bytes`: Bytes of a value of a layer, as processes gather it: the mean, where some are quantized.
    - `slot_bytes`: Bytes that the optimizer keeps for a trained value.
    - `on_cpu`: Whether it is the CPU, where memory is not taken before it is written to.
    """

    layout: ProcessLayout
    trained: float
    frozen: float
    trained_experts: float = 0.0
    frozen_experts: float = 0.0
    block: float = 0.0
    ends: float = 0.0
    compute_bytes: float = 2.0
    frozen_bytes: float = 2.0
    scale_bytes: float = 0.0
    gathered_bytes: float = 2.0
    slot_bytes: float = 8.0
    on_cpu: bool = False

    @property
    def all(self) -> float:
        """Trained and frozen together."""
        return self.trained + self.frozen


@dataclass(frozen=True)
class LayerSizes:
    """Widths of one decoder layer, whole, and how it is cut.

    - `heads`: Of queries.
    - `queries`: Width of all heads of queries together.
    - `keys`: Width of all heads of keys together; that of the values is the same.
    - `width`: Of the MLP; of a mixture of experts that of all that a token passes through, together.
    - `gated`: Whether the MLP has a gate (SwiGLU).
    - `normed_heads`: Whether queries and keys are normalised.
    - `adapted`: Whether its own weights are frozen, with adapters beside them.
    - `drops`: Whether the adapters drop some of their inputs: each then keeps a copy, and nobody the input itself.
    """

    layout: ProcessLayout
    hidden: int
    heads: int
    queries: int
    keys: int
    width: float
    gated: bool = True
    normed_heads: bool = False
    compute_bytes: float = 2.0
    adapted: bool = False
    drops: bool = False
    on_cpu: bool = False


HOST = "host: "
"""Begins the name of a term of `swift_estimate_memory` that lies in the machine's memory, not in the device's."""
GROWING = "growing: "
"""Begins the name of a term that a step's first backward pass makes, and that is no more when weights are updated."""
PASSING = "passing: "
"""Begins the name of a term that is there while a backward pass goes through the layers, and not at the loss."""
LEAVING = "leaving: "
"""Begins the name of a term that is there when a backward pass has gone through a layer, whose activations are gone."""
AFTERWARDS = "afterwards: "
"""Begins the name of a term that is there when all layers have been left, until weights are updated."""


@dataclass(frozen=True)
class Traffic:
    """One kind of message of an optimizer step, as one process takes part in it.

    - `name`: For people: 'gradients', 'weights for the forward pass'.
    - `bytes`: Of the whole tensor that is gathered or reduced; of what one process gives away, for `all_to_all` and
      `send`; of what goes between a device and its machine's memory, for `host`.
    - `ways`: Processes of the group.
    - `stride`: How far apart two neighbours of the group are, as ranks: it tells which links are between them.
    - `calls`: How many messages it comes in.
    - `hidden`: The part, from 0 to 1, during which the processes can compute.
    """

    name: str
    operation: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "host"]
    bytes: float
    ways: int
    stride: int = 1
    calls: float = 1.0
    hidden: float = 0.0

    @property
    def sent(self) -> float:
        """Bytes that one process sends, where a ring passes them on."""
        if self.operation == "host":
            return self.bytes
        if self.ways == 1:
            return 0.0
        if self.operation == "send":
            return self.bytes
        share = (self.ways - 1) / self.ways
        return self.bytes * share * (2.0 if self.operation == "all_reduce" else 1.0)
