"""DeepSpeed: ZeRO in all stages, offload, AutoTP and Ulysses, from its own JSON.

Every hook names the function that implements it, which is imported when the hook is called.
"""

from __future__ import annotations

from swift.contracts import EVERY_VIEW, HOOK_API, Capabilities, Reads, Trains
from swift.hookspecs import lazy_hook
from swift_backend_deepspeed.config import DeepSpeedOptions


class DeepSpeedBackend:
    """ZeRO 0 to 3 with offload, alone, with Ulysses or with AutoTP."""

    HOOK_API = HOOK_API
    config_model = DeepSpeedOptions
    capabilities = Capabilities(
        parallel=frozenset({"dp_replicate", "dp_shard", "tp", "ulysses"}),
        precisions=frozenset({"float32", "bfloat16", "float16"}),
        # ZeRO lays out what is trained once, in flat tensors.
        tuners=frozenset(Trains) - {Trains.ROTATION},
        quantisers=frozenset({"bnb-nf4", "bnb-fp4", "bnb-int8"}),
        optimizers=frozenset({Reads.ELEMENTS}),
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
                "parallel.tp with modules",
            }
        ),
        roles=8,
    )

    swift_check_layout = lazy_hook("swift_backend_deepspeed.layout:check_plan")
    swift_check_model = lazy_hook("swift_backend_deepspeed.layout:check_model")
    swift_setup = lazy_hook("swift_backend_deepspeed.topology:setup")
    swift_wrap_model = lazy_hook("swift_backend_deepspeed.model:build")
    swift_shard = lazy_hook("swift_backend_deepspeed.shard:shard")
    swift_train_step = lazy_hook("swift_backend_deepspeed.step:train_step")
    swift_forward = lazy_hook("swift_backend_deepspeed.step:forward")
    swift_save_checkpoint = lazy_hook("swift_backend_deepspeed.checkpoint:save")
    swift_load_checkpoint = lazy_hook("swift_backend_deepspeed.checkpoint:load")
    swift_iter_weights = lazy_hook("swift_backend_deepspeed.checkpoint:stream")
    swift_teardown = lazy_hook("swift_backend_deepspeed.topology:teardown")
    swift_variants = lazy_hook("swift_backend_deepspeed.estimate:variants")
    swift_estimate_memory = lazy_hook("swift_backend_deepspeed.estimate:estimate_memory")
    swift_estimate_traffic = lazy_hook("swift_backend_deepspeed.estimate:estimate_traffic")
    swift_core_settings = lazy_hook("swift_backend_deepspeed.config:core_settings")
    swift_presets = lazy_hook("swift_backend_deepspeed.ds_json:presets")
    swift_read_third_party = lazy_hook("swift_backend_deepspeed.native:open_native")
    swift_write_third_party = lazy_hook("swift_backend_deepspeed.universal:write_universal")
