"""Storing a model's weights in fewer bits: calibrated a layer at a time, written in formats that vLLM loads."""
