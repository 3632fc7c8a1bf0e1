"""Megatron-Core: tensor, pipeline, context and expert parallel training of Hugging Face models.

Every hook names the function that implements it, which is imported when the hook is called.
"""

from __future__ import annotations

from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import lazy_hook
from swift_backend_megatron.config import MegatronConfig


class MegatronBackend:
    """Megatron-Core with mcore-bridge."""

    HOOK_API = HOOK_API
    config_model = MegatronConfig
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "pp", "vpp", "cp", "ep", "etp", "sequence_parallel"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        tuners=frozenset({Trains.FULL, Trains.LORA, Trains.START}),
        quantisers=frozenset(),
        optimizers=frozenset({Reads.ELEMENTS}),
        provides=EVERY_VIEW,
        async_checkpoint=True,
        modalities=frozenset({"text", "image"}),
        cuts_media=True,
        calls_before_update=True,
        features=frozenset(
            {
                "train.gradient_checkpointing",
                "train.pad_token",
                "train.router_aux_loss",
                "train.router_z_loss",
                "train.router_bias_rate",
                "backend.stages",
                "parallel.tp of embedding and head",
            }
        ),
        roles=8,
    )

    swift_check_layout = lazy_hook("swift_backend_megatron.layout:check_plan")
    swift_check_model = lazy_hook("swift_backend_megatron.layout:check_model")
    swift_setup = lazy_hook("swift_backend_megatron.topology:setup")
    swift_wrap_model = lazy_hook("swift_backend_megatron.self_check:build_checked")
    swift_shard = lazy_hook("swift_backend_megatron.shard:shard")
    swift_train_step = lazy_hook("swift_backend_megatron.step:train_step")
    swift_forward = lazy_hook("swift_backend_megatron.step:forward")
    swift_save_checkpoint = lazy_hook("swift_backend_megatron.checkpoint:save")
    swift_load_checkpoint = lazy_hook("swift_backend_megatron.checkpoint:load")
    swift_iter_weights = lazy_hook("swift_backend_megatron.checkpoint:stream")
    swift_teardown = lazy_hook("swift_backend_megatron.topology:teardown")
    swift_layout = lazy_hook("swift_backend_megatron.layout:layout_of")
    swift_estimate_memory = lazy_hook("swift_backend_megatron.estimate:estimate_memory")
    swift_estimate_activations = lazy_hook("swift_backend_megatron.estimate:estimate_activations")
    swift_estimate_traffic = lazy_hook("swift_backend_megatron.estimate:estimate_traffic")
    swift_describe_layout = lazy_hook("swift_backend_megatron.layout:describe")
    swift_read_third_party = lazy_hook("swift_backend_megatron.native:open_native")
    swift_write_third_party = lazy_hook("swift_backend_megatron.native_writer:write_native")
