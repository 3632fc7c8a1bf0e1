"""GGUF, the format of llama.cpp and Ollama, as a target of exports."""

__version__ = "0.1.0"
