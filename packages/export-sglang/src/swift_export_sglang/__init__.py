"""SGLang as an inference engine of swift that serves, and as a target of exports."""

__version__ = "0.1.0"
