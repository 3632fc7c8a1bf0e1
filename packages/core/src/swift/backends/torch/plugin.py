"""The built-in backend: one process, or data parallel (DDP). Registered through an entry point like anyone's."""

from __future__ import annotations

from swift.backends.base import TorchBackend
from swift.backends.torch.config import TorchConfig
from swift.contracts import EVERY_VIEW, Capabilities, Reads, Trains
from swift.hookspecs import lazy_hook


class DataParallelBackend(TorchBackend):
    """Plain PyTorch: the reference that other backends are compared with."""

    config_model = TorchConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset(Trains),
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "bnb-int8", "torchao-nf4"}),
        optimizers=frozenset(Reads),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image", "audio"}),
        calls_before_update=True,
        features=frozenset(
            {
                "train.compile",
                "train.gradient_checkpointing",
                "model.liger",
                "data.padding_free",
                "train.neftune_alpha",
                "train.pad_token",
                "train.router_aux_loss",
                "train.router_z_loss",
                "train.router_bias_rate",
                "optim.gradient_view",
                "optim.matrix_slots",
            }
        ),
        roles=8,
    )

    swift_shard = lazy_hook("swift.backends.torch.shard:DataParallelState")
    swift_estimate_memory = lazy_hook("swift.backends.torch.estimate:estimate_memory")
    swift_estimate_traffic = lazy_hook("swift.backends.torch.estimate:estimate_traffic")
