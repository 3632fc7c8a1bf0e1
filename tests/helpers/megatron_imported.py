"""Imported before processes are forked: Megatron's modules on the portable layer, which take seconds."""

from swift_backend_megatron import engine, portable

if portable.needed():
    portable.prepare()
with engine.active():
    import mcore_bridge
    import megatron.core.distributed
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401

    assert mcore_bridge.get_mcore_model
