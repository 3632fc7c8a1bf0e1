"""The built-in backend: one process, or data parallel (DDP). Registered through an entry point like anyone's.

Every hook names the function that implements it, which is imported when the hook is called.
"""

from __future__ import annotations

from swift.backends.torch.config import TorchConfig
from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import lazy_hook


class TorchBackend:
    """Plain PyTorch: the reference that other backends are compared with."""

    HOOK_API = HOOK_API
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
                "optim.gradient_view",
                "optim.matrix_slots",
            }
        ),
        roles=8,
    )

    swift_check_layout = lazy_hook("swift.backends.torch.layout:check_run")
    swift_setup = lazy_hook("swift.backends.torch.topology:setup")
    swift_wrap_model = lazy_hook("swift.backends.torch.model:build")
    swift_shard = lazy_hook("swift.backends.torch.shard:shard")
    swift_train_step = lazy_hook("swift.backends.torch.step:train_step")
    swift_forward = lazy_hook("swift.backends.torch.step:forward")
    swift_save_checkpoint = lazy_hook("swift.backends.torch.checkpoint:save")
    swift_load_checkpoint = lazy_hook("swift.backends.torch.checkpoint:load")
    swift_iter_weights = lazy_hook("swift.backends.torch.weights:stream")
    swift_teardown = lazy_hook("swift.processes.device:leave_group")
    swift_estimate_memory = lazy_hook("swift.backends.torch.estimate:estimate_memory")
    swift_estimate_traffic = lazy_hook("swift.backends.torch.estimate:estimate_traffic")
