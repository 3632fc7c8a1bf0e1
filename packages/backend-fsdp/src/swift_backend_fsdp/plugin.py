"""FSDP2: parameters, gradients and optimizer state in shards, gathered block by block."""

from __future__ import annotations

from swift import TorchBackend
from swift.contracts import EVERY_VIEW, Capabilities, Reads, Trains
from swift.hookspecs import lazy_hook
from swift_backend_fsdp.config import FsdpConfig


class FsdpBackend(TorchBackend):
    """PyTorch's FSDP2, alone or with tensor, expert or context parallel, or Ulysses."""

    config_model = FsdpConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "cp", "ep", "ulysses"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset(Trains),
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "torchao-nf4"}),
        optimizers=frozenset({Reads.ELEMENTS, Reads.BLOCKS, Reads.PARTS}),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image", "audio"}),
        cuts_media=True,
        calls_before_update=True,
        features=frozenset(
            {
                "train.compile",
                "train.gradient_checkpointing",
                "data.padding_free",
                "train.neftune_alpha",
                "train.pad_token",
                "train.router_aux_loss",
                "train.router_z_loss",
                "train.router_bias_rate",
                "optim.gradient_view",
                "optim.matrix_slots",
                "parallel.tp of experts",
                "parallel.tp with modules",
            }
        ),
        roles=8,
    )

    swift_check_layout = lazy_hook("swift_backend_fsdp.layout:check_plan")
    swift_check_model = lazy_hook("swift_backend_fsdp.layout:check_model")
    swift_setup = lazy_hook("swift_backend_fsdp.topology:setup")
    swift_wrap_model = lazy_hook("swift_backend_fsdp.model:build")
    swift_shard = lazy_hook("swift_backend_fsdp.shard:FsdpState")
    swift_teardown = lazy_hook("swift_backend_fsdp.topology:teardown")
    swift_layout = lazy_hook("swift_backend_fsdp.layout:layout_of")
    swift_variants = lazy_hook("swift_backend_fsdp.estimate:variants")
    swift_estimate_memory = lazy_hook("swift_backend_fsdp.estimate:estimate_memory")
    swift_estimate_traffic = lazy_hook("swift_backend_fsdp.estimate:estimate_traffic")
