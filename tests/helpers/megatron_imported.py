"""Imported before processes are forked: Megatron's modules, without a GPU on the CPU layer, which take seconds."""

from swift_backend_megatron import cpu, megatron_runtime

if cpu.needed():
    cpu.prepare()
with megatron_runtime.active():
    import mcore_bridge
    import megatron.core.distributed
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401

    assert mcore_bridge.get_mcore_model
