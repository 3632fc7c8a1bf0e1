"""The Megatron backend of swift; its entry point is `swift_backend_megatron.plugin:MegatronBackend`."""

__version__ = "0.1.0"
