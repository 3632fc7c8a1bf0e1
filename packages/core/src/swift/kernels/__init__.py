"""Kernels of swift's own for NVIDIA's GPUs, in Triton. `available` alone can be imported where there is no Triton.

What calls them does the same without them, by torch's operators: on a CPU, and as what they are tested against.
"""
